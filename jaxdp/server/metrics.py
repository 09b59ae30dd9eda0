"""What a server's run adds to the common measurements (no JAX)."""

import time
from collections import Counter
from typing import Any

from jaxdp.records import quantile


class Spans:
    """When a worker's step did what, in seconds of a monotonic clock; from the request on, one after the other."""

    __slots__ = ("compute_s", "data_wait_s", "pull_s", "push_s", "request_s", "target_s")

    def __init__(self, request_s: float) -> None:
        self.request_s = request_s  # asked for parameters
        self.pull_s = (request_s, request_s)  # from the permission to the parameters on the device
        self.compute_s = (request_s, request_s)  # with its pacing
        self.push_s = (request_s, request_s)  # until the gradient is with the server
        self.data_wait_s = 0.0
        self.target_s = 0.0  # what the straggler's delays meant the computing to take


class Measurements:
    """Counts since the last `reset`; a worker is idle while it neither moves data nor computes.

    Rates are of what happens between `begin` and `end`, whose time is taken.
    """

    def __init__(self, workers: int, parameter_bytes: int) -> None:
        self.workers = workers
        self.parameter_bytes = parameter_bytes
        self._timing = False
        self.reset()

    def reset(self) -> None:
        self.seconds = 0.0  # of serving
        self.updates = self.pushes = self.pulls = self.received = 0
        self.staleness: Counter[int] = Counter()
        self.idle_s = [0.0] * self.workers
        self.worker_s = [0.0] * self.workers
        self.intended_s = [0.0] * self.workers
        self.realised_s = [0.0] * self.workers
        self.steps = [0] * self.workers
        self.server_busy_s = 0.0
        self.queue: list[int] = []
        self.dropped = 0  # pushes that came too late to count
        self.lost_workers = 0
        self.lost_steps = 0  # of workers that were given up

    def begin(self) -> None:
        self._timing = True
        self._since_s = time.perf_counter()

    def end(self) -> None:
        self._timing = False
        self.seconds += time.perf_counter() - self._since_s

    def arrived(self, worker: int, spans: Spans, backlog: int) -> None:
        """A push is here: the worker's step is over."""
        self.received += 1
        self.steps[worker] += 1
        self.idle_s[worker] += max(0.0, spans.pull_s[0] - spans.request_s)
        self.worker_s[worker] += spans.push_s[1] - spans.request_s
        self.intended_s[worker] += spans.target_s
        self.realised_s[worker] += spans.compute_s[1] - spans.compute_s[0]
        self.queue.append(backlog)

    def applied(self, staleness: tuple[int, ...], seconds: float) -> None:
        self.updates += self._timing
        self.pushes += len(staleness) * self._timing
        self.staleness.update(staleness)
        self.server_busy_s += seconds * self._timing

    def summary(self) -> dict[str, Any]:
        """The keys that only a parameter server has; unknown is None."""
        seconds = self.seconds or None
        return {
            "updates_per_second": self.updates / seconds if seconds else None,
            "worker_steps_per_second": self.pushes / seconds if seconds else None,
            "staleness": staleness_summary(self.staleness),
            "idle_share": [
                idle / total if total else None for idle, total in zip(self.idle_s, self.worker_s, strict=True)
            ],
            "bytes_pulled": self.pulls * self.parameter_bytes,
            "bytes_pushed": self.received * self.parameter_bytes,
            "server_busy_share": self.server_busy_s / seconds if seconds else None,
            "queue_length": {
                "mean": sum(self.queue) / len(self.queue) if self.queue else None,
                "max": max(self.queue, default=None),
            },
            "worker_steps": list(self.steps),
            "intended_step_s": _means(self.intended_s, self.steps),
            "realised_step_s": _means(self.realised_s, self.steps),
            "dropped_pushes": self.dropped,
            "lost_workers": self.lost_workers,
            "lost_steps": self.lost_steps,
        }


def staleness_summary(counts: Counter[int]) -> dict[str, Any]:
    """Mean, median, 99th percentile, maximum and histogram of the staleness of applied pushes."""
    total = counts.total()
    if not total:
        return {"mean": None, "p50": None, "p99": None, "max": None, "histogram": []}
    values = sorted(counts.elements())
    return {
        "mean": sum(value * count for value, count in counts.items()) / total,
        "p50": quantile([float(value) for value in values], 0.5),
        "p99": quantile([float(value) for value in values], 0.99),
        "max": max(counts),
        "histogram": [list(item) for item in sorted(counts.items())],
    }


def _means(sums: list[float], counts: list[int]) -> list[float | None]:
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]
