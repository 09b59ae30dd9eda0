"""Repeats, efficiency, scaling curves and bends: worked by hand, and as laws."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.errors import BadInput
from jaxdp.records import SweepRow
from jaxdp.report.analysis.bends import MIN_SHORTFALL, bends_of
from jaxdp.report.analysis.load import Measurement, load
from jaxdp.report.analysis.metrics import COMPILED, PEAK, STEP_TIME, THROUGHPUT
from jaxdp.report.analysis.run_groups import Curve, cells_of, curves_of, with_axes
from jaxdp.report.analysis.spread import Spread, apart, spread
from jaxdp.report.analysis.terminal import print_study
from jaxdp.report.analysis.write import study, write
from tests.report_cases import DIP, SPLIT, dip_rows, finding, record, result, row, write_run, write_sweep


def measured(rows: list[SweepRow]) -> list[Measurement]:
    return [
        Measurement("a", each.key, str(each.cell["strategy"]), each.cell["devices"],
                    {k: v for k, v in each.cell.items() if k not in ("strategy", "devices")}, each.repeat, each.status,
                    each.reason, each.result, each.predicted, each.findings)
        for each in rows
    ]  # fmt: skip


def curve_of(rates: dict[int, float], findings: dict[int, list[str]] | None = None, repeats: int = 3) -> Curve:
    rows = [
        row("fsdp", n, rate * (1 + 0.001 * repeat), repeat, findings=[finding(f) for f in (findings or {}).get(n, [])])
        for n, rate in rates.items()
        for repeat in range(repeats)
    ]
    (curve,) = curves_of(cells_of(measured(rows)))
    return curve


def test_a_spread_is_the_range_of_few_repeats_and_the_deciles_of_many() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 3, "range")
    assert spread([float(value) for value in range(11)]) == Spread(5.0, 1.0, 9.0, 11, "p10-p90")


def test_a_single_run_has_the_spread_of_its_windows_or_none() -> None:
    assert spread([10.0], (12.0, 8.0)) == Spread(10.0, 8.0, 12.0, 1, "windows")
    assert spread([10.0]) == Spread(10.0, None, None, 1, None)


def test_unknown_repeats_do_not_count_and_are_never_zero() -> None:
    assert spread([None, 4.0, None, 2.0]) == Spread(3.0, 2.0, 4.0, 2, "range")
    assert spread([None, None]) is None


def test_two_spreads_are_apart_only_beyond_both() -> None:
    low, high = Spread(1.0, 0.9, 1.1, 3, "range"), Spread(2.0, 1.9, 2.1, 3, "range")
    assert apart(low, high) and apart(high, low)
    assert apart(low, Spread(1.2, 1.05, 1.3, 3, "range")) is False
    assert apart(low, Spread(9.0, None, None, 1, None)) is None


def test_efficiency_and_speed_up_by_hand() -> None:
    curve = curve_of({1: 1000.0, 2: 1800.0, 4: 2400.0}, repeats=1)
    assert [point.speed_up.median for point in curve.points] == pytest.approx([1.0, 1.8, 2.4])
    assert [point.efficiency.median for point in curve.points] == pytest.approx([1.0, 0.9, 0.6])


def test_without_one_device_the_fewest_are_the_base() -> None:
    curve = curve_of({2: 1000.0, 8: 3000.0}, repeats=1)
    assert curve.base == 2
    assert curve.points[1].efficiency.median == pytest.approx(3000 / (8 / 2 * 1000))


def test_the_windows_of_a_single_run_become_the_spread_of_its_rate() -> None:
    (cell,) = cells_of(measured([row("ddp", 1, 1000.0)]))
    rate, step = cell.spread(THROUGHPUT), cell.spread(STEP_TIME)
    assert rate and step and rate.low is not None and rate.high is not None
    assert (rate.n, rate.of) == (1, "windows")
    assert (rate.low, rate.high) == pytest.approx((1000 / 1.05, 1000 / 0.95))
    assert (step.low, step.high) == pytest.approx((1.024 * 0.95, 1.024 * 1.05))


def test_weak_and_strong_are_told_by_the_tokens_of_a_step() -> None:
    strong = [row("ddp", n, 100.0 * n) for n in (1, 2, 4)]
    weak = [row("ddp", n, 100.0 * n, batch=16 * n) for n in (1, 2, 4)]
    assert [curve.scaling for curve in curves_of(cells_of(measured(strong)))] == ["strong"]
    assert [curve.scaling for curve in curves_of(cells_of(measured(weak)))] == ["weak"]
    both = curves_of(cells_of(measured([*strong, *weak[1:]])))
    assert [(curve.scaling, len(curve.points)) for curve in both] == [("strong", 3), ("weak", 3)]


def test_a_batch_that_changes_otherwise_is_neither() -> None:
    rows = [row("ddp", n, 100.0 * n, batch=batch) for n, batch in ((1, 16), (2, 24), (4, 80))]
    assert [curve.scaling for curve in curves_of(cells_of(measured(rows)))] == ["mixed"]


def test_axes_of_the_strategy_name_its_line_and_others_the_conditions(tmp_path: Path) -> None:
    """The flat unit goes by its own name, also where an older table spells it as a unit of FSDP."""
    axes = {"strategy.min_shard_bytes": 0, "model.width": 64, "server.policy": "ssp"}
    rows = [row("fsdp", 2, 1.0, axes={"strategy.unit": "flat", **axes}), row("fsdp_flat", 2, 1.0, axes=axes)]
    for folder, only in zip(("old", "new"), rows, strict=True):
        (cell,) = cells_of(with_axes(load(write_sweep(tmp_path / folder, [only]), folder)))
        assert (cell.label, cell.conditions) == ("fsdp_flat min_shard_bytes=0", "width=64")


def test_runs_get_the_settings_that_vary_as_axes_but_never_the_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 2, 100.0, seed=0)
    write_run(tmp_path / "b", "ddp", 2, 110.0, seed=1)
    write_run(tmp_path / "c", "ddp", 2, 50.0, model={"layers": 4, "width": 128, "context": 64})
    runs = with_axes(load(tmp_path, "runs"))
    assert [dict(run.axes) for run in runs] == [{"model.width": 64}, {"model.width": 64}, {"model.width": 128}]
    assert [(cell.conditions, len(cell.runs)) for cell in cells_of(runs)] == [("width=128", 1), ("width=64", 2)]


def test_a_setting_of_another_strategy_makes_no_conditions(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 2, 100.0, server={"policy": "async"})
    write_run(tmp_path / "b", "ddp", 2, 110.0, server={"policy": "ssp"})
    assert [len(cell.runs) for cell in cells_of(with_axes(load(tmp_path, "runs")))] == [2]


def test_memory_is_predicted_by_the_pre_flight_unless_that_was_compiled(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 2, 100.0)
    (cell,) = cells_of(load(tmp_path, "runs"))
    assert cell.predicted(COMPILED) == 2**22
    assert cell.predicted(PEAK) is None and cell.spread(PEAK) is None


def test_the_cost_models_prediction_is_found_in_its_row() -> None:
    predicted = {"step_time_s": {"total": 0.5, "exposed_communication": 0.1}, "tokens_per_second": 2048.0}
    (cell,) = cells_of(measured([row("ddp", 2, 2000.0, predicted=predicted)]))
    assert cell.predicted(STEP_TIME) == 0.5
    assert cell.predicted(THROUGHPUT) == 2048.0


# Bends.


def test_the_studys_dip_is_found_and_explained_by_its_boundary() -> None:
    curve = next(c for c in curves_of(cells_of(measured(dip_rows()))) if c.label == "fsdp")
    bends = bends_of(curve)
    assert [bend.devices for bend in bends] == list(SPLIT)
    assert {(bend.before, bend.after, bend.finding) for bend in bends} == {(3, 6, "block_split")}
    assert bends[0].efficiency == pytest.approx(DIP[4] / (4 * DIP[1]))
    # Between 0.9 at 3 and 0.8 at 6 devices, on a line over the logarithm of devices: log(4/3) / log(2) of the way.
    assert bends[0].expected == pytest.approx(0.9 - 0.1 * 0.41504, abs=1e-4)
    assert "explained by block_split: a cut falls inside a block" in bends[0].statement


def test_a_dip_without_a_finding_of_its_own_is_unexplained() -> None:
    rates = {1: 1000.0, 2: 1900.0, 3: 1800.0, 4: 3600.0}
    (bend,) = bends_of(curve_of(rates))
    assert (bend.devices, bend.finding) == (3, None) and "unexplained" in bend.statement
    shared = {2: ["replicated"], 3: ["replicated"], 4: ["replicated"]}
    assert [bend.finding for bend in bends_of(curve_of(rates, shared))] == [None]


def test_a_dip_within_the_spread_is_no_bend() -> None:
    noisy = {1: (1000.0, 1001.0), 2: (1300.0, 1900.0), 4: (3300.0, 3500.0)}
    rows = [row("ddp", n, rate, repeat) for n, rates in noisy.items() for repeat, rate in enumerate(rates)]
    (curve,) = curves_of(cells_of(measured(rows)))
    assert bends_of(curve) == []


def test_a_knee_that_never_recovers_is_no_bend() -> None:
    assert bends_of(curve_of({1: 1000.0, 2: 1100.0, 4: 1200.0, 8: 1300.0})) == []


def test_scaling_above_one_is_no_bend_at_the_start() -> None:
    assert bends_of(curve_of({1: 1000.0, 2: 2400.0, 4: 5600.0})) == []


shares = st.lists(st.floats(0.3, 1.0), min_size=3, max_size=7)


@given(shares)
def test_a_falling_efficiency_never_bends(shares: list[float]) -> None:
    falling = sorted(shares, reverse=True)
    rates = {n: 1000.0 * n * share / falling[0] for n, share in enumerate(falling, start=1)}
    assert bends_of(curve_of(rates)) == []


@given(shares, st.floats(0.01, 1e6))
def test_efficiency_and_bends_know_no_unit_of_throughput(shares: list[float], unit: float) -> None:
    rates = {n: 1000.0 * n * share for n, share in enumerate(shares, start=1)}
    plain, scaled = curve_of(rates), curve_of({n: unit * rate for n, rate in rates.items()})
    a, b = ([point.efficiency.median for point in curve.points] for curve in (plain, scaled))
    assert a == pytest.approx(b)
    assert [bend.devices for bend in bends_of(plain)] == [bend.devices for bend in bends_of(scaled)]


@given(shares)
def test_every_bend_lies_below_both_its_neighbours(shares: list[float]) -> None:
    curve = curve_of({n: 1000.0 * n * share for n, share in enumerate(shares, start=1)})
    efficiency = {point.cell.devices: point.efficiency.median for point in curve.points}
    for bend in bends_of(curve):
        assert bend.before < bend.devices < bend.after
        least = (1 - MIN_SHORTFALL) * min(efficiency[bend.before], efficiency[bend.after])
        assert bend.efficiency < least and bend.efficiency < bend.expected


@given(st.permutations(dip_rows(2)))
def test_the_order_of_rows_does_not_matter(rows: list[SweepRow]) -> None:
    told = [bend.to_json() for curve in curves_of(cells_of(measured(rows))) for bend in bends_of(curve)]
    assert [bend["devices"] for bend in told] == list(SPLIT)


# Reading.


def test_a_sweep_keeps_what_gave_no_result(tmp_path: Path) -> None:
    rows = [
        row("ddp", 1, 10.0),
        row("fsdp", 8, None, status="refused", reason="block_split: no"),
        row("ps", 2, None, status="oom"),
    ]
    runs = load(write_sweep(tmp_path / "s", rows), "s")
    assert [(run.strategy, run.status, run.result is None) for run in runs] == [
        ("ddp", "ok", False), ("fsdp", "refused", True), ("ps", "oom", True),
    ]  # fmt: skip
    assert [cell.strategy for cell in cells_of(runs)] == ["ddp"]


def test_a_row_that_was_run_again_counts_once(tmp_path: Path) -> None:
    rows = [row("ddp", 1, None, status="timeout"), row("ddp", 1, 20.0)]
    (run,) = load(write_sweep(tmp_path / "s", rows), "s")
    assert run.result and run.result["tokens_per_second"] == 20.0


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", [row("ddp", 1, 10.0)])
    with (folder / "table.jsonl").open("a") as file:
        file.write('{"key": "torn')
    assert len(load(folder, "s")) == 1


def test_a_rows_folder_is_read_only_inside_the_sweep(tmp_path: Path) -> None:
    write_run(tmp_path / "outside", "ddp", 1, 10.0)
    write_run(tmp_path / "s" / "runs" / "one", "ddp", 1, 10.0)
    rows = [row("ddp", 1, 10.0, 0, run_dir="../outside"), row("ddp", 1, 10.0, 1, run_dir="runs/one")]
    outside, inside = load(write_sweep(tmp_path / "s", rows), "s")
    assert outside.folder is None and outside.record == {}
    assert inside.folder and inside.record["config"]["strategy"]["name"] == "ddp"


def test_a_run_that_never_ended_is_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "ddp", 1, 10.0)
    for name in ("summary.json", "steps.jsonl"):
        (tmp_path / "a" / name).unlink()
    (run,) = load(tmp_path, "runs")
    assert (run.status, run.result) == ("unfinished", None) and "summary.json" in str(run.reason)


def test_the_result_builder_is_what_bench_writes() -> None:
    assert result("ddp", 2, 100.0)["memory"]["state_bytes_per_device"] == 2**22
    assert record("ddp", 2)["preflight"]["ok"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"result": [1]}, "no object"),
        ({"run_dir": 5}, "run_dir"),
        ({"findings": [1]}, "findings"),
        ({"cell": {"strategy": "ddp", "devices": "abc"}}, "positive number of devices"),
        ({"result": {"tokens_per_second": 0}}, "tokens_per_second 0"),
        ({"result": {"tokens_per_second": -5.0}}, "expected a positive number"),
    ],
)
def test_a_row_of_another_form_is_named(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    write_sweep(tmp_path, [row("ddp", 1, 100.0)])
    table = tmp_path / "table.jsonl"
    table.write_text(json.dumps({**json.loads(table.read_text()), **change}) + "\n")
    with pytest.raises(BadInput, match=r"table\.jsonl:1: ") as refused:
        load(tmp_path, "a")
    assert told in str(refused.value)


def test_a_report_replaces_a_report_and_nothing_else(tmp_path: Path) -> None:
    found = study([write_sweep(tmp_path / "sweep", [row("ddp", 1, 100.0)])])
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "report.md").write_text("my own")
    with pytest.raises(BadInput, match=r"holds files that no report wrote \(report.md\)"):
        write(found, mine)
    assert (mine / "report.md").read_text() == "my own"
    assert write(found, tmp_path / "new") == write(found, tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--out"):
        write(found, tmp_path / "file")


def test_long_conditions_push_no_number_off_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folded they may be, never at the cost of the figures beside them."""
    delays = ",".join(f"persistent(factor=1.{worker},worker={worker})" for worker in range(8))
    rows = [row("ddp", n, 1234.0 * n, axes={"straggler": delays}) for n in (1, 2)]
    print_study(study([write_sweep(tmp_path / "sweep", rows)]))
    printed = capsys.readouterr().out
    assert "1,234" in printed and "2,468" in printed and "efficiency" in printed and "…" not in printed
