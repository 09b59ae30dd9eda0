"""A worker's good and bad periods one after the other, found by time."""

import math
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from jaxdp.stragglers.draws import Draws
from jaxdp.stragglers.models import Periods

CYCLES = 64  # drawn at once


class Outage(NamedTuple):
    """A worker is down (or slow) from `start_s` to `end_s`; of an outage, its computation in progress is lost."""

    start_s: float
    end_s: float


NO_OUTAGE = Outage(math.inf, math.inf)


class Cycles:
    """The periods of one worker and one cause, in constant memory.

    Time only moves forward: to look back before `start_s`, start a new one.
    """

    def __init__(self, periods: Periods, draws: Draws, worker: int) -> None:
        self._periods, self._draws, self._worker = periods, draws, worker
        self._first, self.start_s, self._next_s = 0, 0.0, 0.0
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._extend()
        self._since_s, self._current = 0.0, Outage(0.0, 0.0)  # what `at` returned last, and since when it holds

    def at(self, at_s: float) -> Outage:
        """The bad period at `at_s`, or else the next one."""
        if self._current.end_s <= at_s or at_s < self._since_s:
            while self._ends[-1] <= at_s:
                self._extend()
            index = bisect_right(self._ends, at_s)
            self._current = Outage(self._starts[index], self._ends[index])
            self._since_s = self._ends[index - 1] if index else self.start_s
        return self._current

    def _extend(self) -> None:
        """Replaces the cycles held by the next ones."""
        cycles = np.arange(self._first, self._first + CYCLES)
        good_s, bad_s = self._periods(self._draws, self._worker, cycles)
        ends = self._next_s + np.cumsum(good_s + bad_s)
        self._starts, self._ends = (ends - bad_s).tolist(), ends.tolist()
        self._first, self.start_s, self._next_s = self._first + CYCLES, self._next_s, self._ends[-1]
