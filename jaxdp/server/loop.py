"""The server's loop: one thread owns the state machine, takes the workers' messages and applies the updates.

It runs in the caller's thread and only while the caller iterates. Meanwhile the state stands still, so
that a checkpoint or an evaluation between two records is consistent; the workers finish the step they are
at and wait. All clocks are monotonic.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.records import StepRecord
from jaxdp.server.core import Push, Reply, Server, Update
from jaxdp.server.messages import Applied, Arrived, Engine, Left, Message, PullGrant, PullRequest, ShardsLost
from jaxdp.server.metrics import Measurements, Spans
from jaxdp.timeline import SERVER, Span
from jaxdp.workload import units_per_batch

TICK_S = 0.2  # between two looks at the deadlines

log = logging.getLogger(__name__)


Record = StepRecord | Span


class Loop:
    """Drives an engine's workers by a state machine. `spans` adds a timeline's spans to the records."""

    def __init__(self, config: Config, core: Server, engine: Engine, *, spans: bool = False) -> None:
        self.core = core
        self.engine = engine
        self.spans = spans
        self.deadline_s = config.server.deadline_s
        self.batch_tokens = units_per_batch(config)
        self.push_tokens = self.batch_tokens // engine.workers
        self.metrics = Measurements(engine.workers, engine.parameter_bytes)
        self._lost: dict[int, str] = {}  # worker given up -> why
        self._served_s = 0.0
        self._given: list[list[tuple[PullGrant, float]]] = [[] for _ in range(engine.workers)]  # with its time
        self._arrived: dict[tuple[int, int], Spans] = {}  # pushes whose update is not made yet
        self._save_every = config.server.snapshot_every
        core.join(*range(engine.workers))
        engine.save(core.snapshot())

    @property
    def step(self) -> float:
        """Tokens consumed, in global batches."""
        return self.core.tokens / self.batch_tokens

    def serve(self, until_step: int) -> Iterator[Record]:
        """Serves until the tokens of `until_step` global batches are consumed; yields a record for every push.

        Raises `JaxdpError` when no worker is left.
        """
        while self.core.tokens < until_step * self.batch_tokens:
            try:
                if (message := self._wait()) is not None:
                    yield from self._handle(message)
                yield from self._dismiss_the_silent()
            except ShardsLost as lost:
                yield from self._start_over(lost.core)

    def settle(self) -> Iterator[Record]:
        """Waits until every worker has finished the step it was given, and only then lets them all go on.

        A measurement that starts after it counts no work that was done before.
        """
        messages: list[Message] = []
        heard: Counter[int] = Counter()
        try:
            while any(len(given) > heard[worker] for worker, given in enumerate(self._given)):
                if (message := self._wait()) is not None:
                    messages.append(message)
                    heard[message.worker] += isinstance(message, Arrived | Left)
                yield from self._dismiss_the_silent()
            while messages:
                yield from self._handle(messages.pop(0))
        except ShardsLost as lost:
            yield from self._start_over(lost.core)
            for message in messages:
                yield from self._handle(message)

    def _wait(self) -> Message | None:
        """The next message, or None after a tick."""
        if len(self._lost) == self.engine.workers:
            raise JaxdpError(f"no worker is left: {'; '.join(f'worker {w}: {why}' for w, why in self._lost.items())}")
        start_s = time.perf_counter()
        message = self.engine.take(TICK_S)
        # A pause of the whole process is no worker's fault: it counts as one tick.
        self._served_s += min(time.perf_counter() - start_s, 2 * TICK_S)
        return message

    def _handle(self, message: Message) -> Iterator[Record]:
        if isinstance(message, Arrived):
            yield from self._take_push(message)
        elif isinstance(message, PullRequest):
            yield from self._let_in(message.worker)
            self._grant(message.worker)
        else:
            yield from self._dismiss(message.worker, message.error)

    def _take_push(self, message: Arrived) -> Iterator[Record]:
        worker, spans = message.worker, message.spans
        self.metrics.arrived(worker, spans, self.engine.backlog())
        if self.spans:
            yield from _worker_spans(message)
        push = Push(worker, message.sequence, message.version, self.push_tokens, message.payload)
        given = self._given[worker]
        if given and (given[0][0].sequence, given[0][0].version) == push[1:3]:
            given.pop(0)
            self._arrived[worker, push.sequence] = spans
            reply = self.core.push(*push)
            if reply.status == "dropped":
                yield self._drop(push)
            yield from self._follow(reply)
        else:  # from before the worker was given up
            yield self._drop(push)
        if message.asks:
            yield from self._let_in(worker)
            self._grant(worker)

    def _drop(self, push: Push) -> StepRecord:
        self.metrics.dropped += 1
        self._arrived.setdefault((push.worker, push.sequence), Spans(0.0))
        applied = Applied(self.engine.norm(push), 0.0)
        return self._record(push, self.core.version - push.version, applied, False)

    def _follow(self, reply: Reply) -> Iterator[Record]:
        """Applies the reply's update; then the workers it released may go on with it."""
        if reply.update:
            yield from self._apply(reply.update)
        for worker in reply.released:
            self._grant(worker)

    def _apply(self, update: Update) -> Iterator[Record]:
        start_s = time.perf_counter()
        applied = self.engine.apply(update, update.tokens / self.batch_tokens)
        end_s = time.perf_counter()
        self.metrics.applied(update.staleness, end_s - start_s)
        in_use = [grant.version for given in self._given for grant, _ in given]
        self.engine.forget(min(in_use, default=update.version))
        if self.spans:
            yield Span(SERVER, "apply", f"version {update.version}", start_s, end_s)
        for push, staleness in zip(update.pushes, update.staleness, strict=True):
            yield self._record(push, staleness, applied, True)
        if update.version % self._save_every == 0:
            self.engine.save(self.core.snapshot())

    def _record(self, push: Push, staleness: int, applied: Applied, counted: bool) -> StepRecord:
        spans = self._arrived.pop((push.worker, push.sequence))
        return StepRecord(
            step=max(0, self.core.tokens - 1) // self.batch_tokens,
            tokens=self.core.tokens,
            loss=push.payload.loss / max(push.payload.tokens, 1.0),
            grad_norm=applied.grad_norm,
            step_time_s=spans.push_s[1] - spans.request_s,
            data_wait_s=spans.data_wait_s,
            learning_rate=applied.learning_rate,
            worker=push.worker,
            sequence=push.sequence,
            version=push.version,
            staleness=staleness,
            applied=counted,
        )

    def _grant(self, worker: int) -> None:
        """Gives a worker its next step if it may start now; otherwise a later reply releases it."""
        ahead = len(self._given[worker])
        version = self.core.pull(worker, ahead)
        if version is not None:
            reading = self.engine.read(version)
            grant = PullGrant(worker, self.core.sequences[worker] + ahead, version, reading)
            self._given[worker].append((grant, self._served_s))
            self.metrics.pulls += 1
            self.engine.give(grant)

    def _let_in(self, worker: int) -> Iterator[Record]:
        if worker not in self.core.sequences:
            self._lost.pop(worker, None)
            if self.core.version:
                log.info("worker %d joins at version %d", worker, self.core.version)
            yield from self._follow(self.core.join(worker))

    def _dismiss(self, worker: int, error: str | None) -> Iterator[Record]:
        if error is not None:
            log.warning("worker %d is given up (%s); the others go on", worker, error)
            self._lost[worker] = error
            self.metrics.lost_workers += 1
        self.metrics.lost_steps += len(self._given[worker])
        self._given[worker].clear()
        yield from self._follow(self.core.leave(worker))

    def _start_over(self, saved: dict[str, Any]) -> Iterator[Record]:
        """Goes on from the shards' last saved state. What is being computed is dropped when it comes."""
        present, seen = list(self.core.sequences), self.core.version
        self.metrics.lost_steps += sum(len(given) for given in self._given)
        idle = [worker for worker in present if not self._given[worker]]
        for given in self._given:
            given.clear()
        self._arrived.clear()
        self.core = Server.restore(self.core.policy, saved, self.core.correction, seen_version=seen)
        log.warning("server shards were lost and restored: %d updates undone", self.core.lost_versions)
        yield from self._follow(self.core.join(*present))
        for worker in idle:
            self._grant(worker)

    def _dismiss_the_silent(self) -> Iterator[Record]:
        for worker, given in enumerate(self._given):
            overdue = given and self._served_s - given[0][1] > self.deadline_s
            if overdue and self.engine.silent_s(worker) > self.deadline_s:
                yield from self._dismiss(worker, f"silent for over {self.deadline_s:g} s")


def _worker_spans(message: Arrived) -> Iterator[Span]:
    worker, spans = message.worker, message.spans
    yield Span(worker, "NIC in", f"pull {message.version}", *spans.pull_s)
    yield Span(worker, "compute", f"step {message.sequence}", *spans.compute_s)
    yield Span(worker, "NIC out", f"push {message.sequence}", *spans.push_s)
