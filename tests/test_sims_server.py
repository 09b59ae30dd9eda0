"""The server world: the state machine in virtual time, its quick way, ties, failures, and a second opinion."""

import importlib.util
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.server.core import Update
from jaxdp.timeline import Timeline
from sims.network import SharedLink
from sims.outcome import Outcome
from sims.results import simulate, summary
from sims.scenario import Scenario, build
from sims.strategy import Strategy

DDP, ASYNC = Strategy(name="ddp"), Strategy(name="ps")
SSP = {bound: Strategy(name="ps", policy="ssp", bound=bound) for bound in (0, 1, 2, 4, 9)}
ALL = [
    DDP,
    Strategy(name="fsdp"),
    Strategy(name="backup", backups=1),
    Strategy(name="local_sgd", period=3),
    ASYNC,
    Strategy(name="ps", policy="sync"),
    SSP[2],
    Strategy(name="ps", policy="backup", backups=1),
    Strategy(name="ps", policy="softsync", group=2),
]
NETWORK = {"message_bytes": 10**6, "nic_gbps": 1.0, "server_nic_gbps": 0.5, "latency_s": 0.001, "apply_s": 0.002}


def run(strategy: Strategy, seed: int = 0, **values: Any) -> Outcome:
    return simulate(build({"workers": 4, "steps": 50, "compute_s": 0.1, **values}), strategy, seed)


def plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome's numbers, comparable by ==."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in asdict(outcome).items()}


specs = st.sampled_from(
    [
        "",
        "exponential(mean_s=.05)",
        "persistent(factor=3,worker=1)",
        "lognormal(sigma=.4)",
        "pause(seconds=1,probability=.1)",
    ]
)


@settings(max_examples=60, deadline=None)
@given(
    spec=specs,
    workers=st.integers(2, 9),
    steps=st.integers(1, 40),
    shards=st.integers(1, 3),
    latency_ms=st.sampled_from([0, 1]),
    apply_ms=st.sampled_from([0, 2, 40]),
    link=st.sampled_from([{}, {"server_nic_gbps": 0.5}, {"nic_gbps": 0.1}, {"nic_gbps": 0.1, "server_nic_gbps": 0.05}]),
    seed=st.integers(0, 5),
)
def test_the_quick_way_equals_the_event_loop(
    spec: str, workers: int, steps: int, shards: int, latency_ms: int, apply_ms: int, link: dict[str, float], seed: int
) -> None:
    """A timeline makes the simulator go through every event and the state machine."""
    times = {"latency_s": latency_ms / 1e3, "apply_s": apply_ms / 1e3, "message_bytes": 10**6}
    scenario = build({"workers": workers, "steps": steps, "compute_s": 0.1, "delays": spec, **times, **link})
    strategy = Strategy(name="ps", server_shards=shards)
    quick = simulate(scenario, strategy, seed)
    assert plain(quick) == plain(simulate(scenario, strategy, seed, Timeline(workers)))


def test_simpy_agrees() -> None:
    """SimPy shares no code with the simulator but its draws."""
    pytest.importorskip("simpy")
    path = Path(__file__).parents[1] / "benchmarks" / "sim_speed.py"
    spec = importlib.util.spec_from_file_location("sim_speed", path)
    assert spec
    assert spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for workers, shards in ((1, 1), (5, 1), (40, 1), (5, 3), (40, 2)):
        here, there = (f(workers, 60, shards) for f in (benchmark.simulate_here, benchmark.simulate_with_simpy))
        assert here == pytest.approx(there, rel=1e-12)


class Recorder:
    """A learner that notes every update."""

    def __init__(self) -> None:
        self.updates: list[Update] = []

    def pulled(self, worker: int, sequence: int, version: int) -> None: ...

    def gradient(self, worker: int, sequence: int) -> tuple[int, int]:
        return worker, sequence

    def apply(self, update: Update, now_s: float) -> None:
        self.updates.append(update)


LOCKSTEP = [Strategy(name="ps", policy="sync"), SSP[0], Strategy(name="ps", policy="backup", backups=0)]


@pytest.mark.parametrize("strategy", LOCKSTEP, ids=lambda strategy: strategy.label)
@pytest.mark.parametrize("seed", range(3))
def test_lockstep_policies_make_the_updates_of_ddp(strategy: Strategy, seed: int) -> None:
    scenario = build(
        {"workers": 5, "steps": 40, "compute_s": 1.0, "delays": "exponential(mean_s=1),markov(on_s=9,off_s=9,factor=3)"}
    )
    recorder = Recorder()
    outcome = simulate(scenario, strategy, seed, learner=recorder)
    assert [update.version for update in recorder.updates] == list(range(1, 41))
    for step, update in enumerate(recorder.updates):
        assert [push.payload for push in update.pushes] == [(worker, step) for worker in range(5)]
        assert update.staleness == (0,) * 5
    assert outcome.virtual_time_s == pytest.approx(simulate(scenario, DDP, seed).virtual_time_s, rel=1e-7)


@pytest.mark.parametrize("strategy", [ASYNC, SSP[2], *LOCKSTEP], ids=lambda strategy: strategy.label)
def test_a_worker_alone_is_plain_sgd(strategy: Strategy) -> None:
    recorder = Recorder()
    scenario = build({"workers": 1, "steps": 30, "compute_s": 1.0, "delays": "lognormal(sigma=.3)"})
    outcome = simulate(scenario, strategy, 0, learner=recorder)
    assert [update.pushes[0].payload for update in recorder.updates] == [(0, step) for step in range(30)]
    assert set(outcome.staleness) == {0}


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.label)
@pytest.mark.parametrize("spec", ["lognormal(sigma=.3)", "fail(mtbf_s=3,restart_s=.5),markov(on_s=1,off_s=1,factor=2)"])
def test_the_same_seed_gives_the_same_run(strategy: Strategy, spec: str) -> None:
    first, second, other = (run(strategy, seed, delays=spec, **NETWORK) for seed in (3, 3, 4))
    assert plain(first) == plain(second)
    assert plain(first) != plain(other)


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.label)
def test_which_worker_is_slow_does_not_matter(strategy: Strategy) -> None:
    slow = [run(strategy, steps=400, delays=f"persistent(factor=3,worker={worker})") for worker in range(4)]
    for outcome in slow[1:]:
        assert outcome.useful_per_second == pytest.approx(slow[0].useful_per_second, rel=0.01)
        assert sorted(outcome.idle_share) == pytest.approx(sorted(slow[0].idle_share), abs=0.01)


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy.label)
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("compute_s", (0.1, 0.2, 0.4)),
        ("message_bytes", (10**5, 2 * 10**5, 4 * 10**6, 8 * 10**6)),
        ("latency_s", (0.0, 0.01, 0.1)),
        ("delays", tuple(f"persistent(factor={factor},worker=2)" for factor in (1, 2, 4))),
        ("delays", tuple(f"link(factor={factor},worker=1)" for factor in (1, 8, 64))),
    ],
    ids=["compute", "bytes", "latency", "slow worker", "slow link"],
)
def test_more_work_never_takes_less_time(strategy: Strategy, key: str, values: tuple[Any, ...]) -> None:
    if strategy.backups and key == "delays":
        pytest.skip("the slow worker is the one that isn't waited for")
    rates = [run(strategy, **{**NETWORK, key: value}).useful_per_second for value in values]
    assert all(slow < fast for fast, slow in pairwise(rates)), rates


def test_a_backup_worker_hides_a_slow_one() -> None:
    rates = [
        run(Strategy(name="backup", backups=1), delays=f"persistent(factor={factor},worker=2)").useful_per_second
        for factor in (1, 2, 4)
    ]
    assert rates == pytest.approx([30, 30, 30])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), spec=specs)
def test_a_looser_bound_is_never_slower(seed: int, spec: str) -> None:
    times = [run(strategy, seed, delays=spec).virtual_time_s for strategy in (*SSP.values(), ASYNC)]
    assert times == sorted(times, reverse=True)


def test_a_pull_rides_on_the_acknowledgement_of_its_push() -> None:
    """Equal workers push at one instant: each pulls before the next one's push, so none sees itself twice."""
    outcome = run(ASYNC, workers=8, steps=100)
    assert outcome.staleness == {7: 8 * 90}


def test_the_server_is_busy_and_queued_as_told() -> None:
    outcome = run(ASYNC, workers=8, steps=200, compute_s=0.1, apply_s=0.05)
    assert outcome.server_busy_share == pytest.approx(1, abs=0.01)
    assert outcome.server_queue == pytest.approx(6, rel=0.02)  # 8 workers, 0.1 s of 0.4 s computing
    assert outcome.useful_per_second == pytest.approx(20, rel=0.01)


def test_shards_share_the_load() -> None:
    rates = [run(Strategy(name="ps", server_shards=s), workers=16, apply_s=0.05).useful_per_second for s in (1, 2, 4)]
    assert rates == pytest.approx([20, 40, 80], rel=0.02)


def test_a_failed_worker_keeps_nobody_waiting_but_ddp() -> None:
    fail = {"delays": "fail(mtbf_s=5,restart_s=20,worker=0)", "steps": 3000}
    ddp, sync, free = (run(strategy, **fail) for strategy in (DDP, LOCKSTEP[0], ASYNC))
    assert ddp.useful_per_second < 0.4 * sync.useful_per_second
    assert free.useful_per_second > 29
    assert 0 < free.wasted < 0.05


def test_late_gradients_of_backup_workers_are_wasted() -> None:
    outcome = run(Strategy(name="ps", policy="backup", backups=1), delays="persistent(factor=1.5,worker=0)", steps=200)
    assert outcome.wasted > 0.1
    assert set(outcome.staleness) == {0}


@given(st.lists(st.integers(0, 500), min_size=1, max_size=12), st.integers(1, 200))
def test_a_shared_link_conserves_work(gaps: list[int], alone: int) -> None:
    """Whatever the arrivals: the link is never idle with work at hand, and ends in order of arrival."""
    link, arrivals, ends = SharedLink(alone), np.cumsum(gaps).tolist(), []
    pending = list(enumerate(arrivals))
    while pending or link.under_way:
        end = link.next_end_ns()
        if pending and (end is None or pending[0][1] <= end):
            worker, now = pending.pop(0)
            link.begin(now, worker)
        else:
            assert end is not None
            ends.append((end, link.end(end)[1]))
    assert [worker for _, worker in ends] == list(range(len(gaps)))
    free = 0
    for arrival in arrivals:  # first come, first served: the last to leave leaves when it would there
        free = max(free, arrival) + alone
    assert ends[-1][0] == pytest.approx(free, abs=2 * len(gaps))


def test_sharing_a_link_fairly_ends_together() -> None:
    times = {"message_bytes": 10**6, "server_nic_gbps": 0.08, "steps": 1, "compute_s": 1.0}  # 0.1 s a message
    fifo, shared = (run(ASYNC, queue=queue, **times).virtual_time_s for queue in ("fifo", "shared"))
    assert shared == pytest.approx(0.4 + 1.0 + 0.4)
    assert fifo == pytest.approx(0.4 + 1.0 + 0.1)


@pytest.mark.parametrize("label", ["ddp", "ps-async", "ps-ssp(2)"])
def test_memory_does_not_grow_with_the_steps(label: str) -> None:
    """Peak resident memory of a fresh process; 50 bytes kept of each gradient would be 9 MB."""
    strategy = next(repr(strategy) for strategy in (DDP, ASYNC, SSP[2]) if strategy.label == label)
    code = f"""
import resource
from sims.results import simulate
from sims.scenario import Scenario
from sims.strategy import Strategy
peaks = []
for steps in (2_500, 25_000):
    simulate(Scenario(workers=8, steps=steps, stragglers="exponential(mean_s=1)"), {strategy}, 0)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    grown = int(printed) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 4_000_000


def test_a_run_without_time_is_refused() -> None:
    with pytest.raises(Exception, match="compute_s"):
        build({"workers": 4})
    with pytest.raises(Exception, match="no time passed"):
        run(ASYNC, compute_s=0.0, delays="pace(seconds=0)")


def test_summaries_count() -> None:
    assert summary({0: 98, 5: 1, 9: 1}) == {"mean": 0.14, "p50": 0, "p99": 5, "max": 9}
    assert isinstance(Scenario(compute_s=1.0).base_s(Strategy(name="ps")), np.ndarray)
