"""Two sources side by side: what differs in the same cells beyond the spread of both, and what was set otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxdp.config import dotted
from jaxdp.report.analysis import metrics
from jaxdp.report.analysis.load import Measurement
from jaxdp.report.analysis.metrics import Metric
from jaxdp.report.analysis.run_groups import RunGroup
from jaxdp.report.analysis.settings import settings_of
from jaxdp.report.analysis.spread import Spread, apart
from jaxdp.strict_json import to_json

COMPARED = (
    metrics.THROUGHPUT,
    metrics.STEP_TIME,
    metrics.STATE,
    metrics.PARAMETERS,
    metrics.OPTIMIZER,
    metrics.COMPILED,
    metrics.PEAK,
    metrics.SENT,
    metrics.STALENESS,
    metrics.TIME_TO_LOSS,
    metrics.LAST_LOSS,
    metrics.EVAL_LOSS,
    metrics.COMPILE,
)

Judgement = Literal["better", "worse", "different", "within spread", "same", "unknown"]


@dataclass(frozen=True)
class Difference:
    """One metric of a cell that both sources have. `ratio` is B's median over A's, None where A's is 0."""

    cell: RunGroup  # A's
    metric: Metric
    a: Spread
    b: Spread
    judgement: Judgement

    @property
    def ratio(self) -> float | None:
        return self.b.median / self.a.median if self.a.median else None

    @property
    def matters(self) -> bool:
        return self.judgement in ("better", "worse", "different")

    @property
    def doubtful(self) -> bool:
        """A difference that rests on the windows of a single run."""
        return self.matters and "windows" in (self.a.of, self.b.of)

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.cell.label, "devices": self.cell.devices, "conditions": self.cell.conditions,
            "metric": self.metric.key, "a": self.a.to_json(), "b": self.b.to_json(), "ratio": self.ratio,
            "judgement": self.judgement, "matters": self.matters,
        }  # fmt: skip


def differences(a: Sequence[RunGroup], b: Sequence[RunGroup]) -> list[Difference]:
    """Every compared metric of every cell that both have; B is judged against A."""
    others = {_same(cell): cell for cell in b}
    found = []
    for cell in a:
        other = others.get(_same(cell))
        for metric in COMPARED if other else ():
            left, right = cell.spread(metric), other.spread(metric) if other else None
            if left and right:
                found.append(Difference(cell, metric, left, right, judge(metric, left, right)))
    return found


def in_common(a: Sequence[RunGroup], b: Sequence[RunGroup]) -> bool:
    return bool({_same(cell) for cell in a} & {_same(cell) for cell in b})


def _same(cell: RunGroup) -> tuple[Any, ...]:
    return cell.label, cell.conditions, cell.devices, cell.tokens_per_step


def judge(metric: Metric, a: Spread, b: Spread) -> Judgement:
    """What is counted differs or not; what is timed differs where the spreads lie apart."""
    if a.median == b.median:
        return "same"
    beyond = True if metric.exact else apart(a, b)
    if beyond is None:
        return "unknown"
    if not beyond:
        return "within spread"
    if metric.better == "neither":
        return "different"
    return "better" if (b.median > a.median) == (metric.better == "higher") else "worse"


def settings_that_differ(a: Sequence[Measurement], b: Sequence[Measurement]) -> list[tuple[str, str, str]]:
    """Config keys, versions, machine and devices whose values in A are not those in B: key, A's, B's."""
    left, right = _values(a), _values(b)
    return [
        (key, ", ".join(sorted(left.get(key, ()))) or "(absent)", ", ".join(sorted(right.get(key, ()))) or "(absent)")
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    ]


def _values(runs: Sequence[Measurement]) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in dotted(settings_of(run.record)).items():
            values.setdefault(key, set()).add(value if isinstance(value, str) else to_json(value))
    return values
