"""Timelines in the Chrome trace-event format, which Perfetto (ui.perfetto.dev) opens: simulated or measured.

One process a worker with a lane each for computing and for its link's two directions, one process for the
server with its applications and counters, and arrows from a push to its application.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxdp.strict_json import write_json

LANES = ("compute", "NIC in", "NIC out", "apply")
SERVER = -1  # the server's place among the workers


@dataclass(frozen=True)
class Span:
    """Something a worker or the server (`SERVER`) did in a lane of `LANES`, in seconds of a monotonic clock."""

    worker: int
    lane: str
    name: str
    start_s: float
    end_s: float


class Timeline:
    """Collects spans up to `max_events`, so that memory does not grow with the run; then it is `full`."""

    def __init__(self, workers: int, max_events: int = 60_000) -> None:
        self.workers = workers
        self.max_events = max_events
        self.events: list[dict[str, Any]] = []
        self._flows = 0

    @property
    def full(self) -> bool:
        return len(self.events) >= self.max_events

    def span(self, worker: int, lane: str, name: str, start_s: float, end_s: float, **args: Any) -> None:
        """Something that `worker` (or `SERVER`) did from `start_s` to `end_s`; spans of a lane don't overlap."""
        if not self.full:
            place = {"pid": worker + 1, "tid": LANES.index(lane)}
            duration = {"ts": _micro(start_s), "dur": max(0.0, _micro(end_s) - _micro(start_s))}
            self.events.append({"ph": "X", "name": name, "cat": lane, **place, **duration, "args": args})

    def flow(self, worker: int, sent_s: float, applied_s: float) -> None:
        """An arrow from the end of a worker's push to its application at the server."""
        if not self.full:
            self._flows += 1
            common = {"name": "push", "cat": "push", "id": self._flows}
            sender = {"pid": worker + 1, "tid": LANES.index("NIC out"), "ts": _micro(sent_s)}
            server = {"pid": SERVER + 1, "tid": LANES.index("apply"), "ts": _micro(applied_s)}
            self.events.append({"ph": "s", **common, **sender})
            self.events.append({"ph": "f", "bp": "e", **common, **server})

    def counter(self, name: str, at_s: float, value: float) -> None:
        if not self.full:
            place = {"pid": SERVER + 1, "ts": _micro(at_s)}
            self.events.append({"ph": "C", "name": name, **place, "args": {name: value}})

    def document(self) -> dict[str, Any]:
        return {"traceEvents": [*self._names(), *self.events], "displayTimeUnit": "ms"}

    def save(self, path: Path) -> None:
        write_json(path, self.document())

    def _names(self) -> Iterator[dict[str, Any]]:
        used = sorted({(event["pid"], event["tid"]) for event in self.events if "tid" in event})
        for pid in sorted({pid for pid, _ in used}):
            name = "server" if pid == SERVER + 1 else f"worker {pid - 1}"
            yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for pid, tid in used:
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": LANES[tid]}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def timeline(spans: Iterable[Span], workers: int) -> Timeline:
    """Spans of a real run as a timeline that starts at zero."""
    spans = sorted(spans, key=lambda span: span.start_s)
    drawn = Timeline(workers)
    for span in spans:
        origin = spans[0].start_s
        drawn.span(span.worker, span.lane, span.name, span.start_s - origin, span.end_s - origin)
    return drawn


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)
