"""The section on scaling: efficiency and speed-up over devices, and where a curve bends."""

from collections.abc import Callable, Sequence

from jaxdp.report.analysis.bends import Bend, bend_at
from jaxdp.report.analysis.metrics import THROUGHPUT
from jaxdp.report.analysis.run_groups import Curve, CurvePoint
from jaxdp.report.analysis.spread import Spread
from jaxdp.report.analysis.views import SPREAD_CAPTION, by_conditions, conditions_column, point_of, shown, titled
from jaxdp.report.section import Chart, Point, Section, Series, Table, TableCell, Verdict


def scaling(curves: Sequence[Curve], bends: Sequence[Bend]) -> Section | None:
    if not curves:
        return None
    kinds = {"weak": "weak scaling (the batch grows with the devices)", "strong": "strong scaling (the batch stays)",
             "mixed": "a batch that changes otherwise, so neither weak nor strong scaling"}  # fmt: skip
    held = " and ".join(kinds[kind] for kind in kinds if any(curve.scaling == kind for curve in curves))
    bases = {curve.base for curve in curves}
    base = "1 device" if bases == {1} else "the fewest devices measured"
    prose = (
        f"Efficiency is X_n / (n · X_1): throughput on n devices over n times that on {base}. Here: {held}.\n\n"
        "A bend is a device count that both a smaller and a larger one beat in efficiency, by 5 % and beyond their "
        "spreads. In the study that this tool follows, the interconnect was suspected first; the cause was "
        "a shard boundary that cut through a block."
    )
    prose += "".join(f"\n\n**{bend.label}**: {bend.statement}." for bend in bends)
    charts = [
        _curve_chart(name, unit, conditions, own, bends, value, ideal)
        for conditions, own in by_conditions(curves)
        for name, unit, value, ideal in (
            ("Scaling efficiency", "efficiency", lambda point: point.efficiency, lambda n, base: 1.0),
            ("Speed-up", "speed-up", lambda point: point.speed_up, lambda n, base: n / base),
        )
    ]
    count = len(bends)
    badge = Verdict(f"{count} bend{'s' if count > 1 else ''}", "mixed") if count else Verdict("no bend")
    return Section("Scaling", prose, _scaling_table(curves, bends), charts, verdict=badge)


def _curve_chart(
    name: str,
    unit: str,
    conditions: str,
    curves: Sequence[Curve],
    bends: Sequence[Bend],
    value: Callable[[CurvePoint], Spread],
    ideal: Callable[[int, int], float],
) -> Chart:
    several = len({curve.scaling for curve in curves}) > 1
    series = []
    for curve in curves:
        points = [
            point_of(each.cell.devices, value(each), each.cell, _statement(bend_at(bends, curve, each.cell.devices)))
            for each in curve.points
        ]
        series.append(Series(curve.label + (f" ({curve.scaling})" if several else ""), points, curve.label))
    devices = sorted({point.cell.devices for curve in curves for point in curve.points})
    base = min(curve.base for curve in curves)
    series.append(Series("ideal", [Point(n, ideal(n, base)) for n in devices], reference=True))
    title = f"{name}, {curves[0].scaling} scaling" if not several and curves[0].scaling != "mixed" else name
    return Chart(titled(title, conditions), "devices", unit, series, x_scale="log")


def _scaling_table(curves: Sequence[Curve], bends: Sequence[Bend]) -> Table:
    conditions_seen = conditions_column(curves)
    columns = ["strategy", "devices", *conditions_seen, "n", "scaling", "tokens/s", "speed-up", "efficiency", "bend"]
    rows, groups = [], []
    for curve in curves:
        for each in curve.points:
            n = each.efficiency.n
            figures = [
                shown(each.cell.spread(THROUGHPUT), THROUGHPUT.text, n),
                shown(each.speed_up, "{:.2f}".format, n),
                shown(each.efficiency, "{:.2f}".format, n),
            ]
            start = [curve.label, each.cell.devices, *([curve.conditions] if conditions_seen else []), n, curve.scaling]
            rows.append([*start, *figures, _bend_cell(bend_at(bends, curve, each.cell.devices))])
            groups.append(curve.label)
    caption = "Speed-up and efficiency against the fewest devices. " + SPREAD_CAPTION
    return Table(columns, rows, groups, caption)


def _bend_cell(bend: Bend | None) -> TableCell:
    if bend is None:
        return TableCell("no", "no")
    return TableCell(bend.finding or "unexplained", bend.finding or "unexplained", tone="bad")


def _statement(bend: Bend | None) -> str:
    return bend.statement if bend else ""
