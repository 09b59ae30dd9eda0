"""Simulated values against theory: order statistics, renewal, closed queueing networks."""

import math
from typing import Any

import numpy as np
import pytest

from sims.outcome import Outcome
from sims.results import simulate, summary
from sims.scenario import build
from sims.strategy import Strategy

DDP, ASYNC = Strategy(name="ddp"), Strategy(name="ps")


def run(
    strategy: Strategy, delays: str = "", workers: int = 8, steps: int = 2000, seed: int = 0, **more: Any
) -> Outcome:
    scenario = build({"workers": workers, "steps": steps, "delays": delays, **more})
    return simulate(scenario, strategy, seed)


def step_s(outcome: Outcome) -> float:
    return outcome.virtual_time_s / outcome.steps


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize(("n", "value"), [(8, 2.718), (32, 4.059), (64, 4.744), (256, 6.124)])
@pytest.mark.parametrize(("shift", "strategy"), [(0.0, DDP), (3.0, Strategy(name="fsdp"))])
def test_barrier_over_exponential_workers(n: int, value: float, shift: float, strategy: Strategy) -> None:
    outcome = run(strategy, "exponential(mean_s=2)", n, 40_000, compute_s=shift)
    assert step_s(outcome) == pytest.approx(shift + 2 * value, rel=0.01)


def test_waiting_for_96_of_100() -> None:
    first = run(Strategy(name="backup", backups=4), "exponential(mean_s=1)", 100, 10_000)
    assert step_s(first) == pytest.approx(3.104, rel=0.01)
    assert step_s(first) == pytest.approx(harmonic(100) - harmonic(4), rel=0.01)
    assert step_s(run(DDP, "exponential(mean_s=1)", 100, 10_000)) == pytest.approx(5.187, rel=0.01)


@pytest.mark.parametrize(
    ("sigma", "n", "value"),
    [(0.2, 8, 1.313), (0.2, 32, 1.490), (0.2, 256, 1.731), (0.5, 8, 1.888), (0.5, 32, 2.564), (0.5, 256, 3.701)],
)
def test_barrier_over_lognormal_workers(sigma: float, n: int, value: float) -> None:
    outcome = run(DDP, f"lognormal(sigma={sigma})", n, 20_000, compute_s=1.0)
    assert step_s(outcome) == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize(("n", "expected"), [(4, 1.029), (8, 1.424), (32, 2.070), (256, 2.827)])
def test_barrier_over_nearly_normal_workers(n: int, expected: float) -> None:
    """A lognormal of little spread is a normal one, whose largest of n is d_n deviations above the mean."""
    sigma = 0.005
    above = step_s(run(DDP, f"lognormal(sigma={sigma})", n, 30_000, compute_s=1.0)) - 1
    assert above / sigma == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("n", "s", "gain"), [(8, 2, 1.875), (16, 6, 5.69), (4, 4, 3.25), (8, 1, 1.0)])
def test_async_over_sync_with_a_persistent_straggler(n: int, s: int, gain: float) -> None:
    spec = f"persistent(factor={s},worker=0)"
    free, barrier = run(ASYNC, spec, n, compute_s=1.0), run(DDP, spec, n, compute_s=1.0)
    assert free.useful_per_second / barrier.useful_per_second == pytest.approx(gain, rel=0.01)
    assert gain == pytest.approx((s * (n - 1) + 1) / n, rel=0.01)


@pytest.mark.parametrize("spec", ["exponential(mean_s=1)", "lognormal(sigma=.5)", "pareto(mean_s=1,alpha=3)"])
def test_async_rate_is_the_sum_of_the_workers_rates(spec: str) -> None:
    outcome = run(ASYNC, spec, compute_s=1.0 if "lognormal" in spec else 0.0, steps=10_000)
    assert outcome.useful_per_second == pytest.approx(8, rel=0.01)


@pytest.mark.parametrize("spec", ["", "exponential(mean_s=1)", "persistent(factor=5,worker=2)", "lognormal(sigma=.4)"])
@pytest.mark.parametrize("n", [2, 8])
def test_mean_staleness_is_n_minus_one_whatever_the_speeds(spec: str, n: int) -> None:
    outcome = run(ASYNC, spec.replace("worker=2", "worker=1"), n, 5000, compute_s=1.0)
    assert summary(outcome.staleness)["mean"] == pytest.approx(n - 1, rel=0.002)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_staleness_in_groups(group: int) -> None:
    outcome = run(Strategy(name="ps", policy="softsync", group=group), "exponential(mean_s=1)", steps=10_000)
    # counted from the update before, as the server does: a gradient's own group adds nothing
    assert summary(outcome.staleness)["mean"] == pytest.approx((8 - 1) / group, rel=0.01)


def test_staleness_of_each_worker() -> None:
    speeds = np.array([1.0, 1.3, 2.0, 5.0])
    outcome = run(ASYNC, workers=4, steps=20_000, compute_s=tuple(speeds))
    rates = 1 / speeds
    np.testing.assert_allclose(np.array(outcome.worker_staleness, float), rates.sum() / rates - 1, rtol=0.01)


def test_a_bound_ties_all_to_the_slowest() -> None:
    spec = "persistent(factor=4,worker=0)"
    bound = run(Strategy(name="ps", policy="ssp", bound=3), spec, compute_s=1.0)
    assert bound.useful_per_second == pytest.approx(2.0, rel=0.01)
    assert run(ASYNC, spec, compute_s=1.0).useful_per_second == pytest.approx(7.25, rel=0.01)


@pytest.mark.parametrize(("bound", "rate"), [(0, 2.943), (1, 4.46), (3, 5.83), (10, 7.08)])
def test_a_bound_over_exponential_workers(bound: int, rate: float) -> None:
    policy = Strategy(name="ps", policy="ssp", bound=bound)
    rates = [run(policy, "exponential(mean_s=1)", steps=4000, seed=seed).useful_per_second for seed in range(2)]
    assert np.mean(rates) == pytest.approx(rate, abs=0.03 + 0.01 * rate)


def mean_value_analysis(n: int, think_s: float, service_s: float) -> float:
    """Throughput of n customers who think and then queue for one exponential server (Reiser and Lavenberg, 1980)."""
    queue = rate = 0.0
    for customers in range(1, n + 1):
        response_s = service_s * (1 + queue)
        rate = customers / (think_s + response_s)
        queue = rate * response_s
    return rate


@pytest.mark.parametrize(("n", "value"), [(8, 7.460), (16, 14.159), (32, 19.932)])
def test_an_exponential_server_meets_mean_value_analysis(n: int, value: float) -> None:
    assert mean_value_analysis(n, 1.0, 0.05) == pytest.approx(value, abs=0.001)
    outcome = run(ASYNC, "exponential(mean_s=1)", n, 80_000 // n, apply_s=0.05, apply_distribution="exponential")
    assert outcome.useful_per_second == pytest.approx(value, rel=0.01)
    assert outcome.server_busy_share == pytest.approx(value * 0.05, rel=0.01)


@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize("where", ["apply", "link"])
def test_a_deterministic_server_meets_the_bound(n: int, where: str) -> None:
    """X = min(N / (Z + S), 1 / S), whether applying or the server's link takes the S."""
    service: dict[str, Any] = {"apply_s": 0.05}
    if where == "link":
        service = {"message_bytes": 10**6, "server_nic_gbps": 10**6 * 8 / 0.05 / 1e9}
    outcome = run(ASYNC, workers=n, steps=1000, compute_s=1.0, **service)
    cycle = 1.05 if where == "apply" else 1.1  # the link takes S for a pull and S for a push
    assert outcome.useful_per_second == pytest.approx(min(n / cycle, 1 / 0.05), rel=1e-3)


@pytest.mark.parametrize(("period", "gain"), [(2, 1.47), (4, 2.30), (8, 3.21)])
def test_local_sgd_under_stalls(period: int, gain: float) -> None:
    stalls = "pause(seconds=1,probability=.02)"
    ddp = run(DDP, stalls, 64, 40_000, compute_s=0.055)
    local = run(Strategy(name="local_sgd", period=period), stalls, 64, 40_000, compute_s=0.055)
    assert local.useful_per_second / ddp.useful_per_second == pytest.approx(gain, rel=0.01)
    most = expected_largest_binomial(64, period, 0.02)
    assert step_s(local) == pytest.approx(0.055 + most / period, rel=0.01)


def expected_largest_binomial(n: int, trials: int, p: float) -> float:
    below, total = 0.0, 0.0
    for k in range(trials):
        below += math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
        total += 1 - below**n
    return total


def test_collectives_follow_the_ring_formula() -> None:
    network = {"message_bytes": 4 * 10**8, "nic_gbps": 8.0, "latency_s": 0.001}
    volumes: dict[str, int] = {"ddp": 2, "zero1": 2, "fsdp": 3}
    for name, passes in volumes.items():
        outcome = run(Strategy(name=name), workers=4, steps=10, compute_s=1.0, **network)
        expected = 1 + passes * 3 * (0.001 + 4e8 / (4 * 1e9))
        assert step_s(outcome) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("shards", "worker_gbps"), [(1, 80.0), (2, 80.0), (1, 0.4), (4, 8.0)])
def test_a_server_round_follows_its_formula(shards: int, worker_gbps: float) -> None:
    """Lockstep workers pull and push together: 2 alpha + 2 max(M / B_worker, n M / (S B_server))."""
    strategy = Strategy(name="ps", policy="sync", server_shards=shards)
    network = {"message_bytes": 10**8, "nic_gbps": worker_gbps, "server_nic_gbps": 8.0, "latency_s": 0.01}
    worker, server = 1e8 * 8 / (worker_gbps * 1e9), 1e8 / (shards * 1e9)
    shared = run(strategy, steps=20, compute_s=5.0, queue="shared", **network)
    assert step_s(shared) == pytest.approx(5 + 0.02 + 2 * max(worker, 8 * server), rel=1e-4)
    # First come, first served staggers the pulls, and so the pushes, which then don't wait for each other.
    fifo = run(strategy, steps=20, compute_s=5.0, **network)
    assert step_s(fifo) == pytest.approx(5 + 0.02 + 7 * server + 2 * max(worker, server), rel=1e-4)


@pytest.mark.parametrize("strategy", [DDP, ASYNC, Strategy(name="ps", policy="sync")])
def test_without_delays_all_are_ideal(strategy: Strategy) -> None:
    outcome = run(strategy, steps=200, compute_s=0.25)
    assert outcome.slowdown == pytest.approx(1)
    np.testing.assert_allclose(outcome.idle_share, 0, atol=1e-9)
    assert outcome.wasted == 0


def test_idle_time_is_what_the_barrier_costs() -> None:
    outcome = run(DDP, "persistent(factor=4,worker=0)", 4, 100, compute_s=1.0)
    np.testing.assert_allclose(outcome.idle_share, [0, 0.75, 0.75, 0.75], atol=1e-9)


def test_failures_cost_as_much_as_renewal_theory_says() -> None:
    """A step of length c begun anew at each failure takes (mtbf + restart) * (exp(c / mtbf) - 1)."""
    outcome = run(DDP, "fail(mtbf_s=50,restart_s=5)", 1, 10_000, compute_s=10.0)
    assert step_s(outcome) == pytest.approx(55 * math.expm1(10 / 50), rel=0.02)
    free = run(ASYNC, "fail(mtbf_s=50,restart_s=5)", 4, 5000, compute_s=10.0)
    assert free.useful_per_second == pytest.approx(4 / (55 * math.expm1(10 / 50)), rel=0.02)
