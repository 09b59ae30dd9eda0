"""Loss against virtual time and against tokens: a point for each global batch of tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SMOOTHED = 5  # points whose mean decides when a loss is reached


class Point(NamedTuple):
    virtual_time_s: float
    tokens: int
    loss: float  # mean over the valid tokens of the batch, in nats


@dataclass(frozen=True)
class Training:
    """The curve of one strategy and seed with the learning rate of a grid that ended lowest; `ends` has them all."""

    learning_rate: float
    points: tuple[Point, ...]
    ends: Mapping[float, float] = field(default_factory=dict)

    @property
    def final_loss(self) -> float:
        """The mean of the last tenth; infinite for a training that diverged."""
        last = [point.loss for point in self.points[-max(1, len(self.points) // 10) :]]
        mean = sum(last) / len(last) if last else math.inf
        return mean if math.isfinite(mean) else math.inf


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


def smoothed(points: Sequence[Point]) -> list[Point]:
    """Each loss as the mean with the few before it."""
    windows = [points[max(0, end - SMOOTHED) : end] for end in range(1, len(points) + 1)]
    return [window[-1]._replace(loss=sum(point.loss for point in window) / len(window)) for window in windows]


def time_to_loss(points: Sequence[Point], loss: float) -> float | None:
    """Virtual seconds until the mean of the last few points is at most `loss`; None if it never is."""
    return next((point.virtual_time_s for point in smoothed(points)[SMOOTHED - 1 :] if point.loss <= loss), None)
