"""Loss against tokens and against time, from the lines of `steps.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Self

from jaxdp.records import step_time

MEAN_STEPS = 10  # global batches over which a loss is averaged before it counts as reached, as in `bench --until-loss`
WARM_UP_STEPS = 3


class LossPoint(NamedTuple):
    tokens: int
    seconds: float  # since the first step began, compiling left out
    loss: float  # nats a token


@dataclass(frozen=True)
class Steps:
    """A point a global batch of `tokens_per_step`, whatever the number of pushes that made it."""

    points: tuple[LossPoint, ...]
    tokens_per_step: int
    window_step_s: tuple[float, ...]  # seconds a global batch, a value a timed window, the warm-up left out

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], tokens_per_step: int) -> Self | None:
        """From the log's rows; None where it has none.

        Lines that end at the same token (the pushes of one update) count as one, which covers the tokens consumed
        since the line before, at its window's `step_time_s` a global batch. A dropped push counts for nothing.
        """
        rows = [row for row in rows if row["loss"] is not None and row.get("applied") is not False]
        if not rows:
            return None
        points: list[LossPoint] = []
        consumed = (rows[0]["tokens"] - 1) // tokens_per_step * tokens_per_step
        seconds = gathered = weight = 0.0
        for tokens, group in groupby(rows, key=itemgetter("tokens")):
            pushes, taken = list(group), tokens - consumed
            if taken <= 0:  # again, after a server went back to its snapshot
                continue
            consumed = tokens
            seconds += pushes[0]["step_time_s"] * taken / tokens_per_step
            gathered += taken * sum(push["loss"] for push in pushes) / len(pushes)
            weight += taken
            if weight >= tokens_per_step:
                points.append(LossPoint(consumed, seconds, gathered / weight))
                gathered = weight = 0.0
        return cls(tuple(points), tokens_per_step, _windows(rows))

    def smoothed(self) -> list[LossPoint]:
        """Each loss as the mean of the last ten global batches; shorter than the log by nine."""
        ends = range(MEAN_STEPS, len(self.points) + 1)
        return [
            self.points[end - 1]._replace(
                loss=sum(point.loss for point in self.points[end - MEAN_STEPS : end]) / MEAN_STEPS
            )
            for end in ends
        ]

    def seconds_to(self, loss: float) -> float | None:
        """Seconds until the mean loss of the last ten global batches is at most `loss`; None if it never is."""
        return next((point.seconds for point in self.smoothed() if point.loss <= loss), None)


def _windows(rows: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    timed = [row["step_time_s"] for row in rows if row["step"] >= rows[0]["step"] + WARM_UP_STEPS]
    return tuple(seconds for seconds, _ in groupby(timed))  # the steps of a window share its mean


def thinned(points: Sequence[LossPoint], most: int) -> list[LossPoint]:
    """At most `most` points, each the mean loss of a stretch at the stretch's end."""
    if len(points) <= most:
        return list(points)
    edges = [round(index * len(points) / most) for index in range(most + 1)]
    stretches = [points[a:b] for a, b in pairwise(edges)]
    return [part[-1]._replace(loss=sum(point.loss for point in part) / len(part)) for part in stretches]


def from_steps(record: Mapping[str, Any], summary: Mapping[str, Any], steps: Steps | None) -> dict[str, Any] | None:
    """What a training says in the terms of a bench, as far as its records tell; None where there are none."""
    if steps is None or not steps.points or not steps.window_step_s:
        return None
    devices = record.get("devices") or [{}]
    seconds = step_time(list(steps.window_step_s))
    rate = steps.tokens_per_step / seconds.median
    return {
        "devices": len(devices),
        "platform": devices[0].get("platform"),
        "device_kind": devices[0].get("kind"),
        "tokens_per_step": steps.tokens_per_step,
        "tokens_per_second": rate,
        "tokens_per_second_per_device": rate / len(devices),
        "step_time_s": asdict(seconds),
        "loss": {"first": steps.points[0].loss, "last": steps.points[-1].loss},
        "eval_loss": summary.get("eval_loss"),
        "diverged": bool(summary.get("diverged")),
        "notes": [],
    }
