"""Published experiments on uneven workers, simulated: what the paper found against what comes out here.

Each has a name for `jaxdp sim NAME`. A value that was used to choose the delays is marked as calibrated and
is no evidence; the others are.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdp.stragglers.trace import read_trace
from sims import checks, scenario
from sims.outcome import Outcome
from sims.replay import replay, slowdown_alone
from sims.results import simulate, summary
from sims.scenario import Scenario
from sims.strategy import Strategy

TRACES = Path(__file__).parent / "data"


class Check(NamedTuple):
    """One published value (or range) and the simulated one. `agrees` is None where the value was calibrated."""

    quantity: str
    low: float
    high: float
    found: float
    calibrated: bool = False

    def to_json(self) -> dict[str, Any]:
        expected = f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"
        slack = 0.01 * abs(self.high) if self.low == self.high else 0.0
        agrees = bool(self.low - slack <= self.found <= self.high + slack)
        return {
            "quantity": self.quantity + (" (calibrated)" if self.calibrated else ""),
            "expected": expected,
            "simulated": self.found,
            "text": f"{self.found:.4g}",
            "agrees": None if self.calibrated else agrees,
        }


@dataclass(frozen=True)
class Experiment:
    title: str
    source: str
    checks: Callable[[], Iterator[Check]]
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        checks = [check.to_json() for check in self.checks()]
        how = {"checks": "simulated"}
        return {"title": self.title, "source": self.source, "checks": checks, "notes": list(self.notes), "how": how}


def parameter_server_idle() -> Iterator[Check]:
    """800 workers whose steps vary by chance only: idle time against the bound."""
    idle = {
        bound: 100 * _run("lognormal(sigma=0.23)", 800, 150, Strategy(name="ps", policy="ssp", bound=bound)).idle_share
        for bound in (0, 8, 16)
    }
    barrier = _run("lognormal(sigma=0.23)", 800, 150, Strategy(name="ddp"))
    yield Check("idle share at bound 0 (%)", 50, 50, idle[0].mean(), calibrated=True)
    yield Check("idle share of a barrier system (%)", 32, 53, 100 * barrier.idle_share.mean())
    yield Check("idle share at bound 8 (%)", 0, 5, idle[8].mean())
    yield Check("idle share at bound 16 (%)", 0, 2, idle[16].mean())


def backup_workers() -> Iterator[Check]:
    """50 gradients a step from 50 + b machines; speed-up over b = 0, per machine."""
    rates = {}
    for backups in range(6):
        strategy = Strategy(name="backup", backups=backups) if backups else Strategy(name="ddp")
        outcome = _run("pause(seconds=0.23,probability=0.03)", 50 + backups, 20_000, strategy)
        rates[backups] = outcome.useful_per_second / (50 + backups)
    gains = {backups: 100 * (rate / rates[0] - 1) for backups, rate in rates.items()}
    yield Check("best number of backups", 3, 3, max(gains, key=gains.__getitem__), calibrated=True)
    yield Check("its gain per machine (%)", 9.5, 9.5, gains[3], calibrated=True)
    yield Check("2 and 4 backups gain, but less (%)", 0, gains[3], min(gains[2], gains[4]))


def uneven_local_sgd() -> Iterator[Check]:
    """Four workers of fixed, very different speeds."""
    steps_s = (0.58, 0.75, 1.51, 3.33)
    scenario = Scenario(workers=4, steps=4000, compute_s=steps_s)
    ddp, free = (simulate(scenario, Strategy(name=name), 0) for name in ("ddp", "ps"))
    yield Check("gain in rate, asynchronous", 3.35, 3.35, _ratio(free, ddp))
    yield Check("mean staleness, n - 1", 3, 3, summary(free.staleness)["mean"])
    slowest = sum(steps_s[3] / step_s for step_s in steps_s) - 1
    yield Check("of the slowest worker's gradients", slowest, slowest, free.worker_staleness[3] or 0.0)


def hierarchical_sgd() -> Iterator[Check]:
    """Steps of 55 ms with stalls of a second; averaging every 4 steps against every step."""
    for workers, probability, low, high in ((64, 0.02, 2.08, 2.45), (128, 0.01, 2.57, 2.68), (256, 0.01, 2.63, 3.25)):
        stalls = f"pace(seconds=0.055),pause(seconds=1,probability={probability})"
        ddp = _run(stalls, workers, 20_000, Strategy(name="ddp"))
        local = _run(stalls, workers, 20_000, Strategy(name="local_sgd", period=4))
        yield Check(f"{workers} workers, {100 * probability:g} % stalls", low, high, _ratio(local, ddp))


def single_slow_worker() -> Iterator[Check]:
    """One slow worker injected among eight that hardly vary: the slowdown, and what the analysis lays at its door."""
    for factor in (1.16, 1.40, 2.03):
        scenario = Scenario(
            workers=8, steps=2000, stragglers=f"lognormal(sigma=0.001),persistent(factor={factor},worker=0)"
        )
        sums, factors = scenario.delays_of(0).block(np.arange(8), np.arange(2000), 1.0)
        slow = _run(scenario.stragglers, 8, 2000, Strategy(name="ddp"))
        clean = _run("lognormal(sigma=0.001)", 8, 2000, Strategy(name="ddp"))
        yield Check(f"slowdown by a worker {factor} times slower", factor, factor, _ratio(clean, slow))
        seconds = sums * factors
        costs = slowdown_alone(seconds)
        total = seconds.max(axis=1).mean() / seconds.mean()
        yield Check("  share of it laid at its door (%)", 100, 100, 100 * costs[0] / total)


def measured_traces() -> Iterator[Check]:
    """The two traces that travel with this package."""
    expected = {
        "SE": ((0, 0.793), (1, 0.820), (2, 0.821), (4, 0.793), ("async", 1.261)),
        "AR": ((0, 0.582), (1, 0.981), (2, 0.657), ("async", 1.944)),
    }
    for trace, values in expected.items():
        path = TRACES / f"{trace}.csv"
        rows = {row["label"]: row for row in replay(path)["results"]}
        for case, value in values:
            if case == "async":
                yield Check(f"{trace}: gain of asynchronous updates", value, value, rows["ps-async"]["gain_over_ddp"])
            else:
                found = rows[f"backup({case})" if case else "ddp"]["useful_throughput"]
                yield Check(f"{trace}: useful throughput with {case} dropped", value, value, found)
    seconds = read_trace(str(TRACES / "AR.csv"))
    yield Check("AR: slowdown", 1.718, 1.718, seconds.max(axis=1).mean() / seconds.mean())


def _run(delays: str, workers: int, steps: int, strategy: Strategy) -> Outcome:
    scenario = Scenario(workers=workers, steps=steps, compute_s=1.0, stragglers=delays)
    return simulate(scenario, strategy, 0)


def _ratio(fast: Outcome, slow: Outcome) -> float:
    return fast.useful_per_second / slow.useful_per_second


EXPERIMENTS: dict[str, Experiment] = {
    "parameter-server-idle": Experiment(
        "Idle time against the bound on staleness, 800 workers",
        "Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014",
        parameter_server_idle,
        (
            "the spread of a step is calibrated so that bound 0 idles half the time; the rest follows",
            "the paper's best time to loss at bound 8 is not part of this scenario, which has no loss",
        ),
    ),
    "backup-workers": Experiment(
        "Backup workers: 50 gradients a step from 50 + b machines",
        "Abadi et al., TensorFlow: A System for Large-Scale Machine Learning, OSDI 2016",
        backup_workers,
        ("the stalls (3 % of steps, 0.23 of a step) are calibrated to the best number of backups and its gain",),
    ),
    "uneven-local-sgd": Experiment(
        "Asynchronous training on four workers of unequal speed",
        "Liu et al., Asynchronous Local-SGD Training for Language Modeling, arXiv 2401.09135",
        uneven_local_sgd,
        ("the paper's perplexities (asynchronous 44.27, synchronous 41.35) need training: see --gradients",),
    ),
    "hierarchical-sgd": Experiment(
        "Hierarchical SGD under stalls of a second",
        "Wang and Varma, Straggler Mitigation on PyTorch DDP by Hierarchical SGD, PyTorch blog, 2023",
        hierarchical_sgd,
        ("the published ranges cover several periods; the simulation has no communication",),
    ),
    "single-slow-worker": Experiment(
        "What-if analysis of one injected slow worker",
        "Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025",
        single_slow_worker,
        (
            "the injected factors are the paper's measured slowdowns",
            "the paper's share of jobs slower by more than 10 % (42.5 of 3,079) is a census, not simulated",
        ),
    ),
    "measured-traces": Experiment(
        "Two measured traces, replayed",
        "ByteDance-Seed/StragglerAnalysis (Apache-2.0), see sims/data",
        measured_traces,
    ),
}


def report(name: str) -> dict[str, Any]:
    """An experiment's report; raises `BadInput` for a name that neither an experiment nor a simulation has."""
    if name not in EXPERIMENTS:
        checks.refuse_name(name, [*EXPERIMENTS, *scenario.shipped_names(), "list", "replay"])
    return EXPERIMENTS[name].report()


def catalogue() -> dict[str, dict[str, str]]:
    """The experiments and the shipped simulations by name, with a line on each."""
    return {
        "experiments": {name: experiment.title for name, experiment in EXPERIMENTS.items()},
        "simulations": {name: scenario.headline(scenario.find(name)) for name in scenario.shipped_names()},
    }
