"""One parameter server and its workers in virtual time: an event loop around the real state machine.

Time is integer nanoseconds. A worker computes, its push queues for the server's link, then for the serial
application; the acknowledgement carries its next pull, so the re-pull comes before any push queued at that
instant. FIFO queues are kept as the time at which they are free again, and applications end in the order
they are queued, so that an update costs one heap event, or a few with a shared link or unequal links.

S server shards see the same messages at the same times: they act as one server with S times the bandwidth
that applies S times as fast.
"""

import heapq
from collections import deque
from typing import Any, Protocol

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.server.core import Reply, Server, Update
from jaxdp.stragglers import draws
from jaxdp.stragglers.delays import MAX_RETRIES, Delays
from jaxdp.timeline import SERVER, Timeline
from sims.network import SharedLink, bytes_per_second, transfer_ns, worker_bandwidths
from sims.scenario import Scenario
from sims.strategy import Strategy

NS = 1e-9
LONGEST_NS = 2**62  # of a step, so that sums of a few fit in 64 bits
DRAWN_STEPS = 256  # a worker's steps drawn at once

# event kinds; at one instant links deliver, then workers leave and join, then pushes arrive
PULL_SENT, PUSH_SENT, RECEIVED, LEAVE, JOIN, PUSH = range(6)


class Learner(Protocol):
    """Trains for real while time is virtual."""

    def pulled(self, worker: int, sequence: int, version: int) -> None: ...

    def gradient(self, worker: int, sequence: int) -> Any: ...

    def apply(self, update: Update, now_s: float) -> None: ...


class ServerSimulation:
    def __init__(
        self, scenario: Scenario, strategy: Strategy, delays: Delays, timeline: Timeline | None, learner: Learner | None
    ) -> None:
        n, shards = scenario.workers, strategy.server_shards
        self.server = Server(strategy.server_policy, range(n), strategy.correction)
        self.delays, self.timeline, self.learner = delays, timeline, learner
        self.timed, self.failing = delays.timed, delays.failing
        self.base_s = scenario.base_s(strategy)
        self.tokens = max(1, scenario.tokens_per_step // n)

        self.latency_ns = round(scenario.latency_s / NS)
        self.apply_ns = round(scenario.apply_s / shards / NS)
        self.constant_apply = scenario.apply_distribution == "constant"
        self.apply_draws: list[int] = []  # the next ones last
        self.queued = 0
        server_bandwidth = bytes_per_second(scenario.server_nic_gbps) * shards
        self.server_ns = transfer_ns(scenario.message_bytes, server_bandwidth)
        links = worker_bandwidths(scenario, delays)
        self.worker_ns = [max(self.server_ns, transfer_ns(scenario.message_bytes, link)) for link in links]
        self.equal_links = len(set(self.worker_ns)) == 1  # then pushes are received in the order they arrive
        shared = scenario.queue == "shared" and self.server_ns > 0
        self.links = {kind: SharedLink(self.server_ns) for kind in (PULL_SENT, PUSH_SENT)} if shared else {}
        self.link_turn = {PULL_SENT: 0, PUSH_SENT: 0}
        self.out_free_ns = self.in_free_ns = self.apply_free_ns = 0

        self.events: list[tuple[int, int, int, int]] = []  # (time, kind: the priority, sequence, worker)
        self.count = 0
        self.applying: deque[tuple[int, int, int]] = deque()  # (end, worker, received), in order of ends
        self.now_ns = self.pushes = self.applied = self.updates = self.waited_ns = self.wasted_ns = 0
        self.staleness: dict[int, int] = {}
        self.stale_sum, self.stale_count = [0] * n, [0] * n

        self.start, self.end, self.busy_ns = [0] * n, [0] * n, [0] * n
        self.step_ns, self.steps_begun = [0] * n, [0] * n
        self.sequence, self.version, self.retries = [0] * n, [0] * n, [0] * n
        self.first_drawn = [-DRAWN_STEPS] * n
        self.drawn: list[Any] = [()] * n
        for worker in range(n):
            self._pull(worker, 0)

    def run(self, pushes: int) -> None:
        """Goes on until that many pushes have been taken by the server."""
        events, applying, pop = self.events, self.applying, heapq.heappop
        while self.pushes < pushes:
            if applying and (not events or applying[0][0] <= events[0][0]):
                now, worker, received = applying.popleft()
                self.now_ns = now
                self.waited_ns += now - received
                self._apply(worker, now)
                continue
            now, kind, _, worker = pop(events)
            if kind == PUSH:
                self._push_arrives(worker, now)
            elif kind == RECEIVED:
                self._queue(worker, now)
            elif kind == LEAVE:
                self._follow(self.server.leave(worker), now)
            elif kind == JOIN:
                self._follow(self.server.join(worker), now)
                self._pull(worker, now)
            elif worker == self.link_turn[kind]:  # else another transfer began since: rescheduled
                self._transfer_ends(kind, now)

    @property
    def plain(self) -> bool:
        """Whether each push is an update and all queues are FIFO, so that an update is known when it is sent."""
        policy = self.server.policy
        unseen = self.timeline is None and self.learner is None
        orderly = self.equal_links and not self.links and not self.failing and not self.timed
        return policy.immediate and policy.bound is None and orderly and unseen and self.constant_apply

    def _at(self, now: int, kind: int, worker: int) -> None:
        self.count += 1
        heapq.heappush(self.events, (now, kind, self.count, worker))

    def _pull(self, worker: int, now: int) -> None:
        """Asks for parameters; once granted they queue for the server's link, and then the worker computes."""
        version = self.server.pull(worker)
        if version is None:
            return
        self.version[worker] = version
        self.sequence[worker] = sequence = self.server.sequences[worker]
        if self.learner:
            self.learner.pulled(worker, sequence, version)
        if self.links:
            self._share(PULL_SENT, worker, now)
            return
        begun = self.out_free_ns if self.out_free_ns > now else now
        self.out_free_ns = begun + self.server_ns
        arrived = begun + self.worker_ns[worker] + self.latency_ns
        if self.timeline and arrived > now:
            self.timeline.span(worker, "NIC in", f"pull v{version}", now * NS, arrived * NS)
        self._compute(worker, arrived)

    def _compute(self, worker: int, now: int) -> None:
        duration = self.duration(worker, now)
        self.start[worker] = now
        self.end[worker] = end = now + duration
        if self.failing and self._fails(worker, now, end):
            return
        self.busy_ns[worker] += duration
        self.step_ns[worker] += duration
        self.steps_begun[worker] += 1
        if self.timeline:
            self.timeline.span(worker, "compute", f"step {self.sequence[worker]}", now * NS, end * NS)
        self.count += 1
        heapq.heappush(self.events, (end + self.latency_ns, PUSH, self.count, worker))

    def duration(self, worker: int, now: int) -> int:
        """Nanoseconds of the worker's step: drawn in advance, unless it depends on the time."""
        place = self.sequence[worker] - self.first_drawn[worker]
        if not 0 <= place < DRAWN_STEPS:
            first = self.first_drawn[worker] = self.sequence[worker]
            steps = np.arange(first, first + DRAWN_STEPS)
            sums, factors = self.delays.block(np.array([worker]), steps, self.base_s[worker])
            if self.timed:
                self.drawn[worker] = list(zip(sums[:, 0].tolist(), factors[:, 0].tolist(), strict=True))
            else:
                nanoseconds = np.rint(sums[:, 0] * factors[:, 0] / NS)
                if not nanoseconds.max() < LONGEST_NS:
                    raise BadInput(f"delays: a step of worker {worker} takes longer than 146 years; shorten them")
                self.drawn[worker] = nanoseconds.astype(np.int64).tolist()
            place = 0
        if self.timed:
            sum_s, factor = self.drawn[worker][place]
            return round(self.delays.at_time(worker, sum_s, factor, now * NS) / NS)
        return self.drawn[worker][place]

    def _fails(self, worker: int, now: int, end: int) -> bool:
        """Whether an outage undoes the step; if so the worker leaves, and comes back when it is over."""
        outage = self.delays.next_outage(worker, now * NS)
        if end * NS <= outage.start_s:
            self.retries[worker] = 0
            return False
        self.retries[worker] += 1
        if self.retries[worker] > MAX_RETRIES:
            raise BadInput(f"fail: worker {worker} never survives a step of {(end - now) * NS:.3g} s; raise mtbf_s")
        down = max(now, round(outage.start_s / NS))
        self.end[worker] = down
        self.busy_ns[worker] += down - now
        self.wasted_ns += down - now
        self._at(down, LEAVE, worker)
        self._at(max(down + 1, round(outage.end_s / NS)), JOIN, worker)
        if self.timeline:
            self.timeline.span(worker, "compute", "lost", now * NS, down * NS)
        return True

    def _push_arrives(self, worker: int, now: int) -> None:
        """A push reaches the server's link."""
        if self.links:
            self._share(PUSH_SENT, worker, now)
            return
        begun = self.in_free_ns if self.in_free_ns > now else now
        self.in_free_ns = begun + self.server_ns
        received = begun + self.worker_ns[worker]
        if self.equal_links or received == now:
            self._queue(worker, received)
        else:
            self._at(received, RECEIVED, worker)

    def _queue(self, worker: int, received: int) -> None:
        """A push is received whole and waits for its application."""
        free = self.apply_free_ns
        apply_ns = self.apply_ns if self.constant_apply else self._drawn_apply_ns()
        self.apply_free_ns = end = (free if free > received else received) + apply_ns
        self.applying.append((end, worker, received))
        if self.timeline:
            sent = self.end[worker] * NS
            self.timeline.span(worker, "NIC out", f"push {self.sequence[worker]}", sent, received * NS)
            self.timeline.span(SERVER, "apply", f"worker {worker}", (end - apply_ns) * NS, end * NS)
            self.timeline.flow(worker, received * NS, (end - apply_ns) * NS)
            self.timeline.counter("queue", received * NS, len(self.applying))

    def _drawn_apply_ns(self) -> int:
        """The next exponential application, drawn by its number."""
        if not self.apply_draws:
            numbers = np.arange(self.queued, self.queued + DRAWN_STEPS)
            means = draws.exponential(self.delays.seed, "apply", 0, numbers)[::-1, 0]
            self.apply_draws = np.rint(means * self.apply_ns).astype(np.int64).tolist()
            self.queued += DRAWN_STEPS
        return self.apply_draws.pop()

    def _apply(self, worker: int, now: int) -> None:
        """The server takes a push; its acknowledgement carries the worker's next pull."""
        self.pushes += 1
        sequence = self.sequence[worker]
        payload = self.learner.gradient(worker, sequence) if self.learner else None
        reply = self.server.push(worker, sequence, self.version[worker], self.tokens, payload)
        if reply[0] == "dropped":
            self.wasted_ns += self.end[worker] - self.start[worker]
        self._pull_after(worker, reply, now)

    def _pull_after(self, worker: int, reply: Reply, now: int) -> None:
        update = reply[1]
        if update is not None:
            self._updated(update, now)
        self._pull(worker, now)
        for released in reply[2]:
            self._pull(released, now)

    def _follow(self, reply: Reply, now: int) -> None:
        self.now_ns = now
        if reply.update is not None:
            self._updated(reply.update, now)
        for released in reply.released:
            self._pull(released, now)

    def _updated(self, update: Update, now: int) -> None:
        histogram = self.staleness
        for push, stale in zip(update[2], update[3], strict=True):
            histogram[stale] = histogram.get(stale, 0) + 1
            self.stale_sum[push[0]] += stale
            self.stale_count[push[0]] += 1
        self.applied += len(update[2])
        self.updates += 1
        if self.learner:
            self.learner.apply(update, now * NS)
        if self.timeline:
            self.timeline.counter("staleness", now * NS, sum(update.staleness) / len(update.staleness))

    def _share(self, kind: int, worker: int, now: int) -> None:
        self.links[kind].begin(now, worker)
        self._reschedule(kind)

    def _transfer_ends(self, kind: int, now: int) -> None:
        """A transfer over a shared link ends; a slower link of the worker's own may delay its arrival."""
        begun, worker = self.links[kind].end(now)
        arrived = max(now, begun + self.worker_ns[worker])
        self._reschedule(kind)
        if kind == PUSH_SENT:
            self._at(arrived, RECEIVED, worker)
            return
        if self.timeline:
            name = f"pull v{self.version[worker]}"
            self.timeline.span(worker, "NIC in", name, begun * NS, (arrived + self.latency_ns) * NS)
        self._compute(worker, arrived + self.latency_ns)

    def _reschedule(self, kind: int) -> None:
        self.link_turn[kind] += 1
        end = self.links[kind].next_end_ns()
        if end is not None:
            self._at(end, kind, self.link_turn[kind])
