"""The server's state machine against a slow model written from the policies' definitions alone."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jaxdp.config import ServerConfig, build
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.policies import SERVER_POLICIES, Policy, learning_rate_scale, make_policy
from jaxdp.server.core import Reply, Server

CASES: dict[str, Policy] = {
    "async": make_policy("async"),
    "ssp(0)": make_policy("ssp", bound=0),
    "ssp(1)": make_policy("ssp", bound=1),
    "ssp(3)": make_policy("ssp(bound=3)"),
    "sync": make_policy("sync"),
    "backup(0)": make_policy("backup", backups=0),
    "backup(1)": make_policy("backup", backups=1),
    "backup(2)": make_policy("backup(backups=2)"),
    "softsync(1)": make_policy("softsync", group=1),
    "softsync(3)": make_policy("softsync", group=3),
    "bounded groups": Policy(bound=2, needed=lambda workers: 2),
}
BARRIER = {"ssp(0)": 0, "sync": 0, "backup(0)": 0, "backup(1)": 1, "backup(2)": 2}  # -> backups
LEAD = {"ssp(1)": 1, "ssp(3)": 3, "bounded groups": 2}
GROUP = {"softsync(3)": 3, "bounded groups": 2}


class Model:
    """Histories and searches instead of counters; knows the policies by their words only."""

    def __init__(self, case: str, workers: int) -> None:
        self.case = case
        self.updates: list[list[tuple[int, int, int]]] = []  # each of (worker, sequence, version)
        self.held: list[tuple[int, int, int]] = []
        self.next: dict[int, int] = dict.fromkeys(range(workers), 0)
        self.present = set(range(workers))

    @property
    def version(self) -> int:
        return len(self.updates)

    def may_start(self, worker: int) -> bool:
        if self.case in BARRIER:
            return (worker, self.version) not in [(w, s) for w, s, _ in self.held]
        if self.case in LEAD:
            return self.next[worker] - min(self.next[w] for w in self.present) <= LEAD[self.case]
        return True

    def sequence(self, worker: int) -> int:
        return self.version if self.case in BARRIER else self.next[worker]

    def arrive(self, worker: int, sequence: int, version: int) -> str:
        if worker not in self.present:
            return "dropped"
        if sequence < self.next[worker]:
            return "duplicate"
        self.next[worker] = sequence + 1
        if self.case in BARRIER and version != self.version:
            return "dropped"
        self.held.append((worker, sequence, version))
        return "applied" if self.settle() else "waiting"

    def settle(self) -> bool:
        if self.case in BARRIER:
            there = {w for w, _, _ in self.held} & self.present
            full = bool(there) and len(there) >= len(self.present) - BARRIER[self.case]
        else:
            full = bool(self.present) and len(self.held) >= GROUP.get(self.case, 1)
        if full:
            self.updates.append(sorted(self.held))
            self.held = []
        return full

    def leave(self, worker: int) -> None:
        self.present.discard(worker)
        self.settle()

    def join(self, *workers: int) -> None:
        coming = set(workers) - self.present
        others = [self.next[w] for w in self.present]
        for worker in coming:
            own = self.next.get(worker, 0)
            if self.case in LEAD and others:
                own = max(own, min(others))
            if self.case in BARRIER:
                own = max(own, self.version)
            self.next[worker] = own
        self.present |= coming
        self.settle()


class Interleavings(RuleBasedStateMachine):
    """Random pulls, pushes, repeats, deaths, returns and restarts."""

    case = "async"

    @initialize(workers=st.integers(1, 5))
    def start(self, workers: int) -> None:
        self.policy = CASES[self.case]
        self.server = Server(self.policy, range(workers))
        self.model = Model(self.case, workers)
        self.computing: dict[int, tuple[int, int]] = {}  # worker -> (sequence, version)
        self.sent: list[tuple[int, int, int]] = []
        self.waiting: set[int] = set()
        self.applied: list[tuple[int, int]] = []
        self.tokens = 0

    def check(self, reply: Reply, before: int) -> None:
        """The update and the releases that the model expects of what just happened."""
        made = self.model.updates[before:]
        assert [self.triples(reply)] == made if made else reply.update is None
        if reply.update:
            assert reply.update.version == self.model.version
            assert reply.update.staleness == tuple(before - version for _, _, version in made[0])
            assert reply.update.tokens == self.tokens
            self.tokens += sum(push.tokens for push in reply.update.pushes)
            self.applied += [(push.worker, push.sequence) for push in reply.update.pushes]
        free = {worker for worker in self.waiting if self.model.may_start(worker)}
        assert set(reply.released) == free
        assert len(reply.released) == len(free)
        self.waiting -= free

    @staticmethod
    def triples(reply: Reply) -> list[tuple[int, int, int]]:
        assert reply.update is not None
        return [(push.worker, push.sequence, push.version) for push in reply.update.pushes]

    @rule(worker=st.integers(0, 6))
    def pull(self, worker: int) -> None:
        if worker not in self.model.present:
            with pytest.raises(JaxdpError, match="join"):
                self.server.pull(worker)
        elif worker not in self.computing:
            version = self.server.pull(worker)
            assert (version is not None) == self.model.may_start(worker)
            if version is None:
                self.waiting.add(worker)
            else:
                self.waiting.discard(worker)
                assert version == self.model.version
                assert self.server.sequences[worker] == self.model.sequence(worker)
                if self.case in BARRIER:
                    self.model.next[worker] = version
                self.computing[worker] = (self.server.sequences[worker], version)

    @precondition(lambda self: self.computing)
    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.computing)))
        sequence, version = self.computing.pop(worker)
        self.sent.append((worker, sequence, version))
        self.deliver(worker, sequence, version)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def push_again(self, data: st.DataObject) -> None:
        worker, sequence, version = data.draw(st.sampled_from(self.sent))
        applied = len(self.applied)
        status = self.deliver(worker, sequence, version)
        if worker in self.model.present:
            assert status == "duplicate"
        assert len(self.applied) == applied

    def deliver(self, worker: int, sequence: int, version: int) -> str:
        before = self.model.version
        expected = self.model.arrive(worker, sequence, version)
        reply = self.server.push(worker, sequence, version, tokens=worker + 1)
        assert reply.status == expected
        self.check(reply, before)
        return reply.status

    @rule(worker=st.integers(0, 6))
    def die(self, worker: int) -> None:
        before = self.model.version
        self.computing.pop(worker, None)
        self.waiting.discard(worker)
        self.model.leave(worker)
        self.check(self.server.leave(worker), before)

    @rule(workers=st.lists(st.integers(0, 6), min_size=1, unique=True))
    def join(self, workers: list[int]) -> None:
        before = self.model.version
        self.model.join(*workers)
        self.check(self.server.join(*workers), before)
        assert all(self.server.sequences[worker] == self.model.next[worker] for worker in workers)

    @rule()
    def restart(self) -> None:
        """The server goes down and comes back from its snapshot: held pushes and all presence are lost."""
        state = json.loads(json.dumps(self.server.snapshot()))
        self.server = Server.restore(self.policy, state, seen_version=self.model.version)
        for worker, sequence, _ in reversed(self.model.held):
            self.model.next[worker] = min(self.model.next[worker], sequence)
            self.sent.remove((worker, sequence, self.version_of(worker, sequence)))
        self.model.held, self.computing, self.waiting = [], {}, set()
        present, self.model.present = self.model.present, set()
        if present:
            self.join(sorted(present))

    def version_of(self, worker: int, sequence: int) -> int:
        return next(v for w, s, v in self.sent if (w, s) == (worker, sequence))

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "server"):
            assert len(set(self.applied)) == len(self.applied), "a push was applied twice"
            assert self.server.version == len(self.model.updates)
            assert self.server.applied == len(self.applied)
            assert self.server.tokens == self.tokens
            assert self.server.held == len(self.model.held)

    @invariant()
    def somebody_can_go_on(self) -> None:
        if hasattr(self, "server") and self.model.present:
            idle = self.model.present - set(self.computing)
            assert self.computing or any(self.model.may_start(worker) for worker in idle)


@pytest.mark.parametrize("case", CASES)
def test_any_interleaving_is_decided_as_the_policy_says(case: str) -> None:
    machine: Any = type("Case", (Interleavings,), {"case": case}).TestCase
    machine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    machine("runTest").runTest()


def test_a_worker_never_leads_the_slowest_by_more_than_the_bound() -> None:
    server = Server(make_policy("ssp", bound=2), range(3))
    for step in range(3):
        assert server.pull(0) == step
        server.push(0, step, step)
    assert server.pull(0) is None
    assert server.pull(0, ahead=1) is None
    assert server.push(1, 0, 0).released == ()
    assert server.push(2, 0, 0).released == ()  # the prefetch needs one step more
    assert server.pull(0) == 5
    assert server.pull(0, ahead=1) is None
    assert server.push(1, 1, 0).released == ()
    assert server.leave(2).released == (0,)


def test_a_duplicate_of_a_held_push_is_not_held_twice() -> None:
    server = Server(make_policy("softsync", group=2), range(2))
    assert server.push(0, 0, 0, payload="a").status == "waiting"
    assert server.push(0, 0, 0, payload="a").status == "duplicate"
    update = server.push(1, 0, 0, payload="b").update
    assert update is not None
    assert [push.payload for push in update.pushes] == ["a", "b"]


def test_a_returning_worker_whose_push_was_the_only_one_completes_its_version() -> None:
    server = Server(make_policy("sync"), range(2))
    server.push(0, 0, 0)
    assert server.leave(0).update is None
    assert server.leave(1).update is None
    assert server.join(0).update is not None
    assert server.pull(0) == 1


def test_held_pushes_are_computed_again_after_a_restart() -> None:
    policy = make_policy("softsync", group=4)
    server = Server(policy, range(2))
    for step in range(3):
        assert server.push(1, step, 0).status == "waiting"
    restored = Server.restore(policy, server.snapshot())
    restored.join(1)
    assert restored.sequences == {1: 0}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_no_step_of_a_slower_worker_is_passed_over_by_a_restart(order: tuple[int, ...]) -> None:
    policy = make_policy("ssp", bound=2)
    server = Server(policy, range(2))
    for step in range(5):
        server.push(0, step, 0)
    for step in range(3):
        server.push(1, step, 0)
    restored = Server.restore(policy, server.snapshot())
    restored.join(*order)
    assert restored.sequences == {0: 5, 1: 3}


def test_mean_staleness_of_equal_asynchronous_workers_is_one_less_than_their_number() -> None:
    for workers in (1, 2, 8):
        server = Server(make_policy("async"), range(workers))
        held = {worker: server.pull(worker) for worker in range(workers)}
        seen = []
        for push in range(workers * 50):
            worker = push % workers
            reply = server.push(worker, push // workers, held[worker] or 0)
            assert reply.update is not None
            seen += reply.update.staleness
            held[worker] = server.pull(worker)
        assert set(seen[workers:]) == {workers - 1}


def test_the_learning_rate_is_divided_by_the_mean_staleness_above_one() -> None:
    server = Server(make_policy("async"), range(4), correction="lr_over_staleness")
    updates = [server.push(worker, 0, 0).update for worker in range(4)]
    assert [update.rate_scale for update in updates if update] == [1, 1, 1 / 2, 1 / 3]
    grouped = Server(make_policy("softsync", group=2), range(4), correction="lr_over_staleness")
    updates = [grouped.push(0, step, 0).update for step in range(12)]
    assert [update.rate_scale for update in updates if update] == [1, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    assert learning_rate_scale("none", 9.0) == learning_rate_scale("delay_compensation", 9.0) == 1


@pytest.mark.parametrize(
    ("policy", "bad"),
    [
        (make_policy("async"), (0, 1, 0, 1)),  # a step the server has not reached
        (make_policy("async"), (0, 0, 1, 1)),  # a version from the future
        (make_policy("async"), (0, 0, -1, 1)),
        (make_policy("async"), (0, 0, 0, -1)),
        (make_policy("sync"), (0, 1, 0, 1)),
    ],
)
def test_a_push_that_was_never_given_out_is_refused_and_changes_nothing(policy: Any, bad: tuple) -> None:
    server = Server(policy, range(2))
    before = server.snapshot()
    with pytest.raises(BadInput, match="expected sequence 0"):
        server.push(*bad)
    assert server.snapshot() == before


def test_a_restart_from_an_old_snapshot_never_lowers_the_version() -> None:
    server = Server(make_policy("async"), range(2))
    state = server.snapshot()
    for step in range(7):
        server.push(0, step, step)
    restored = Server.restore(make_policy("async"), state, seen_version=server.version)
    assert (restored.version, restored.lost_versions, restored.tokens) == (7, 7, 0)
    restored.join(0)
    assert restored.sequences[0] == 0  # the lost steps are computed again


@pytest.mark.parametrize(
    "damage",
    [{"version": -1}, {"version": "7"}, {"tokens": None}, {"sequences": [[0, 1.5]]}, {"sequences": 3}],
)
def test_a_damaged_snapshot_is_refused(damage: dict[str, Any]) -> None:
    state = Server(make_policy("sync"), range(2)).snapshot() | damage
    with pytest.raises(BadInput, match="server state"):
        Server.restore(make_policy("sync"), state)


def test_a_policy_is_spelled_in_one_word_or_with_its_options_beside_it() -> None:
    for server in (ServerConfig(policy="backup", backups=1, workers=4), ServerConfig(policy="backup( backups = 1 )")):
        assert [server.resolved_policy.needed(n) for n in (1, 2, 4)] == [1, 1, 3]
    assert ServerConfig().resolved_policy.immediate
    assert (make_policy("ssp(bound=3)").bound, make_policy("ssp", bound=0).lockstep) == (3, True)


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("hogwild", {}, "policy: hogwild: no such server policy; known: async"),
        ("asinc", {}, "did you mean async"),
        ("ssp(bound=)", {}, r"expected ssp\(bound=...\)"),
        ("ssp", {}, "bound: policy 'ssp' needs it"),
        ("ssp", {"bound": -1}, "bound: expected a whole number from 0, not -1"),
        ("ssp(bound=1)", {"bound": 2}, "bound: .* says it already"),
        ("async", {"bound": 2}, "bound: policy 'async' has none; use policy=ssp"),
        ("async(quorum=2)", {}, "quorum: policy 'async' has none; known: none"),
        ("softsync", {"group": 0}, "group: expected a whole number from 1"),
        ("softsync", {"group": 5}, "group: 5 is too many for 4 workers; at most 4"),
        ("backup", {"backups": 4}, "backups: 4 is too many for 4 workers; at most 3"),
    ],
)
def test_a_bad_policy_is_refused_in_a_line(policy: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_policy(policy, workers=4, **options)
    with pytest.raises(BadInput, match=r"server\.(policy|bound|backups|group|quorum): "):
        build({"server": {"workers": 4, "policy": policy, **options}})


@pytest.mark.parametrize("name", SERVER_POLICIES)
def test_the_least_options_of_a_policy_are_enough_for_a_run(name: str) -> None:
    options = {key: option.least for key, option in SERVER_POLICIES[name].options.items()}
    server = Server(make_policy(name, workers=1, **options), [0])
    assert [server.push(0, step, step).status for step in range(3) if server.pull(0) == step] == ["applied"] * 3
