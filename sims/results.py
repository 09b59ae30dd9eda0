"""From outcomes to results: means over seeds with confidence intervals, gains over DDP, plain rows for JSON and CSV."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from jaxdp.timeline import Timeline
from sims import barrier, server
from sims.curve import Training, time_to_loss
from sims.outcome import Outcome
from sims.scenario import Scenario
from sims.server_world import Learner
from sims.strategy import Strategy

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the normal's beyond
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)

Progress = Callable[[str, float], None]  # (strategy's label, share done)
Trainer = Callable[[Strategy, int, Timeline | None, Callable[[float], None]], tuple[Outcome, Training]]


@dataclass(frozen=True)
class Result:
    """One strategy over all seeds. `gains` are its useful gradients a second over DDP's, seed by seed."""

    strategy: Strategy
    scenario: Scenario
    outcomes: tuple[Outcome, ...]
    gains: tuple[float, ...]
    trainings: tuple[Training, ...] = ()  # of real gradients, seed by seed

    @property
    def staleness(self) -> Counter[int]:
        return sum((Counter(outcome.staleness) for outcome in self.outcomes), Counter())

    def to_json(self) -> dict[str, Any]:
        scenario, strategy = self.scenario, self.strategy
        tokens = scenario.tokens_per_step / scenario.workers
        rows = [
            {
                "virtual_time_s": outcome.virtual_time_s,
                "updates_per_second": outcome.updates / outcome.window_s,
                "worker_steps_per_second": outcome.useful_per_second,
                "tokens_per_second": outcome.useful_per_second * tokens,
                "slowdown": outcome.slowdown,
                "gain_over_ddp": gain,
            }
            for outcome, gain in zip(self.outcomes, self.gains, strict=True)
        ]
        intervals = {key: interval([row[key] for row in rows]) for key in rows[0]}
        return {
            "strategy": strategy.name,
            "label": strategy.label,
            "options": strategy.options,
            "workers": scenario.workers,
            "steps": scenario.steps,
            "seeds": len(rows),
            **{key: mean_of([row[key] for row in rows]) for key in rows[0]},
            "staleness": summary(self.staleness),
            "staleness_histogram": {str(stale): count for stale, count in sorted(self.staleness.items())},
            "idle_share": np.mean([outcome.idle_share for outcome in self.outcomes], axis=0).tolist(),
            "wasted_share": float(np.mean([outcome.wasted for outcome in self.outcomes])),
            "server_busy_share": mean_of([outcome.server_busy_share for outcome in self.outcomes]),
            "server_queue": mean_of([outcome.server_queue for outcome in self.outcomes]),
            "time_to_loss_s": self._time_to_loss_s(),
            "ci95": intervals if len(rows) > 1 else None,
            **self._losses(),
        }

    def _time_to_loss_s(self) -> float | None:
        """The mean over seeds; None unless every one reached the loss."""
        loss = self.scenario.until_loss
        if loss is None or not self.trainings:
            return None
        times = [time_to_loss(training.points, loss) for training in self.trainings]
        return None if None in times else mean_of(times)

    def _losses(self) -> dict[str, Any]:
        """What real gradients add: losses, and the learning rates that ended lowest."""
        if not self.trainings:
            return {}
        first, last = (
            mean_of([loss if math.isfinite(loss) else None for loss in losses])
            for losses in zip(*((t.points[0].loss, t.final_loss) for t in self.trainings), strict=True)
        )
        grid = [{f"{rate:g}": end for rate, end in training.ends.items()} for training in self.trainings]
        rates = [training.learning_rate for training in self.trainings]
        return {"loss": {"first": first, "last": last}, "learning_rates": rates, "grid": grid}


def compare(
    scenario: Scenario,
    timeline_of: Callable[[Strategy], Timeline | None] = lambda strategy: None,
    progress: Progress | None = None,
    trainer: Trainer | None = None,
) -> list[Result]:
    """Every strategy of the scenario on every seed; all meet the same delays. Timelines show the first seed.

    `trainer` runs a strategy with real gradients; without it only time passes.
    """
    seeds = [scenario.seed + index for index in range(scenario.seeds)]
    ddp = [simulate(scenario, Strategy(name="ddp"), seed).useful_per_second for seed in seeds]
    results = []
    for strategy in scenario.strategies:
        outcomes, trainings = [], []
        for index, seed in enumerate(seeds):
            timeline = timeline_of(strategy) if index == 0 else None
            told = partial(_tell, progress, strategy.label, index, len(seeds))
            if trainer:
                outcome, training = trainer(strategy, seed, timeline, told)
                trainings.append(training)
            else:
                outcome = simulate(scenario, strategy, seed, timeline, progress=told)
            outcomes.append(outcome)
        gains = [outcome.useful_per_second / base for outcome, base in zip(outcomes, ddp, strict=True)]
        results.append(Result(strategy, scenario, tuple(outcomes), tuple(gains), tuple(trainings)))
    return results


def _tell(progress: Progress | None, label: str, index: int, count: int, share: float) -> None:
    if progress:
        progress(label, (index + share) / count)


def simulate(
    scenario: Scenario,
    strategy: Strategy,
    seed: int,
    timeline: Timeline | None = None,
    learner: Learner | None = None,
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """One strategy with one seed, in the world it belongs to."""
    delays = scenario.delays_of(seed)
    if strategy.name == "ps":
        return server.simulate(scenario, strategy, delays, timeline, learner, progress)
    return barrier.simulate(scenario, strategy, delays, timeline, progress)


def summary(counts: Mapping[int, int]) -> dict[str, float]:
    """Mean, median, 99th percentile and maximum of counted values."""
    total = sum(counts.values())
    if not total:
        return {"mean": 0.0, "p50": 0, "p99": 0, "max": 0}
    values = np.array(sorted(counts))
    cumulative = np.cumsum([counts[value] for value in values.tolist()])
    p50, p99 = (int(values[np.searchsorted(cumulative, share * total)]) for share in (0.5, 0.99))
    mean = sum(value * count for value, count in counts.items()) / total
    return {"mean": mean, "p50": p50, "p99": p99, "max": int(values[-1])}


def interval(values: Sequence[float | None]) -> float | None:
    """Half the 95 % confidence interval of the mean, from Student's t; None for a single value."""
    known = [value for value in values if value is not None]
    count = len(known)
    if count < 2:
        return None
    student = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else 1.96
    return student * float(np.std(known, ddof=1)) / math.sqrt(count)


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line a strategy: the plain numbers, nested ones by dotted names, lists left out."""
    flat = [dict(_flatten(row)) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flatten(row: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in row.items():
        if isinstance(value, dict) and key not in ("staleness_histogram", "options"):
            items += _flatten(value, f"{prefix}{key}.")
        elif not isinstance(value, dict | list):
            items.append((prefix + key, value))
    return items


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def losses_csv(results: Sequence[Result]) -> str:
    """Every point of every curve: label, seed, learning rate, virtual time, tokens, loss."""
    lines = ["label,seed,learning_rate,virtual_time_s,tokens,loss"]
    for result in results:
        for index, training in enumerate(result.trainings):
            start = f"{result.strategy.label},{result.scenario.seed + index},{training.learning_rate!r}"
            lines += [f"{start},{p.virtual_time_s!r},{p.tokens},{p.loss!r}" for p in training.points]
    return "\n".join(lines) + "\n"
