"""Bends: device counts that scale worse than larger ones do, and the boundary that explains them.

Efficiency falls as devices are added, so a count that a larger one beats has a reason of its own. The study that this
tool follows saw such a dip, suspected the interconnect first, and was wrong: a shard boundary cut through a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Any

from jaxdp.report.analysis.run_groups import Curve, CurvePoint, Scaling
from jaxdp.report.analysis.spread import Spread

MIN_SHORTFALL = 0.05  # of the expected efficiency; less is not worth a flag
EXPLAINING = ("block_split", "group_undivided", "uneven", "replicated", "unplanned_collective")


@dataclass(frozen=True)
class Bend:
    """`expected` is the efficiency between the two neighbours that scale as they should.

    `finding` is the name of the pre-flight finding that this count has and its neighbours lack; None: unexplained.
    """

    label: str
    conditions: str
    scaling: Scaling
    devices: int
    efficiency: float
    expected: float
    before: int
    after: int
    finding: str | None
    message: str | None
    repeats: int

    @property
    def statement(self) -> str:
        cause = f"explained by {self.finding}: {self.message}" if self.finding else (
            "unexplained: no boundary finding of the pre-flight check tells it from its neighbours"
        )  # fmt: skip
        doubt = " (n = 1: its spread is that of its windows; repeat it)" if self.repeats == 1 else ""
        return (
            f"bend at {self.devices} devices: efficiency {self.efficiency:.2f} where {self.before} and {self.after} "
            f"devices lead one to expect {self.expected:.2f}{doubt}; {cause}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.label, "conditions": self.conditions, "scaling": self.scaling, "devices": self.devices,
            "efficiency": self.efficiency, "expected": self.expected, "neighbours": [self.before, self.after],
            "finding": self.finding or "unexplained", "message": self.message, "repeats": self.repeats,
        }  # fmt: skip


def bends_of(curve: Curve) -> list[Bend]:
    """Every point that both an earlier and a later one beat in efficiency, by 5 % and beyond the spread of each.

    Its neighbours are the nearest such points that are no bends themselves.
    """
    points = curve.points
    bent = [place for place in range(len(points)) if all(_beating(points, place))]
    sound = [place for place in range(len(points)) if place not in bent]
    found = []
    for place in bent:
        earlier, later = _beating(points, place)
        before = max(set(earlier) & set(sound))
        after = min(set(later) & set(sound))
        found.append(_bend(curve, points[before], points[place], points[after]))
    return found


def _beating(points: Sequence[CurvePoint], place: int) -> tuple[list[int], list[int]]:
    """The places before and after that beat the one at `place`."""
    better = [other for other, point in enumerate(points) if _beats(point.efficiency, points[place].efficiency)]
    return [other for other in better if other < place], [other for other in better if other > place]


def _beats(better: Spread, worse: Spread) -> bool:
    low = better.median if better.low is None else better.low
    high = worse.median if worse.high is None else worse.high
    return high < low and worse.median < (1 - MIN_SHORTFALL) * better.median


def _bend(curve: Curve, before: CurvePoint, point: CurvePoint, after: CurvePoint) -> Bend:
    names = [name for name in EXPLAINING if name in point.cell.findings]
    own = [name for name in names if not {name} & {*before.cell.findings, *after.cell.findings}]
    return Bend(
        label=curve.label,
        conditions=curve.conditions,
        scaling=curve.scaling,
        devices=point.cell.devices,
        efficiency=point.efficiency.median,
        expected=_between(before, point, after),
        before=before.cell.devices,
        after=after.cell.devices,
        finding=own[0] if own else None,
        message=str(point.cell.findings[own[0]].get("message")) if own else None,
        repeats=point.efficiency.n,
    )


def _between(before: CurvePoint, point: CurvePoint, after: CurvePoint) -> float:
    """The neighbours' efficiency at the point's devices, on a straight line over the logarithm of devices."""
    a, n, b = (log(each.cell.devices) for each in (before, point, after))
    share = (n - a) / (b - a)
    return (1 - share) * before.efficiency.median + share * after.efficiency.median


def bend_at(bends: Sequence[Bend], curve: Curve, devices: int) -> Bend | None:
    """The curve's bend at a device count, if there is one."""
    found = (
        bend
        for bend in bends
        if (bend.label, bend.conditions, bend.scaling) == (curve.label, curve.conditions, curve.scaling)
    )
    return next((bend for bend in found if bend.devices == devices), None)
