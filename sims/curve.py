"""Loss against virtual time and against tokens: a point for each global batch of tokens."""

import math
from collections.abc import Sequence
from typing import NamedTuple

SMOOTHED = 5  # points whose mean decides when a loss is reached


class Point(NamedTuple):
    virtual_time_s: float
    tokens: int
    loss: float  # mean over the valid tokens of the batch, in nats


class Curve:
    """Gathers updates into points of `batch_tokens` tokens, whatever the size of an update."""

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self.points: list[Point] = []
        self._loss = self._valid = 0.0

    def add(self, now_s: float, tokens: int, loss_sum: float, valid: float) -> None:
        """One update: tokens consumed so far with it, the sum of its losses and its valid tokens."""
        self._loss += loss_sum
        self._valid += valid
        if tokens >= (len(self.points) + 1) * self.batch_tokens:
            self.points.append(Point(now_s, tokens, self._loss / max(self._valid, 1.0)))
            self._loss = self._valid = 0.0


def time_to_loss(points: Sequence[Point], loss: float) -> float | None:
    """Virtual seconds until the mean of the last few points is at most `loss`; None if it never is."""
    for end in range(SMOOTHED, len(points) + 1):
        mean = sum(point.loss for point in points[end - SMOOTHED : end]) / SMOOTHED
        if math.isfinite(mean) and mean <= loss:
            return points[end - 1].virtual_time_s
    return None
