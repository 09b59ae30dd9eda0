"""N processes of one command on this host, supervised: they start, stop and fail together (no JAX)."""

import errno
import logging
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import psutil

from jaxdp.errors import BadInput, Refused
from jaxdp.job import stop as stopping
from jaxdp.job.device_shares import device_shares
from jaxdp.job.stop import StopFlag

MAX_PROCESSES = 64
GRACE_S = 2.0  # for the others to end by SIGTERM when a rank has failed
REFUSAL_S = 10.0  # for the others to tell the same refusal
SETTLE_S = 0.5  # peers of a dead rank fail within milliseconds: so long is waited to see which was the first
STOPPED_SHARE = 0.6  # of the stall timeout: before its peers find a stopped rank silent, and all end within it
LOOK_S = 0.2
TAIL_LINES = 15  # of the rank that failed first
TAIL_LINES_OTHERS = 3  # of those that failed with it, mostly because of it
TAIL_LINE_BYTES = 2000

# Outlives the launcher by a moment: when its input ends, however the launcher ended, so does every process group
# it was told of, with all that the ranks themselves have started.
REAPER = """
import os, signal, sys
for group in sys.stdin.read().split():
    try:
        os.killpg(int(group), signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
"""


@dataclass
class Rank:
    """One process, the leader of its own group. `tail` is what it said last; rank 0 says it on the terminal itself."""

    number: int
    process: subprocess.Popen[bytes]
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    reader: threading.Thread | None = None
    stopped_since: float | None = None

    @property
    def name(self) -> str:
        return f"rank {self.number} (process {self.process.pid})"

    def send(self, number: int) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):  # it ends at this moment
                os.killpg(self.process.pid, number)


@dataclass(frozen=True)
class Failure:
    """The rank that failed first, how, and those that failed by themselves within the same moment."""

    rank: Rank
    code: int
    how: str
    others: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a run ended; `lost` is the rank whose death or standstill ended it, None if it ended by what it decided."""

    code: int
    lost: int | None = None


@dataclass(frozen=True)
class Restarts:
    """`command` takes a run up after a death or standstill, `most` times; `elastic`: without the rank that failed."""

    command: Sequence[str]
    most: int
    elastic: bool = False


def launch(
    command: Sequence[str],
    processes: int,
    *,
    devices_per_process: int,
    stall_timeout_s: float,
    port: int | None,
    restarts: Restarts | None = None,
) -> int:
    """Runs `command` in `processes` processes that find each other, and returns the exit code of them all.

    That is 0 when all end well, else the code of the rank that failed first (128+n if signal n ended it); then the
    others are ended and that rank's last lines are shown. `stall_timeout_s` 0: a stuck rank is waited for. Rank 0 has
    this process's stdout and stderr. Raises `BadInput` before anything starts. Whatever ends this process, no rank
    and nothing a rank started is left.
    """
    if processes > MAX_PROCESSES:
        raise BadInput(
            f"-n {processes}: more than {MAX_PROCESSES} processes on one host; "
            "raise --devices-per-process instead, or start them on several hosts"
        )
    shares = device_shares(processes, devices_per_process)
    logging.getLogger(stopping.__name__).setLevel(logging.ERROR)  # the ranks say themselves what a signal means
    left = restarts.most if restarts else 0
    with StopFlag() as stop:
        ended = _run(command, shares, stall_timeout_s, port, stop)
        while restarts and not stop.requested:
            if ended.lost is not None and left:
                left -= 1
                if restarts.elastic and len(shares) > 1:
                    del shares[ended.lost]
            elif ended.code == Refused.exit_code and left < restarts.most and restarts.elastic and len(shares) > 1:
                del shares[-1]  # so many don't divide the batch, say
            else:
                break
            _say(f"restarts with {len(shares)} process(es) from the newest checkpoint; {left} more restart(s) allowed")
            ended = _run(restarts.command, shares, stall_timeout_s, port, stop)
        if stop.requested:
            _say(f"stopped by {signal.Signals(_signal(stop)).name}; all processes have ended")
    return ended.code


def _run(
    command: Sequence[str], shares: Sequence[dict[str, str]], stall_timeout_s: float, port: int | None, stop: StopFlag
) -> Ended:
    """The command once, in a process for each share of the devices."""
    address = f"127.0.0.1:{free_port() if port is None else checked_port(port)}"
    reaper = subprocess.Popen([sys.executable, "-I", "-S", "-c", REAPER], stdin=subprocess.PIPE, start_new_session=True)
    assert reaper.stdin is not None
    try:
        ranks = []
        for number, share in enumerate(shares):
            joining = {
                "JAXDP_COORDINATOR": address,
                "JAXDP_PROCESSES": str(len(shares)),
                "JAXDP_PROCESS_ID": str(number),
                "JAXDP_STALL_TIMEOUT_S": f"{stall_timeout_s:g}",
            }
            joining = joining if len(shares) > 1 else {}  # one alone has nobody to join
            ranks.append(_start(command, number, os.environ | joining | share, reaper.stdin))
        return _supervise(ranks, stop, stall_timeout_s or math.inf)
    finally:
        reaper.stdin.close()
        reaper.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def checked_port(port: int) -> int:
    """`port`, if this process may listen there; two services could otherwise share it without a word."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = "is taken by another process" if error.errno == errno.EADDRINUSE else os.strerror(error.errno or 0)
            raise BadInput(f"--port {port}: {reason}; leave --port out to get a free one") from None
    return port


def _start(command: Sequence[str], number: int, environment: dict[str, str], reaper: IO[bytes]) -> Rank:
    """The rank tells the reaper of its group before it becomes the command: there is no moment to slip through."""
    output = None if number == 0 else subprocess.PIPE
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if number == 0 else subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: os.write(reaper.fileno(), b"%d\n" % os.getpid()),  # before any thread is started here
    )
    return Rank(number, process)


def _supervise(ranks: Sequence[Rank], stop: StopFlag, stall_timeout_s: float) -> Ended:
    ends: queue.Queue[Rank] = queue.Queue()
    for rank in ranks:
        threading.Thread(target=lambda rank=rank: (rank.process.wait(), ends.put(rank)), daemon=True).start()
        if rank.process.stdout is not None:
            rank.reader = threading.Thread(target=_read, args=(rank.process.stdout, rank.tail), daemon=True)
            rank.reader.start()
    failure = _first_failure(ranks, ends, stop, stall_timeout_s)
    if failure is None:
        return Ended(next((code for code in map(_code, ranks) if code), 0))
    living = sum(rank.process.returncode is None for rank in ranks)
    if failure.code in (BadInput.exit_code, Refused.exit_code):
        _wait(ranks, REFUSAL_S)
    if all(rank.process.returncode == failure.code for rank in ranks):
        return Ended(failure.code)  # all refuse alike, and rank 0 has told why
    failure.rank.send(signal.SIGKILL)  # if it is still there, it does not answer
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            rank.send(number)
        _wait(ranks, GRACE_S)
    _tell(failure, living)
    refused = failure.code in (BadInput.exit_code, Refused.exit_code)
    return Ended(failure.code, None if refused else failure.rank.number)


def _first_failure(
    ranks: Sequence[Rank], ends: "queue.Queue[Rank]", stop: StopFlag, stall_timeout_s: float
) -> Failure | None:
    """Waits until all ranks have ended well, or one has failed. A request to stop is passed on, once."""
    living = len(ranks)
    asked = False
    deadline = None  # once asked to stop: from the first that does, the others have the stall timeout left
    while living:
        if stop.requested and not asked:
            asked = True
            for rank in ranks:
                rank.send(_signal(stop))
        try:
            ended = ends.get(timeout=LOOK_S)
        except queue.Empty:
            now = time.monotonic()
            if stopped := _stopped(ranks, now, STOPPED_SHARE * stall_timeout_s):
                since = now - (stopped.stopped_since or now)
                return Failure(stopped, 1, f"has been stopped by a signal for {since:.0f} s")
            if deadline is not None and now > deadline:
                late = next(rank for rank in ranks if rank.process.returncode is None)
                return Failure(late, stop.exit_code or 1, f"did not end within {stall_timeout_s:g} s of the others")
            continue
        living -= 1
        if asked and _code(ended) in (0, stop.exit_code):
            deadline = deadline or time.monotonic() + stall_timeout_s
        elif _code(ended):
            return _culprit(ended, ends)
    return None


def _culprit(first: Rank, ends: "queue.Queue[Rank]") -> Failure:
    """Of the ranks that fail together, one ended from outside is the cause; else the first is."""
    time.sleep(SETTLE_S)
    failed = [first]
    while not ends.empty():
        failed.append(ends.get())
    causes = (rank for rank in failed if rank.process.returncode < 0 and rank.process.returncode != -signal.SIGABRT)
    rank = next(causes, first)
    code = rank.process.returncode
    how = f"failed with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
    return Failure(rank, _code(rank), how, tuple(other for other in failed if other is not rank))


def _stopped(ranks: Sequence[Rank], now: float, limit_s: float) -> Rank | None:
    """A rank that a signal has kept from running for longer than the limit."""
    for rank in ranks:
        if rank.process.returncode is not None:
            continue
        try:
            stopped = psutil.Process(rank.process.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            stopped = False
        rank.stopped_since = (rank.stopped_since or now) if stopped else None
        if rank.stopped_since is not None and now - rank.stopped_since > limit_s:
            return rank
    return None


def _read(output: IO[bytes], tail: "deque[str]") -> None:
    while line := output.readline(TAIL_LINE_BYTES):
        tail.append(line.decode(errors="replace").rstrip())


def _wait(ranks: Sequence[Rank], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(max(0.0, deadline - time.monotonic()))


def _tell(failure: Failure, ended: int) -> None:
    also = f"; ended the {ended} other(s)" if ended else ""
    _say(f"{failure.rank.name} {failure.how}{also}")
    shown = []
    for rank, most in [(failure.rank, TAIL_LINES), *((other, TAIL_LINES_OTHERS) for other in failure.others)]:
        if rank.reader is not None:
            rank.reader.join(1.0)
        lines = list(rank.tail)[-most:]
        if lines not in shown:
            shown.append(lines)
            print("".join(f"rank {rank.number}| {line}\n" for line in lines), end="", file=sys.stderr)


def _say(line: str) -> None:
    print(f"launch: {line}", file=sys.stderr, flush=True)


def _signal(stop: StopFlag) -> int:
    return (stop.exit_code or 128 + signal.SIGTERM) - 128


def _code(rank: Rank) -> int:
    code = rank.process.returncode
    return 128 - code if code < 0 else code
