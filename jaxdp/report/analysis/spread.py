"""A metric over repeats: its median and spread, and when two of them differ beyond it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jaxdp.records import quantile

FEW = 10  # repeats below which the spread is the whole range: a decile of fewer is no more than an end


@dataclass(frozen=True)
class Spread:
    """The median of `n` repeats. `low` and `high` are their range, of ten and more p10 and p90.

    Of a single run they are those of its timed windows ("windows"), or None: then nothing is known of them.
    """

    median: float
    low: float | None
    high: float | None
    n: int
    of: Literal["range", "p10-p90", "windows"] | None

    def scaled(self, factor: float) -> "Spread":
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, median=self.median * factor, low=low, high=high)

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "low": self.low, "high": self.high, "n": self.n, "spread": self.of}


def spread(values: Sequence[float | None], window: tuple[float, float] | None = None) -> Spread | None:
    """Over the repeats' values, those unknown left out; `window` is the p10 and p90 of a single run's windows."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    median = quantile(known, 0.5)
    if len(known) == 1:
        low, high = sorted(window) if window else (None, None)
        return Spread(median, low, high, 1, "windows" if window else None)
    if len(known) < FEW:
        return Spread(median, min(known), max(known), len(known), "range")
    return Spread(median, quantile(known, 0.1), quantile(known, 0.9), len(known), "p10-p90")


def apart(a: Spread, b: Spread) -> bool | None:
    """Whether the two differ by more than both spreads; None where a spread is unknown."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    return a.high < b.low or b.high < a.low
