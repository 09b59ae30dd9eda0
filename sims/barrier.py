"""The barrier world: strategies in which all workers wait for each other, vectorised over workers and steps."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers.delays import Delays
from jaxdp.timeline import Timeline
from sims.network import collective_s
from sims.outcome import Outcome
from sims.scenario import Scenario
from sims.strategy import Strategy

CHUNK_DRAWS = 2**15  # draws held at once: they stay in the processor's cache


class Rounds(NamedTuple):
    """Consecutive rounds, a barrier each. All arrays are [rounds, workers], in seconds since the round's start."""

    done_s: np.ndarray  # when the worker reaches the barrier
    busy_s: np.ndarray  # of that, computing
    lost_s: np.ndarray  # of that, computing that an outage undid


def simulate(
    scenario: Scenario,
    strategy: Strategy,
    delays: Delays,
    timeline: Timeline | None = None,
    progress: Callable[[float], None] | None = None,
    on_round: Callable[[float], None] | None = None,
) -> Outcome:
    """Runs `scenario.steps` steps of a mesh strategy.

    A round ends when enough workers are done (all, or all but the backups, whose late computing is given
    up), plus the collectives; `on_round` is told when. Local SGD's round has `period` steps, the last one
    perhaps fewer.
    """
    n, now_s = scenario.workers, 0.0
    exchange_s = collective_s(strategy, scenario, delays)
    waited_for = n - (strategy.backups or 0)
    busy_s, computed_s, given_up_s, useful, done = np.zeros(n), np.zeros(n), 0.0, 0, 0
    for rounds, steps in _rounds(scenario, strategy, delays, exchange_s):
        slowest_s = _wait(rounds.done_s, waited_for)
        if timeline and not timeline.full:
            _draw(timeline, now_s, rounds, slowest_s, exchange_s)
        computed_s += rounds.busy_s.sum(axis=0)
        if waited_for == n:
            busy_s += rounds.busy_s.sum(axis=0)
        else:
            spent_s = np.minimum(rounds.busy_s, slowest_s[:, None])
            busy_s += spent_s.sum(axis=0)
            given_up_s += float(spent_s[rounds.done_s > slowest_s[:, None]].sum())
        given_up_s += float(rounds.lost_s.sum())
        if on_round:
            for end_s in (now_s + np.cumsum(slowest_s + exchange_s)).tolist():
                on_round(end_s)
        now_s += float(slowest_s.sum()) + exchange_s * len(slowest_s)
        useful += waited_for * steps
        done += steps
        if progress:
            progress(done / scenario.steps)
    if now_s <= 0:
        raise BadInput("compute_s: no time passed in the simulation; give compute_s or delays that take time")
    period = strategy.period or 1
    return Outcome(
        virtual_time_s=now_s,
        steps=scenario.steps,
        window_s=now_s,
        updates=-(-scenario.steps // period),
        useful=useful,
        wasted=given_up_s / max(float(busy_s.sum()) + given_up_s, 1e-300),
        busy_s=busy_s,
        mean_step_s=computed_s / scenario.steps,
        staleness={0: useful},
        worker_staleness=[0.0] * n,
    )


def _wait(done_s: np.ndarray, waited_for: int) -> np.ndarray:
    """When the first `waited_for` workers of each round are done."""
    if waited_for == done_s.shape[1]:
        return done_s.max(axis=1)
    return np.partition(done_s, waited_for - 1, axis=1)[:, waited_for - 1]


def _rounds(scenario: Scenario, strategy: Strategy, delays: Delays, exchange_s: float) -> Iterator[tuple[Rounds, int]]:
    """All rounds in chunks, each with its number of steps."""
    everyone, base_s = np.arange(scenario.workers), scenario.base_s(strategy)
    period, waited_for = strategy.period or 1, scenario.workers - (strategy.backups or 0)
    whole = max(1, CHUNK_DRAWS // (scenario.workers * period)) * period
    tail = scenario.steps % period
    last = scenario.steps - tail
    chunks = [(first, min(first + whole, last), period) for first in range(0, last, whole)]
    chunks += [(last, scenario.steps, tail)] if tail else []
    now_s = 0.0
    for first, end, length in chunks:
        sums, factors = delays.block(everyone, np.arange(first, end), base_s)
        if delays.timed or delays.failing:
            for row in range(0, end - first, length):
                rounds = _timed_round(delays, sums[row : row + length], factors[row : row + length], now_s)
                now_s += float(_wait(rounds.done_s, waited_for)[0]) + exchange_s
                yield rounds, length
        else:
            sums *= factors
            if length > 1:
                sums = sums.reshape(-1, length, scenario.workers).sum(axis=1)
            yield Rounds(sums, sums, np.zeros((1, 1))), end - first


def _timed_round(delays: Delays, sums: np.ndarray, factors: np.ndarray, start_s: float) -> Rounds:
    """One round whose delays depend on when each step starts."""
    workers = sums.shape[1]
    done_s, busy_s, lost_s = np.zeros((1, workers)), np.zeros((1, workers)), np.zeros((1, workers))
    sum_rows, factor_rows, failing = sums.tolist(), factors.tolist(), delays.failing
    for worker in range(workers):
        now_s = start_s
        for sum_row, factor_row in zip(sum_rows, factor_rows, strict=True):
            seconds = delays.at_time(worker, sum_row[worker], factor_row[worker], now_s)
            now_s, lost = delays.survive(worker, now_s, seconds) if failing else (now_s + seconds, 0.0)
            busy_s[0, worker] += seconds
            lost_s[0, worker] += lost
        done_s[0, worker] = now_s - start_s
    return Rounds(done_s, busy_s, lost_s)


def _draw(timeline: Timeline, start_s: float, rounds: Rounds, slowest_s: np.ndarray, exchange_s: float) -> None:
    """Rounds on the timeline: computing until the barrier, then the exchange on every link."""
    for done_s, wait_s in zip(rounds.done_s, slowest_s, strict=True):
        barrier_s = start_s + float(wait_s)
        for worker, done in enumerate(done_s):
            timeline.span(worker, "compute", "step", start_s, min(start_s + float(done), barrier_s))
            if exchange_s:
                timeline.span(worker, "NIC out", "collectives", barrier_s, barrier_s + exchange_s)
        start_s = barrier_s + exchange_s
        if timeline.full:
            return
