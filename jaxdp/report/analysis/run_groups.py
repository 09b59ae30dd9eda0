"""From measurements to a study: repeats gathered into cells, cells into scaling curves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, Literal

from jaxdp.config import dotted
from jaxdp.report.analysis.load import Measurement
from jaxdp.report.analysis.metrics import COMPILED, THROUGHPUT, TIME_TO_LOSS, Metric, number_at
from jaxdp.report.analysis.spread import Spread, spread
from jaxdp.report.analysis.steps import LossPoint
from jaxdp.strategies.rows import STRATEGIES
from jaxdp.strict_json import to_json

NO_AXES = ("strategy.name", "train.seed", "train.global_batch")  # a seed is a repeat; the batch tells weak from strong

Scaling = Literal["weak", "strong", "mixed"]


@dataclass(frozen=True, eq=False)
class RunGroup:
    """One strategy under one set of conditions, and its measurements: the repeats.

    `conditions` are the axes that are not the strategy's own; cells under the same conditions can be compared.
    """

    label: str
    strategy: str
    devices: int
    tokens_per_step: int | None
    conditions: str
    runs: tuple[Measurement, ...]

    @property
    def name(self) -> str:
        return ", ".join(
            filter(None, [self.label, f"{self.devices} device{'s' if self.devices > 1 else ''}", self.conditions])
        )

    @property
    def diverged(self) -> bool:
        return any((run.result or {}).get("diverged") for run in self.runs)

    @cached_property
    def findings(self) -> dict[str, Mapping[str, Any]]:
        """The pre-flight's findings, by name."""
        return {finding["name"]: finding for run in self.runs for finding in run.findings or ()}

    def spread(self, metric: Metric) -> Spread | None:
        results = [run.result for run in self.runs]
        window = metric.window(results[0]) if len(results) == 1 else None
        return spread([metric.of(result) for result in results], window)

    def predicted(self, metric: Metric) -> float | None:
        """What the cost model said, or of memory the pre-flight check; None where neither did."""
        found = [_predicted(run, metric) for run in self.runs]
        return next((value for value in found if value is not None), None)


@dataclass(frozen=True)
class CurvePoint:
    cell: RunGroup
    speed_up: Spread
    efficiency: Spread  # X_n / (n * X_1), or against the fewest devices at hand


@dataclass(frozen=True)
class Curve:
    """A strategy's throughput over devices. Weak: tokens a device and step stay; strong: tokens a step stay."""

    label: str
    conditions: str
    scaling: Scaling
    base: int  # the fewest devices, which the others are held against
    points: tuple[CurvePoint, ...]


def with_axes(measurements: Sequence[Measurement], others: Sequence[Measurement] = ()) -> list[Measurement]:
    """Runs with the settings that vary among them, or among `others`, as axes; a sweep's rows have theirs already."""
    varying = _varying(measurements) | _varying(others)
    found = []
    for run in measurements:
        settings = _settings(run)
        axes = {key: settings.get(key) for key in sorted(varying)} if not run.axes else run.axes
        found.append(replace(run, axes={key: value for key, value in axes.items() if _concerns(key, run.strategy)}))
    return found


def _varying(measurements: Sequence[Measurement]) -> set[str]:
    """The keys whose value is not the same for all runs that they concern."""
    values: dict[str, set[str]] = {}
    for run in measurements:
        for key, value in {} if run.axes else _settings(run).items():
            if key not in NO_AXES and _concerns(key, run.strategy):
                values.setdefault(key, set()).add(to_json(value))
    return {key for key, found in values.items() if len(found) > 1}


def _settings(run: Measurement) -> dict[str, Any]:
    kinds = {device.get("kind") for device in run.record.get("devices", ())}
    return {**dotted(run.config), **({"device": next(iter(kinds))} if len(kinds) == 1 else {})}


def _concerns(key: str, strategy: str) -> bool:
    """Settings of a strategy name its line; all others are conditions, which a chart shows."""
    section, _, option = key.partition(".")
    if section == "server":
        return strategy == "ps"
    return section != "strategy" or strategy not in STRATEGIES or option in STRATEGIES[strategy].options


def cells_of(measurements: Sequence[Measurement], name_source: bool = False) -> list[RunGroup]:
    """What was measured, with repeats of the same conditions as one cell.

    With `name_source`, runs of different sources stay apart.
    """
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for run in (run for run in measurements if run.result is not None):
        label = label_of(run) + (f" · {run.source}" if name_source else "")
        groups.setdefault((conditions_of(run), label, run.devices, run.tokens_per_step), []).append(run)
    cells = [
        RunGroup(label, runs[0].strategy, devices, tokens, conditions, tuple(runs))
        for (conditions, label, devices, tokens), runs in groups.items()
    ]
    rank = {name: place for place, name in enumerate(STRATEGIES)}
    return sorted(
        cells, key=lambda c: (c.conditions, rank.get(c.strategy, len(rank)), c.label, c.devices, c.tokens_per_step or 0)
    )


def _predicted(run: Measurement, metric: Metric) -> float | None:
    if metric.predicted and run.predicted:
        return metric.predicted(run.predicted)
    checked = run.record.get("preflight") or {}
    told = (checked.get("how") or {}).get("memory_bytes") == "predicted"
    return number_at(checked, "memory_bytes") if metric is COMPILED and told else None


def label_of(run: Measurement) -> str:
    own = [f"{_short(key)}={_text(value)}" for key, value in run.axes.items() if _names_strategy(key)]
    return " ".join([run.strategy, *own])


def conditions_of(run: Measurement) -> str:
    return ", ".join(
        f"{_short(key)}={_text(value)}"
        for key, value in run.axes.items()
        if not _names_strategy(key) and key != "train.global_batch"
    )


def _names_strategy(key: str) -> bool:
    return key.startswith(("strategy.", "server."))


def _short(key: str) -> str:
    return key.rsplit(".", 1)[-1]


def _text(value: Any) -> str:
    return "none" if value is None or value == "" else value if isinstance(value, str) else to_json(value)


def curves_of(cells: Sequence[RunGroup]) -> list[Curve]:
    """A scaling curve for each strategy under the same conditions that was measured on two device counts or more."""
    lines: dict[tuple[str, str], list[RunGroup]] = {}
    for cell in cells:
        if cell.spread(THROUGHPUT) and cell.tokens_per_step and cell.devices:
            lines.setdefault((cell.conditions, cell.label), []).append(cell)
    return [curve for (conditions, label), line in lines.items() for curve in _curves(label, conditions, line)]


def _curves(label: str, conditions: str, line: Sequence[RunGroup]) -> list[Curve]:
    """One curve where every device count has one batch, else one for each way of keeping the batch."""
    by_batch = _grouped(line, lambda cell: cell.tokens_per_step)
    by_share = _grouped(line, lambda cell: (cell.tokens_per_step or 0) / cell.devices)
    strong = [group for group in by_batch if _counts(group) > 1]
    weak = [group for group in by_share if _counts(group) > 1]
    found = [_curve(label, conditions, "strong", group) for group in strong]
    found += [_curve(label, conditions, "weak", group) for group in weak]
    if not found and _counts(line) == len(line) > 1:
        found = [_curve(label, conditions, "mixed", line)]
    return found


def _grouped(cells: Sequence[RunGroup], key: Callable[[RunGroup], Any]) -> list[list[RunGroup]]:
    groups: dict[Any, list[RunGroup]] = {}
    for cell in cells:
        groups.setdefault(key(cell), []).append(cell)
    return list(groups.values())


def _counts(cells: Sequence[RunGroup]) -> int:
    return len({cell.devices for cell in cells})


def _curve(label: str, conditions: str, scaling: Scaling, cells: Sequence[RunGroup]) -> Curve:
    ordered = sorted(cells, key=lambda cell: cell.devices)
    rates = [rate for cell in ordered if (rate := cell.spread(THROUGHPUT))]
    base, first = ordered[0].devices, rates[0].median
    return Curve(label, conditions, scaling, base, tuple(
        CurvePoint(cell, rate.scaled(1 / first), rate.scaled(base / (cell.devices * first)))
        for cell, rate in zip(ordered, rates, strict=True)
    ))  # fmt: skip


def with_time_to_loss(measurements: Sequence[Measurement]) -> tuple[list[Measurement], dict[str, float]]:
    """Adds the time to a loss that all runs of the same conditions reach, where none raced to one; and those losses.

    The loss is the lowest that all have reached, rounded up to two decimals.
    """
    marks = {}
    for conditions in dict.fromkeys(map(conditions_of, measurements)):
        alike = [run for run in measurements if conditions_of(run) == conditions]
        runs = [run for run in alike if run.result and not run.result.get("diverged")]
        lowest = [min(point.loss for point in curve) for run in runs if (curve := _smoothed(run))]
        if len(lowest) > 1 and not any(TIME_TO_LOSS.key in (run.result or {}) for run in runs):
            marks[conditions] = ceil(max(lowest) * 100) / 100
    return [_timed(run, marks.get(conditions_of(run))) for run in measurements], marks


def _smoothed(run: Measurement) -> list[LossPoint]:
    return run.steps.smoothed() if run.steps else []


def _timed(run: Measurement, mark: float | None) -> Measurement:
    if mark is None or run.result is None or run.steps is None or run.result.get("diverged"):
        return run
    return replace(run, result={**run.result, TIME_TO_LOSS.key: run.steps.seconds_to(mark)})
