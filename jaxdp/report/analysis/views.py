"""How cells are shown: a table's row, a chart's point, and the words on its card."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxdp.report.analysis.metrics import COMMUNICATION, Metric
from jaxdp.report.analysis.run_groups import Curve, RunGroup
from jaxdp.report.analysis.spread import Spread
from jaxdp.report.section import UNKNOWN, Chart, Point, Series, Table, TableCell, number_text

T = TypeVar("T", RunGroup, Curve)

SPREAD_CAPTION = (
    "Medians of n runs; below them their range (of ten and more p10 to p90), where n = 1 p10 to p90 of the run's "
    "timed windows."
)


def cell_table(
    cells: Sequence[RunGroup], metrics: Sequence[Metric], curves: Sequence[Curve] = (), caption: str = ""
) -> Table:
    """A row a cell: its metrics with their spread, and where there are curves its efficiency."""
    efficiency = {id(point.cell): point.efficiency for curve in curves for point in curve.points}
    conditions_seen = conditions_column(cells)
    columns = ["strategy", "devices", *conditions_seen, "n", *(metric.name for metric in metrics)]
    columns += ["efficiency"] if curves else []
    rows = []
    for cell in cells:
        row = [cell.label, cell.devices, *([cell.conditions] if conditions_seen else []), len(cell.runs)]
        row += [_metric_cell(cell, metric) for metric in metrics]
        row += [shown(efficiency.get(id(cell)), "{:.2f}".format, len(cell.runs))] if curves else []
        rows.append(row)
    return Table(columns, rows, [cell.label for cell in cells], " ".join(filter(None, [caption, SPREAD_CAPTION])))


def _metric_cell(cell: RunGroup, metric: Metric) -> TableCell:
    found = cell.spread(metric)
    predicted = cell.predicted(metric) if found is None and metric is COMMUNICATION else None
    if predicted is not None:
        return TableCell(metric.text(predicted), predicted, "predicted")
    return shown(found, metric.text, len(cell.runs))


def shown(found: Spread | None, text: Callable[[float], str], runs: int | None = None) -> TableCell:
    """A median with its spread below; the number of repeats too, unless it is that of the row's `runs`."""
    if found is None:
        return TableCell(UNKNOWN)
    ends = [] if found.low is None or found.high is None or found.low == found.high else [found.low, found.high]
    parts = [" to ".join(map(text, ends)), "" if found.n == runs else f"n = {found.n}"]
    return TableCell(text(found.median), found.median, ", ".join(filter(None, parts)))


def conditions_column(items: Sequence[RunGroup] | Sequence[Curve]) -> list[str]:
    return ["conditions"] if any(item.conditions for item in items) else []


def metric_charts(cells: Sequence[RunGroup], metrics: Sequence[Metric]) -> list[Chart]:
    """Each metric over devices, a chart for each set of conditions; dots in rows where there is one device count."""
    charts = []
    for metric in metrics:
        for conditions, own in by_conditions(cells):
            known = [(cell, found.scaled(metric.scale)) for cell in own if (found := cell.spread(metric))]
            if known:
                charts.append(_metric_chart(metric, conditions, known))
    return charts


def _metric_chart(metric: Metric, conditions: str, known: Sequence[tuple[RunGroup, Spread]]) -> Chart:
    several = len({cell.devices for cell, _ in known}) > 1
    names = [cell.label for cell, _ in known]
    series = []
    for label in dict.fromkeys(names):
        own = [(place, cell, found) for place, (cell, found) in enumerate(known) if cell.label == label]
        points = [point_of(cell.devices if several else place, found, cell) for place, cell, found in own]
        series.append(Series(label, points, label))
    title = titled(metric.name[0].upper() + metric.name[1:], conditions)
    if several:
        return Chart(title, "devices", metric.unit, series, x_scale="log")
    devices = known[0][0].devices
    title += f", {devices} device{'s' if devices > 1 else ''}"
    return Chart(title, "strategy", metric.unit, series, categories=names)


def point_of(x: float, found: Spread, cell: RunGroup, flag: str = "") -> Point:
    return Point(x, found.median, found.low, found.high, facts_of(cell) | _spread_of(found), flag, cell.runs[0].name)


def _spread_of(found: Spread) -> dict[str, str]:
    kind = {
        "range": "range of the repeats",
        "p10-p90": "p10 to p90 of the repeats",
        "windows": "p10 to p90 of its windows",
    }
    return {"spread is": kind[found.of]} if found.of else {}


def facts_of(cell: RunGroup) -> dict[str, str]:
    """What a point's card says beside its value."""
    folders = [str(run.folder) for run in cell.runs if run.folder]
    tokens = {"tokens a step": number_text(cell.tokens_per_step)} if cell.tokens_per_step else {}
    conditions = {"conditions": cell.conditions} if cell.conditions else {}
    findings = {"pre-flight": ", ".join(cell.findings)} if cell.findings else {}
    return {"n": str(len(cell.runs)), **tokens, **conditions, **findings, "run folder": few(folders) or "none"}


def few(names: Sequence[str]) -> str:
    """The first two, and how many more there are."""
    return "; ".join(names[:2]) + (f"; and {len(names) - 2} more" if len(names) > 2 else "")


def titled(title: str, conditions: str) -> str:
    return f"{title} ({conditions})" if conditions else title


def by_conditions(items: Sequence[T]) -> list[tuple[str, list[T]]]:
    conditions_seen = dict.fromkeys(item.conditions for item in items)
    return [(conditions, [item for item in items if item.conditions == conditions]) for conditions in conditions_seen]
