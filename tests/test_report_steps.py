"""Loss against tokens and time: a mesh's steps, a server's pushes, and what a training says of itself."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.report.analysis.load import load
from jaxdp.report.analysis.run_groups import with_time_to_loss
from jaxdp.report.analysis.steps import Steps, thinned
from jaxdp.strict_json import write_json
from tests.report_cases import CONTEXT, mesh_steps, write_run

BATCH = 16 * CONTEXT


def pushes(counts: list[int], losses: list[float], seconds: float, **more: Any) -> list[dict[str, Any]]:
    """A server's lines: tokens after each push, at `seconds` a global batch."""
    return [
        {"step": (tokens - 1) // BATCH, "tokens": tokens, "loss": loss, "step_time_s": seconds, "worker": 0, **more}
        for tokens, loss in zip(counts, losses, strict=True)
    ]


def steps_of(rows: list[dict[str, Any]]) -> Steps:
    found = Steps.of(rows, BATCH)
    assert found is not None
    return found


def test_a_mesh_strategy_has_a_point_a_step() -> None:
    found = steps_of(mesh_steps([5.0, 4.0, 3.0], 0.5))
    assert [tuple(point) for point in found.points] == [(BATCH, 0.5, 5.0), (2 * BATCH, 1.0, 4.0), (3 * BATCH, 1.5, 3.0)]


def test_two_pushes_of_half_a_batch_make_one_point_and_take_its_time_once() -> None:
    half = BATCH // 2
    found = steps_of(pushes([half, 2 * half, 3 * half, 4 * half], [5.0, 3.0, 2.0, 1.0], 0.8))
    assert [tuple(point) for point in found.points] == [(BATCH, 0.8, 4.0), (2 * BATCH, 1.6, 1.5)]


def test_pushes_of_one_update_share_their_tokens() -> None:
    found = steps_of(pushes([BATCH, BATCH, 2 * BATCH, 2 * BATCH], [5.0, 3.0, 2.0, 1.0], 0.8))
    assert [point.loss for point in found.points] == [4.0, 1.5]


def test_a_dropped_push_counts_for_nothing() -> None:
    rows = pushes([BATCH], [4.0], 0.8) + pushes([BATCH], [99.0], 0.8, applied=False)
    assert [tuple(point) for point in steps_of(rows).points] == [(BATCH, 0.8, 4.0)]


def test_a_resumed_log_starts_its_clock_at_its_first_step() -> None:
    rows = mesh_steps([5.0, 4.0, 3.0], 0.5)[1:]
    assert [tuple(point) for point in steps_of(rows).points] == [(2 * BATCH, 0.5, 4.0), (3 * BATCH, 1.0, 3.0)]


def test_a_loss_is_reached_by_the_mean_of_ten_batches() -> None:
    found = steps_of(mesh_steps([5.0] * 10 + [0.0] * 10, 1.0))
    assert found.seconds_to(5.0) == pytest.approx(10.0)
    assert found.seconds_to(2.5) == pytest.approx(15.0)  # five of the last ten are 0
    assert found.seconds_to(-1.0) is None


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=400), st.integers(1, 60))
def test_thinning_keeps_the_ends_and_the_mean(losses: list[float], most: int) -> None:
    points = steps_of(mesh_steps(losses, 1.0)).points
    thin = thinned(points, most)
    assert len(thin) == min(most, len(points)) and thin[-1].tokens == points[-1].tokens
    if len(points) % most == 0:
        mean = sum(point.loss for point in thin) / len(thin)
        assert mean == pytest.approx(sum(losses) / len(losses), abs=1e-9)


def test_a_training_is_read_from_its_steps(tmp_path: Path) -> None:
    write_run(tmp_path / "t", "fsdp", 2, 1000.0, losses=[5.0] * 3 + [4.0] * 9)
    write_json(tmp_path / "t" / "summary.json", {"strategy": "fsdp", "devices": 2, "step": 12, "eval_loss": 3.5})
    (run,) = load(tmp_path, "runs")
    assert run.result is not None
    assert run.result["tokens_per_second"] == pytest.approx(1000.0)
    assert run.result["tokens_per_second_per_device"] == pytest.approx(500.0)
    assert run.result["loss"] == {"first": 5.0, "last": 4.0} and run.result["eval_loss"] == 3.5
    assert "memory" not in run.result  # unknown, not 0


def test_runs_that_raced_to_no_loss_are_timed_to_the_lowest_that_all_reached(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 1, 1024.0, losses=[5.0] * 10 + [2.0] * 10)
    write_run(tmp_path / "b", "fsdp", 1, 512.0, losses=[5.0] * 10 + [4.0] * 10)
    runs, marks = with_time_to_loss(load(tmp_path, "runs"))
    assert marks == {"": 4.0}
    # Ddp's mean of ten is 5 - 0.3 k after k low steps: at most 4 from the fourth; fsdp's only after all ten.
    assert [run.result and run.result["time_to_loss_s"] for run in runs] == pytest.approx([14.0, 40.0])


def test_a_race_is_left_as_it_was_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 1, 1000.0, result={"time_to_loss_s": None})
    write_run(tmp_path / "b", "fsdp", 1, 500.0, result={"time_to_loss_s": 7.0})
    runs, marks = with_time_to_loss(load(tmp_path, "runs"))
    assert marks == {} and [run.result and run.result["time_to_loss_s"] for run in runs] == [None, 7.0]
