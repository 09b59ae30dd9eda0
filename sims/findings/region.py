"""Where in a grid of conditions a claimed range is met: maps of values, the region in words, verdict and heat maps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxdp.records import How
from sims.findings.drawing import heat_map, number_text, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, Drawing, Finding, Value


@dataclass(frozen=True)
class Map:
    """Values over a grid, rows by `y`; a cell meets the claim from `low` to `high`. NaN: nothing to say there."""

    title: str
    x_name: str
    y_name: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    low: float
    high: float
    how: How
    form: str = "{:.1f}"

    @property
    def region(self) -> np.ndarray:
        cells = np.array(self.values, dtype=float)
        return (cells >= self.low) & (cells <= self.high)

    @property
    def words(self) -> str:
        """Row by row the stretches of columns within the region; "nowhere" for none."""
        rows = []
        for label, row in zip(self.y, self.region, strict=True):
            if row.any():
                rows.append(f"{label}: {', '.join(_stretches(row, self.x))}")
        return f"{self.y_name} {'; '.join(rows)} ({self.x_name})" if rows else "nowhere"


@dataclass(frozen=True)
class Regions:
    """The maps of one claim, and further values beside them."""

    maps: tuple[Map, ...]
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class RegionPoint:
    """One cell of a map, as a row of the figure's table."""

    map: str
    y: str
    x: str
    value: float | None
    inside: bool


def _stretches(row: np.ndarray, labels: Sequence[str]) -> list[str]:
    inside, found, start = [*row.tolist(), False], [], None
    for place, here in enumerate(inside):
        if here and start is None:
            start = place
        elif not here and start is not None:
            first, last = labels[start], labels[place - 1]
            found.append(first if first == last else f"{first} to {last}")
            start = None
    return found


def judge(name: str, claim: str, condition: str, evidence: Regions) -> Finding:
    """Holds where every cell meets the claim, under a condition where some do; the region is the condition."""
    shares = [float(each.region.mean()) for each in evidence.maps]
    values = tuple(
        Value(f"share_of_settings.{each.title}", "all", share, each.how)
        for each, share in zip(evidence.maps, shares, strict=True)
    )
    where = ". ".join(f"{each.title}: {each.words}" for each in evidence.maps)
    spans = []
    for each in evidence.maps:
        known = [value for row in each.values for value in row if math.isfinite(value)]
        spans.append(f"{each.title}: {number_text(min(known), each.form)} to {number_text(max(known), each.form)}")
    verdict = HOLDS if all(share == 1 for share in shares) else CONDITIONAL if any(shares) else FAILS
    told = f"{condition}. Met at: {where}"
    return Finding(name, claim, told, verdict, "values looked at: " + "; ".join(spans), values + evidence.values)


def draw(evidence: Regions) -> Drawing:
    figure, axes = panels(len(evidence.maps), width=5.6)
    rows = []
    for each, one in zip(axes, evidence.maps, strict=True):
        heat_map(each, one.values, one.x, one.y, one.region, one.form)
        each.set(xlabel=one.x_name, ylabel=one.y_name)
        each.set_title(one.title, fontsize=9)
        for (row, column), inside in np.ndenumerate(one.region):
            value = one.values[row][column]
            known = value if math.isfinite(value) else None
            rows.append(RegionPoint(one.title, one.y[row], one.x[column], known, bool(inside)))
    return Drawing(figure, rows)
