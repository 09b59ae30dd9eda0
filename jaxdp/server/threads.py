"""The threads engine: one process, a thread for each worker on its own devices, the server on the host CPU.

A plain worker asks, loads, computes and pushes in turn. With `pipeline` three threads overlap these: the
parameters of the next step are fetched while one is computed, and gradients leave in the background. Such
parameters lack the worker's own latest push, so staleness rises by one step, that is n updates.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, Queue, SimpleQueue
from typing import Any

import jax

from jaxdp.server.core import Push, Update
from jaxdp.server.messages import Applied, Arrived, Left, Message, PullGrant, PullRequest, Rows
from jaxdp.server.metrics import Spans
from jaxdp.server.shards import LocalShards, Reading
from jaxdp.server.worker import Worker
from jaxdp.stragglers.delays import Delays
from jaxdp.stragglers.injector import Injector

JOIN_S = 10.0
POLL_S = 0.2  # how often a waiting thread looks whether the run is over

Loaded = tuple[PullGrant, Any, Spans]  # with the parameters on the device
Computed = tuple[PullGrant, Any, Spans]  # with the gradient sums on the device


class ThreadsEngine:
    """The engine of `messages.Engine` over threads of this process; the threads start at once, and ask."""

    def __init__(
        self, workers: Sequence[Worker], shards: LocalShards, rows: Rows, delays: Delays, *, pipeline: bool = False
    ) -> None:
        self._shards = shards
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._closing = threading.Event()
        origin_s = time.perf_counter()
        self._members = [
            _Member(index, worker, rows, self._inbox, self._closing, delays, origin_s)
            for index, worker in enumerate(workers)
        ]
        for member in self._members:
            member.start(pipeline)

    @property
    def workers(self) -> int:
        return len(self._members)

    @property
    def parameter_bytes(self) -> int:
        return self._shards.plan.bytes

    def give(self, grant: PullGrant) -> None:
        self._members[grant.worker].mailbox.put(grant)

    def take(self, timeout_s: float) -> Message | None:
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def backlog(self) -> int:
        return self._inbox.qsize()

    def silent_s(self, worker: int) -> float:
        return time.perf_counter() - self._members[worker].beat_s

    def read(self, version: int) -> Reading:
        return self._shards.read(version)

    def apply(self, update: Update, step: float) -> Applied:
        return self._shards.apply(update, step)

    def norm(self, push: Push) -> float:
        return self._shards.norm(push)

    def forget(self, before: int) -> None:
        self._shards.forget(before)

    def save(self, core: dict[str, Any]) -> None:
        """Nothing to do: these shards die with the process only."""

    def state(self, step: int) -> Any:
        return self._shards.state(step)

    def close(self) -> None:
        """Ends the threads; one that hangs is left behind (it is a daemon)."""
        self._closing.set()
        for member in self._members:
            member.mailbox.put(None)
        for member in self._members:
            member.join(JOIN_S)


class _Member:
    """One worker's threads and what they share."""

    def __init__(
        self,
        index: int,
        worker: Worker,
        rows: Rows,
        inbox: "SimpleQueue[Message]",
        closing: threading.Event,
        delays: Delays,
        origin_s: float,
    ) -> None:
        self.index = index
        self.worker = worker
        self.rows = rows
        self.mailbox: SimpleQueue[PullGrant | None] = SimpleQueue()
        self.beat_s = time.perf_counter()
        self._inbox = inbox
        self._closing = closing
        self._injector = Injector(delays, self._sleep, origin_s)
        self._threads: list[threading.Thread] = []

    def start(self, pipeline: bool) -> None:
        if pipeline:
            ready: Queue[Loaded] = Queue()
            done: Queue[Computed] = Queue(1)  # computing runs at most two steps ahead of the pushes
            free = threading.Semaphore()  # one step is loaded ahead of the one that is computed
            self._spawn(self._load_ahead, ready, free)
            self._spawn(self._compute_loaded, ready, free, done)
            self._spawn(self._push_computed, done)
        else:
            self._spawn(self._take_turns)

    def join(self, timeout_s: float) -> None:
        end_s = time.perf_counter() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.perf_counter()))

    def _spawn(self, body: Callable[..., None], *args: Any) -> None:
        def run() -> None:
            try:
                with jax.default_device(self.worker.device):
                    body(*args)
            except Exception as error:
                self._inbox.put(Left(self.index, f"{type(error).__name__}: {error}"))

        thread = threading.Thread(target=run, name=f"worker-{self.index}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _take_turns(self) -> None:
        asked_s = self._ask()
        while (loaded := self._load(asked_s)) is not None:
            computed = self._compute(loaded)
            asked_s = time.perf_counter() if computed and self._push(computed, asks=True) else self._ask()

    def _load_ahead(self, ready: "Queue[Loaded]", free: threading.Semaphore) -> None:
        while not self._closing.is_set():
            if free.acquire(timeout=POLL_S) and (loaded := self._load(self._ask())):
                ready.put(loaded)

    def _compute_loaded(self, ready: "Queue[Loaded]", free: threading.Semaphore, done: "Queue[Computed]") -> None:
        while loaded := self._next(ready):
            free.release()
            if computed := self._compute(loaded):
                done.put(computed)

    def _push_computed(self, done: "Queue[Computed]") -> None:
        while computed := self._next(done):
            self._push(computed, asks=False)

    def _next(self, queue: "Queue[Any]") -> Any:
        """The queue's next element, or None once the run is over."""
        while not self._closing.is_set():
            with contextlib.suppress(Empty):
                return queue.get(timeout=POLL_S)
        return None

    def _ask(self) -> float:
        self._inbox.put(PullRequest(self.index))
        return time.perf_counter()

    def _load(self, asked_s: float) -> Loaded | None:
        """The next step's parameters on the device; None when the run is over."""
        grant = self.mailbox.get()
        if grant is None:
            return None
        start_s = time.perf_counter()
        params = self.worker.load(grant.reading.parts)
        grant.reading.release()
        self._injector.slow_link(self.index, time.perf_counter() - start_s)
        spans = Spans(asked_s)
        spans.pull_s = (start_s, time.perf_counter())
        return grant, params, spans

    def _compute(self, loaded: Loaded) -> Computed | None:
        """The step's gradient, in the time it is meant to take; None if an outage took it."""
        grant, params, spans = loaded
        start_s = self.beat_s = time.perf_counter()
        batch = self.rows(grant.sequence, self.index)
        spans.data_wait_s = time.perf_counter() - start_s
        sums = self.worker.gradient(params, batch)
        spans.target_s, down = self._injector.hold(self.index, grant.sequence, start_s)
        spans.compute_s = (start_s, time.perf_counter())
        if down:
            self._inbox.put(Left(self.index, None))
            self._injector.recover(self.index)
            return None
        return grant, sums, spans

    def _push(self, computed: Computed, asks: bool) -> bool:
        grant, sums, spans = computed
        start_s = time.perf_counter()
        payload = self.worker.to_host(sums)
        self._injector.slow_link(self.index, time.perf_counter() - start_s)
        spans.push_s = (start_s, time.perf_counter())
        self._inbox.put(Arrived(self.index, grant.sequence, grant.version, payload, spans, asks))
        return True

    def _sleep(self, seconds: float) -> bool:
        self.beat_s = time.perf_counter()
        return self._closing.wait(seconds)
