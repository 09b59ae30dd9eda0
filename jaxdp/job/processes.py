"""One run over many processes: who this one is, and what all of them must agree on (JAX is imported to join only).

    with find_job(coordinator, processes, process_id) as job:    # of `scheduler`; nothing but arithmetic
        ...                                                      # read configs, check
        job.join()                                               # before any device is used
        sizes = gather(size)                                     # everyone's, in the processes' order

Every process runs the same program, so each must reach the same `gather`s in the same order. They go through
JAX's coordination service: a millisecond or two, and no device waits. An error on one process is raised on all:
it travels with the next `gather`, and process 0 alone prints it. In a run of one process all this is nothing.
"""

import itertools
import json
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from jaxdp.errors import JaxdpError
from jaxdp.job import watchdog
from jaxdp.job.process_log import ProcessLog
from jaxdp.job.rendezvous import REFUSAL_S, Address, Refusal, meet
from jaxdp.job.xla_flags import refuse_bad_flags

JOIN_TIMEOUT_S = 300.0
HEARTBEAT_S = 100  # JAX's default: how long a process may be silent that nobody watches
# Whoever waits longer waits for a process that hangs: the watchdog's part. A dead one is JAX's own to notice.
LONGEST_WAIT_S = 86_400.0

T = TypeVar("T")
log_of_library = logging.getLogger(__name__)


class SharedError(JaxdpError):
    """An error that every process of the job raises, with the same message and exit code."""

    def __init__(self, refusal: Refusal):
        super().__init__(refusal.message)
        self.exit_code = refusal.exit_code


class Absent(Exception):
    """These processes did not come to an exchange in time; process 0 stands for its store."""

    def __init__(self, processes: list[int]):
        super().__init__(f"process {', '.join(map(str, processes))} did not come")
        self.processes = processes


@dataclass
class Job:
    """This process's place in a job; entered around everything that a command does."""

    address: Address | None = None
    processes: int = 1
    process_id: int = 0
    local_device_ids: tuple[int, ...] | None = None  # None: all that this process sees
    join_timeout_s: float = JOIN_TIMEOUT_S
    stall_timeout_s: float = 0.0  # 0: not watched
    stop: object = False  # true once a signal has asked to stop
    warning: str | None = None  # told when the run starts
    met: bool = False
    joined: bool = False
    hosts: Sequence[str] = ()  # of all processes, once joined

    @property
    def first(self) -> bool:
        """Whether this process prints and writes records."""
        return self.process_id == 0

    def join(self) -> None:
        """Meets the other processes and starts JAX's coordination service; a run of one process only checks.

        Raises `JaxdpError` if a process doesn't come in time or one of them refuses, `BadInput` for `XLA_FLAGS` that
        XLA can't read; call before any device is used.
        """
        refuse_bad_flags()
        if self.processes == 1:
            if self.warning:
                log_of_library.warning(self.warning)
            return
        refusal = self._meet(None, self.join_timeout_s)
        if refusal:
            raise SharedError(refusal)
        _start_jax(self)
        self.joined = True
        global _job
        _job = self
        self.log = ProcessLog(self.process_id)
        self.log.say(f"process {self.process_id} of {self.processes} on {socket.gethostname()} joined {self.address}")
        watchdog.start(self.process_id, self.processes, self.stall_timeout_s)
        self.hosts = gather(socket.gethostname())

    def _meet(self, own: Refusal | None, timeout_s: float) -> Refusal | None:
        assert self.address is not None
        self.met = True
        return meet(self.address, self.processes, self.process_id, timeout_s, own, self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        """Ends all processes alike: with a clean exit, or with the same error, which process 0 prints."""
        if self.processes == 1 or (error is None and not self.joined):
            return
        try:
            if error is None:
                gather("the end")
            elif not isinstance(error, SharedError):
                self._share(error)
        except SharedError as shared:
            self._leave(shared)
            raise shared from error
        self._leave(error)

    def _share(self, error: BaseException) -> None:
        """Raises the error, or an earlier process's, on all; ends this one alone if no other comes to hear it."""
        refusal = refusal_of(error)
        if self.joined:
            try:
                _exchange(None, refusal, REFUSAL_S)
            except SharedError:
                raise
            except Absent as absent:
                self._die(self._named(absent, error, refusal))
        if self.met:
            return  # the meeting itself failed, which each process has noticed
        try:
            told = self._meet(refusal, REFUSAL_S)
        except JaxdpError:
            return  # nobody is there: it stays this process's own
        raise SharedError(told or refusal) from error

    def _named(self, absent: "Absent", error: BaseException, refusal: Refusal) -> Refusal:
        """The refusal; or that a peer is gone, which is why a collective of this process failed."""
        if isinstance(error, JaxdpError) or not absent.processes:
            return refusal
        who = ", ".join(
            f"process {index}{f' on {self.hosts[index]}' if self.hosts else ''}" for index in absent.processes
        )
        reason = (str(error).splitlines() or [""])[0]
        return Refusal(f"{who} died or left the run, and a collective with it failed ({reason})", JaxdpError.exit_code)

    def _leave(self, error: BaseException | None) -> None:
        global _job
        if self.joined:
            import jax

            if error is not None:
                self.log.say(f"ended by an error: {error}\n{''.join(traceback.format_exception(error))}")
            else:
                self.log.say("ended")
            watchdog.stop()
            jax.distributed.shutdown()
            self.joined, _job = False, None
        if isinstance(error, SharedError) and not self.first:
            sys.exit(error.exit_code)

    def _die(self, refusal: Refusal) -> None:
        """An orderly exit would wait for processes that wait for this one."""
        self.log.say(f"ended alone: {refusal.message}")
        print(
            f"error: process {self.process_id} on {socket.gethostname()}: {refusal.message}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(refusal.exit_code)


_job: Job | None = None
_rounds = itertools.count()


def process_id() -> int:
    return _job.process_id if _job else 0


def count() -> int:
    """The processes of the job that was joined; 1 without one."""
    return _job.processes if _job else 1


def is_first() -> bool:
    """Whether this process prints and writes records."""
    return process_id() == 0


def gather(value: T) -> list[T]:
    """Every process's plain value (what JSON can say), in their order; raises what one of them raised."""
    return _exchange(value, None, LONGEST_WAIT_S) if _job else [value]


def broadcast(value: T) -> T:
    """Process 0's value, everywhere."""
    return gather(value if is_first() else None)[0]  # type: ignore[return-value]


def on_first(function: Callable[[], T]) -> T:
    """What `function` gives on process 0, which alone runs it; an error there is raised everywhere."""
    return broadcast(function() if is_first() else None)  # type: ignore[return-value]


def agreed(value: T | None) -> T | None:
    """The first value that is not None, in the processes' order: what any of them asks for."""
    return next((each for each in gather(value) if each is not None), None)


def host_name() -> str:
    """What processes of one host share, and others don't; JAXDP_HOST_NAME replaces it."""
    if given := os.environ.get("JAXDP_HOST_NAME"):
        return given
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return f"{socket.gethostname()} {boot_id}".strip()


def write_log_to(folder: Path) -> None:
    """From here on this process's log is a file of the run's folder, what was said before included."""
    if _job:
        _job.log.write_to(folder)


def log(line: str) -> None:
    """A line for this process's own log."""
    if _job:
        _job.log.say(line)


def _start_jax(job: Job) -> None:
    import jax

    _keep_stdout()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM, which is the run's to handle
    assert job.address is not None
    jax.distributed.initialize(
        str(job.address),
        job.processes,
        job.process_id,
        job.local_device_ids,
        cluster_detection_method="deactivate",
        initialization_timeout=int(job.join_timeout_s),
        heartbeat_timeout_seconds=int(watchdog.JAX_HEARTBEAT_LIMITS * job.stall_timeout_s) or HEARTBEAT_S,
        coordinator_bind_address=str(job.address.bind) if job.address.bind.host else None,
    )


def _keep_stdout() -> None:
    """Stdout is for this program's document alone: Gloo greets its peers there, from C++."""
    sys.stdout.flush()
    ours = os.dup(1)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    sys.stdout = os.fdopen(ours, "w", encoding=sys.stdout.encoding)


def refusal_of(error: BaseException) -> Refusal:
    """An error as it is told to the other processes."""
    if isinstance(error, JaxdpError):
        return Refusal(str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Refusal("interrupted", 130)
    told = (str(error).splitlines() or [""])[0]
    return Refusal(f"unexpected {type(error).__name__}: {told}; --debug shows where", JaxdpError.exit_code)


def _exchange(value: Any, refusal: Refusal | None, timeout_s: float) -> list[Any]:
    """One round among all processes; raises `SharedError` for the first one's refusal, `Absent` if not all come."""
    assert _job is not None
    client = watchdog.jax_store()
    number = next(_rounds)
    folder = f"jaxdp/{number}/"
    try:
        client.key_value_set(f"{folder}{_job.process_id:06d}", json.dumps({"value": value, "refusal": refusal}))
        client.wait_at_barrier("jaxdp", int(timeout_s * 1000))  # always the same: the service forgets no name
        said = [json.loads(text) for _, text in sorted(client.key_value_dir_get(folder))]
        if _job.first and number:
            client.key_value_delete(f"jaxdp/{number - 1}/")  # all have read it, or they would not have come here
    except RuntimeError as error:
        raise Absent(_absent(client, folder, _job.processes)) from error
    for index, each in enumerate(said):
        if each["refusal"]:
            message, exit_code = each["refusal"]
            raise SharedError(Refusal(message if index == 0 else f"process {index}: {message}", exit_code))
    return [each["value"] for each in said]


def _absent(client: Any, folder: str, processes: int) -> list[int]:
    try:
        came = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(folder)}
    except RuntimeError:
        return [0]
    return [index for index in range(processes) if index not in came]
