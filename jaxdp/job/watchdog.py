"""Ends a run of several processes when one of its ranks is dead or stuck, and names that rank (no JAX at the top).

Every rank beats in the key-value store of `jax.distributed`, which lives in rank 0. Rank 0 reads all beats and
leaves a verdict about a rank whose beats have stopped; the others look for a verdict, and pass one on rank 0
themselves when its store has stopped answering. A beat needs no collective and goes on while a step computes or XLA
compiles, so only a process that does not run at all falls silent. Works the same under any launcher.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

DEFAULT_STALL_TIMEOUT_S = 60.0
MIN_STALL_TIMEOUT_S = 2.0
# JAX ends every process, by an abort that names no host, when its own heartbeats are late, and it may call half of
# its limit late. `jax.distributed.initialize(heartbeat_timeout_seconds=...)` gets this many of our limits.
JAX_HEARTBEAT_LIMITS = 3
BEATS_A_LIMIT = 20
BEATS_TO_END = 5  # from the verdict until the last process has left
QUIET_LIMITS = 10  # without progress of any rank, until that is told
FOLDER = "jaxdp/watchdog"
DONE = "done"


class Store(Protocol):
    """The part of JAX's `DistributedRuntimeClient` that is used. Calls block while rank 0 is stopped."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...
    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]: ...


@dataclass
class Watch:
    """What one rank knows. `heard` is when each rank last gave a sign; only rank 0 keeps that up for all."""

    store: Store
    rank: int
    ranks: int
    limit_s: float
    host: str = field(default_factory=socket.gethostname)
    beats: int = 0
    steps: int = 0
    doing: str = "starting"
    ended: threading.Event = field(default_factory=threading.Event)
    beating: threading.Thread | None = None
    latest: dict[int, str] = field(default_factory=dict)  # "beats steps host doing", or DONE
    heard: dict[int, float] = field(default_factory=dict)
    moved: float = field(default_factory=time.monotonic)  # when any rank last made progress

    @property
    def interval_s(self) -> float:
        return min(1.0, self.limit_s / BEATS_A_LIMIT)

    @property
    def silence_s(self) -> float:
        """How long a rank may be silent, so that within the limit all is over."""
        return self.limit_s - BEATS_TO_END * self.interval_s


_watch: Watch | None = None


def start(process_id: int, processes: int, stall_timeout_s: float | None, store: Store | None = None) -> None:
    """Starts this rank's watch, once `jax.distributed` has joined; `stall_timeout_s` None or 0: no watch.

    From then on this process ends with exit code 1, and a line on stderr, within so long of a rank's last sign.
    """
    global _watch
    if processes == 1 or not stall_timeout_s:
        return
    _watch = Watch(store or jax_store(), process_id, processes, stall_timeout_s)
    _watch.heard = dict.fromkeys(range(processes), time.monotonic())
    _watch.beating = threading.Thread(target=_beat, args=(_watch,), name="heartbeat", daemon=True)
    _watch.beating.start()
    threading.Thread(target=_judge, args=(_watch,), name="watchdog", daemon=True).start()


def progress(doing: str) -> None:
    """Says that this rank has got further, and what it does now ("compiling", "step 40"); free to call often."""
    if _watch:
        _watch.steps, _watch.doing = _watch.steps + 1, doing


def stop() -> None:
    """Ends the watch of a rank that is done; call before `jax.distributed.shutdown`."""
    global _watch
    if _watch and _watch.beating:
        _watch.ended.set()
        _watch.beating.join(_watch.limit_s)
    _watch = None


def jax_store() -> Any:
    """The job's key-value store, by a private name: JAX offers it to no one else (so named in 0.10 and 0.12)."""
    from jax._src.distributed import global_state

    return global_state.client


def _beat(own: Watch) -> None:
    """Beats and listens. A call may block for long or fail: that is for `_judge`, which goes by the clock."""
    while not own.ended.is_set():
        own.beats += 1
        _put(own, f"beat/{own.rank}", f"{own.beats} {own.steps} {own.host} {own.doing}")
        verdicts = []
        with suppress(Exception):  # no answer: rank 0 has not been heard
            if own.rank == 0 or 0 not in own.latest:  # the others only need to know rank 0's host
                _listen(own, own.store.key_value_dir_get(f"{FOLDER}/beat/"))
            verdicts = own.store.key_value_dir_get(f"{FOLDER}/verdict/")
            own.heard[0] = time.monotonic()
        if verdicts and own.rank != 0:  # rank 0 has passed it, and is waiting for the others to read it
            _end(own, verdicts[0][1])
        own.ended.wait(own.interval_s)
    _put(own, f"beat/{own.rank}", DONE)


def _listen(own: Watch, beats: list[tuple[str, str]]) -> None:
    """Takes up what is new in the beats of all ranks."""
    now = time.monotonic()
    for key, value in beats:
        rank = int(key.rpartition("/")[2])
        before = own.latest.get(rank, "")
        if value != before or value == DONE:
            own.latest[rank], own.heard[rank] = value, now
            if value.split()[1:2] != before.split()[1:2]:
                own.moved = now


def _judge(own: Watch) -> None:
    """Passes the verdict on a silent rank; time in which this process itself did not run does not count."""
    before = time.monotonic()
    while not own.ended.wait(own.interval_s):
        now = time.monotonic()
        if now - before > own.limit_s / 2:  # this process was stopped, and perhaps the whole job with it
            own.heard = dict.fromkeys(own.heard, now)
            own.moved = now
        before = now
        watched = own.heard if own.rank == 0 else (0,)
        silent = next((rank for rank in watched if now - own.heard[rank] > own.silence_s), None)
        if silent is not None:
            who, silent_s = f"rank {silent} on {_beat_of(own, silent)[2]}", now - own.heard[silent]
            line = f"{who} gave no sign for {silent_s:.1f} s: it is dead, stopped or cut off"
            if silent != 0:
                _put(own, "verdict/first", line)
            _end(own, line)
        if own.rank == 0 and now - own.moved > QUIET_LIMITS * own.limit_s:
            _tell(f"all ranks answer, but none has got further for {now - own.moved:.0f} s; {_behind(own)}")
            own.moved = now


def _beat_of(own: Watch, rank: int) -> list[str]:
    """Beats, steps, host and doing of a rank as last heard."""
    found = own.latest.get(rank, "").split(" ", 3)
    return found if len(found) == 4 else ["0", "0", "an unknown host", "nothing known"]


def _behind(own: Watch) -> str:
    """Which rank has got least far, and what it was doing."""
    beats = {rank: _beat_of(own, rank) for rank, value in own.latest.items() if value != DONE}
    rank, (_, _, host, doing) = min(beats.items(), key=lambda item: int(item[1][1]))
    return f"rank {rank} on {host} is furthest behind: {doing}"


def _end(own: Watch, line: str) -> None:
    _tell(f"{line}; ending the run")
    if own.rank == 0:
        # It takes the store along: the others get the time to read the verdict.
        time.sleep((BEATS_TO_END - 2) * own.interval_s)
    os._exit(1)


def _put(own: Watch, name: str, value: str) -> None:
    with suppress(Exception):  # rank 0 is gone, which `_judge` notices, or a verdict has been passed before
        own.store.key_value_set(f"{FOLDER}/{name}", value, allow_overwrite=name != "verdict/first")


def _tell(line: str) -> None:
    with suppress(OSError):  # whoever read it may be gone
        os.write(2, f"watchdog: {line}\n".encode())  # past sys.stderr, whose lock a stuck thread may hold
