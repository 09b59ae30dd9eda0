"""How cells are shown: a table's row, a chart's point, and the words on its card."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxdp.report.section import UNKNOWN, Chart, Point, Series, Table, number_text
from jaxdp.report.section import Cell as Shown
from jaxdp.study.cells import Cell, Curve
from jaxdp.study.quantities import COMMUNICATION, Quantity
from jaxdp.study.spread import Spread

T = TypeVar("T", Cell, Curve)

SPREAD_CAPTION = (
    "Medians of n runs; below them their range (of ten and more p10 to p90), where n = 1 p10 to p90 of the run's "
    "timed windows."
)


def cell_table(
    cells: Sequence[Cell], quantities: Sequence[Quantity], curves: Sequence[Curve] = (), caption: str = ""
) -> Table:
    """A row a cell: its quantities with their spread, and where there are curves its efficiency."""
    efficiency = {id(point.cell): point.efficiency for curve in curves for point in curve.points}
    scenes = scene_column(cells)
    columns = ["strategy", "devices", *scenes, "n", *(quantity.name for quantity in quantities)]
    columns += ["efficiency"] if curves else []
    rows = []
    for cell in cells:
        row = [cell.label, cell.devices, *([cell.scene] if scenes else []), len(cell.runs)]
        row += [_quantity_cell(cell, quantity) for quantity in quantities]
        row += [shown(efficiency.get(id(cell)), "{:.2f}".format, len(cell.runs))] if curves else []
        rows.append(row)
    return Table(columns, rows, [cell.label for cell in cells], " ".join(filter(None, [caption, SPREAD_CAPTION])))


def _quantity_cell(cell: Cell, quantity: Quantity) -> Shown:
    found = cell.spread(quantity)
    predicted = cell.predicted(quantity) if found is None and quantity is COMMUNICATION else None
    if predicted is not None:
        return Shown(quantity.text(predicted), predicted, "predicted")
    return shown(found, quantity.text, len(cell.runs))


def shown(found: Spread | None, text: Callable[[float], str], runs: int | None = None) -> Shown:
    """A median with its spread below; the number of repeats too, unless it is that of the row's `runs`."""
    if found is None:
        return Shown(UNKNOWN)
    ends = [] if found.low is None or found.high is None or found.low == found.high else [found.low, found.high]
    parts = [" to ".join(map(text, ends)), "" if found.n == runs else f"n = {found.n}"]
    return Shown(text(found.median), found.median, ", ".join(filter(None, parts)))


def scene_column(items: Sequence[Cell] | Sequence[Curve]) -> list[str]:
    return ["conditions"] if any(item.scene for item in items) else []


def quantity_charts(cells: Sequence[Cell], quantities: Sequence[Quantity]) -> list[Chart]:
    """Each quantity over devices, a chart a scene; as dots in rows where there is one device count only."""
    charts = []
    for quantity in quantities:
        for scene, own in by_scene(cells):
            known = [(cell, found.scaled(quantity.scale)) for cell in own if (found := cell.spread(quantity))]
            if known:
                charts.append(_quantity_chart(quantity, scene, known))
    return charts


def _quantity_chart(quantity: Quantity, scene: str, known: Sequence[tuple[Cell, Spread]]) -> Chart:
    several = len({cell.devices for cell, _ in known}) > 1
    names = [cell.label for cell, _ in known]
    series = []
    for label in dict.fromkeys(names):
        own = [(place, cell, found) for place, (cell, found) in enumerate(known) if cell.label == label]
        points = [point_of(cell.devices if several else place, found, cell) for place, cell, found in own]
        series.append(Series(label, points, label))
    title = titled(quantity.name[0].upper() + quantity.name[1:], scene)
    if several:
        return Chart(title, "devices", quantity.unit, series, x_scale="log")
    devices = known[0][0].devices
    title += f", {devices} device{'s' if devices > 1 else ''}"
    return Chart(title, "strategy", quantity.unit, series, categories=names)


def point_of(x: float, found: Spread, cell: Cell, flag: str = "") -> Point:
    return Point(x, found.median, found.low, found.high, facts_of(cell) | _spread_of(found), flag, cell.runs[0].name)


def _spread_of(found: Spread) -> dict[str, str]:
    kind = {
        "range": "range of the repeats",
        "p10-p90": "p10 to p90 of the repeats",
        "windows": "p10 to p90 of its windows",
    }
    return {"spread is": kind[found.of]} if found.of else {}


def facts_of(cell: Cell) -> dict[str, str]:
    """What a point's card says beside its value."""
    folders = [str(run.folder) for run in cell.runs if run.folder]
    tokens = {"tokens a step": number_text(cell.tokens_per_step)} if cell.tokens_per_step else {}
    scene = {"conditions": cell.scene} if cell.scene else {}
    findings = {"pre-flight": ", ".join(cell.findings)} if cell.findings else {}
    return {"n": str(len(cell.runs)), **tokens, **scene, **findings, "run folder": few(folders) or "none"}


def few(names: Sequence[str]) -> str:
    """The first two, and how many more there are."""
    return "; ".join(names[:2]) + (f"; and {len(names) - 2} more" if len(names) > 2 else "")


def titled(title: str, scene: str) -> str:
    return f"{title} ({scene})" if scene else title


def by_scene(items: Sequence[T]) -> list[tuple[str, list[T]]]:
    scenes = dict.fromkeys(item.scene for item in items)
    return [(scene, [item for item in items if item.scene == scene]) for scene in scenes]
