"""Timelines: what Perfetto needs of a Chrome trace, at 8 and at 64 workers."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jaxdp.timeline import LANES, SERVER, Timeline
from sims.results import simulate
from sims.scenario import build
from sims.strategy import Strategy

NETWORK = {"message_bytes": 10**6, "nic_gbps": 1.0, "server_nic_gbps": 2.0, "latency_s": 0.001, "apply_s": 0.002}


def timeline(strategy: Strategy, workers: int, max_events: int = 60_000, **more: Any) -> Timeline:
    spec = "lognormal(sigma=.3),fail(mtbf_s=30,restart_s=1)"
    values = {"workers": workers, "steps": 20, "compute_s": 0.2, "delays": spec, **NETWORK, **more}
    drawn = Timeline(workers, max_events)
    simulate(build(values), strategy, 0, drawn)
    return drawn


def lanes(drawn: Timeline) -> dict[tuple[int, int], list[dict[str, Any]]]:
    spans = defaultdict(list)
    for event in drawn.events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(event)
    return spans


@pytest.mark.parametrize("workers", [8, 64])
@pytest.mark.parametrize("queue", ["fifo", "shared"])
@pytest.mark.parametrize(
    "strategy",
    [Strategy(name="ddp"), Strategy(name="ps"), Strategy(name="ps", policy="sync")],
    ids=lambda strategy: strategy.label,
)
def test_every_lane_holds_spans_one_after_the_other(strategy: Strategy, queue: str, workers: int) -> None:
    drawn = timeline(strategy, workers, queue=queue)
    spans = lanes(drawn)
    compute = {pid - 1 for pid, lane in spans if LANES[lane] == "compute"}
    assert compute == set(range(workers))
    if strategy.name == "ps":
        assert {LANES[lane] for _, lane in spans} == set(LANES)
        assert {pid - 1 for pid, lane in spans if LANES[lane] == "apply"} == {SERVER}
    for events in spans.values():
        events.sort(key=lambda event: event["ts"])
        assert all(event["dur"] >= 0 for event in events)
        for before, after in pairwise(events):
            assert before["ts"] + before["dur"] <= after["ts"] + 0.002, (before, after)


def test_pushes_flow_to_their_applications() -> None:
    drawn = timeline(Strategy(name="ps"), 8)
    starts = {event["id"]: event for event in drawn.events if event["ph"] == "s"}
    ends = {event["id"]: event for event in drawn.events if event["ph"] == "f"}
    applied = [event for event in drawn.events if event["ph"] == "X" and event["cat"] == "apply"]
    assert starts.keys() == ends.keys()
    assert len(starts) == len(applied) >= 160
    assert all(starts[key]["ts"] <= ends[key]["ts"] and ends[key]["bp"] == "e" for key in starts)
    counters = {event["name"] for event in drawn.events if event["ph"] == "C"}
    assert counters == {"queue", "staleness"}


def test_the_document_names_its_processes_and_lanes(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline(Strategy(name="ps"), 8).save(path)
    document = json.loads(path.read_text())
    names = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert names == {"server", *(f"worker {worker}" for worker in range(8))}
    threads = {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}
    assert threads == set(LANES)


def test_a_timeline_stops_growing() -> None:
    drawn = timeline(Strategy(name="ps"), 8, max_events=100, steps=200)
    assert drawn.full
    assert len(drawn.events) < 105
