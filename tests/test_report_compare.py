"""Two sources side by side: what is called a difference, and what was set otherwise."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.report.analysis.compare import judge
from jaxdp.report.analysis.metrics import LAST_LOSS, STATE, STEP_TIME, THROUGHPUT
from jaxdp.report.analysis.spread import Spread, spread
from jaxdp.report.analysis.write import Study, sections_of, study
from tests.report_cases import result, row, write_run, write_sweep


def ranged(low: float, median: float, high: float) -> Spread:
    return Spread(median, low, high, 3, "range")


def test_a_difference_matters_beyond_the_spread_of_both() -> None:
    assert judge(THROUGHPUT, ranged(9, 10, 11), ranged(12, 13, 14)) == "better"
    assert judge(THROUGHPUT, ranged(12, 13, 14), ranged(9, 10, 11)) == "worse"
    assert judge(STEP_TIME, ranged(9, 10, 11), ranged(12, 13, 14)) == "worse"
    assert judge(THROUGHPUT, ranged(9, 10, 13), ranged(12, 13, 14)) == "within spread"


def test_of_single_runs_without_a_spread_nothing_is_said() -> None:
    assert judge(LAST_LOSS, Spread(3.0, None, None, 1, None), Spread(2.0, None, None, 1, None)) == "unknown"


def test_what_is_counted_differs_by_any_byte() -> None:
    one, other = spread([100.0]), spread([101.0])
    assert one and other
    assert judge(STATE, one, other) == "worse" and judge(STATE, one, one) == "same"


rates = st.lists(st.floats(1.0, 1e6), min_size=2, max_size=5)


@given(rates, rates)
def test_judging_the_other_way_round_turns_the_judgement(a: list[float], b: list[float]) -> None:
    one, other = spread(a), spread(b)
    assert one and other
    turned = {"better": "worse", "worse": "better"}
    forth, back = judge(THROUGHPUT, one, other), judge(THROUGHPUT, other, one)
    assert back == turned.get(forth, forth)
    if forth in turned:
        assert max(a) < min(b) or max(b) < min(a)


def two_dates(tmp_path: Path) -> Study:
    for repeat in range(3):
        for n in (1, 2):
            write_run(tmp_path / "monday" / f"{n}-{repeat}", "ddp", n, 1000.0 * n + repeat, seed=repeat)
            write_run(tmp_path / "tuesday" / f"{n}-{repeat}", "ddp", n, (700.0 if n == 2 else 1000.0) * n + repeat,
                      seed=repeat, server={"policy": "ssp"})  # fmt: skip
    return study([tmp_path / "monday", tmp_path / "tuesday"])


def test_two_folders_with_the_same_cells_are_compared_and_stay_apart(tmp_path: Path) -> None:
    found = two_dates(tmp_path)
    assert found.compared == ("monday", "tuesday")
    assert {cell.label for cell in found.cells} == {"ddp · monday", "ddp · tuesday"}
    told = {(each.cell.devices, each.metric.key): each for each in found.differences}
    slower = told[2, "tokens_per_second"]
    assert slower.matters and slower.judgement == "worse" and slower.ratio == pytest.approx(1401 / 2001)
    assert told[1, "tokens_per_second"].judgement == "same"
    assert told[2, "memory.state_bytes_per_device"].judgement == "same"


def test_settings_that_differ_are_named_with_both_values(tmp_path: Path) -> None:
    assert two_dates(tmp_path).settings == [("config.server.policy", "async", "ssp")]


def test_two_folders_are_pooled_on_request_or_without_a_cell_in_common(tmp_path: Path) -> None:
    two_dates(tmp_path)
    folders = [tmp_path / "monday", tmp_path / "tuesday"]
    pooled = study(folders, pool=True)
    assert pooled.compared is None and [len(cell.runs) for cell in pooled.cells] == [6, 6]
    write_run(tmp_path / "eight", "ddp", 8, 4000.0)
    assert study([tmp_path / "monday", tmp_path / "eight"]).compared is None


def test_many_folders_are_one_study(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"n{n}", "ddp", n, 900.0 * n) for n in (1, 2, 4)]
    (curve,) = study(folders).curves
    assert [point.cell.devices for point in curve.points] == [1, 2, 4]


def test_two_sweeps_are_compared_by_their_axes(tmp_path: Path) -> None:
    axes: dict[str, Any] = {"model.width": 64}
    rows = [row("ddp", 1, 100.0, repeat, axes=axes) for repeat in range(2)]
    faster = [row("ddp", 1, 200.0, repeat, axes=axes) for repeat in range(2)]
    other = [row("ddp", 1, 999.0, repeat, axes={"model.width": 128}) for repeat in range(2)]
    a, b = write_sweep(tmp_path / "a", rows), write_sweep(tmp_path / "b", [*faster, *other])
    told = [each for each in study([a, b]).differences if each.metric is THROUGHPUT]
    assert [(each.cell.conditions, each.ratio, each.judgement) for each in told] == [("width=64", 2.0, "better")]


def test_the_page_says_which_is_a_and_which_is_b(tmp_path: Path) -> None:
    section = next(each for each in sections_of(two_dates(tmp_path)) if each.heading == "B against A")
    assert "A is `monday`, B is `tuesday`" in section.prose
    assert section.verdict and section.verdict.tone == "mixed"


def test_a_single_runs_spread_is_that_of_its_windows(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "ddp", 1, 1000.0)
    near, far = write_run(tmp_path / "b", "ddp", 1, 1040.0), write_run(tmp_path / "c", "ddp", 1, 1200.0)
    judged = [
        next(each for each in study([a, other]).differences if each.metric is THROUGHPUT) for other in (near, far)
    ]
    assert [(each.judgement, each.doubtful) for each in judged] == [("within spread", False), ("better", True)]
    assert result("ddp", 1, 1000.0)["step_time_s"]["n"] == 10
