"""A study as a table on the terminal, with what a reader must know below it."""

from collections.abc import Callable

from jaxdp.report.analysis import metrics as q
from jaxdp.report.analysis.chapters import caveats
from jaxdp.report.analysis.run_groups import RunGroup
from jaxdp.report.analysis.spread import Spread
from jaxdp.report.analysis.write import Study
from jaxdp.report.screen import print_table, screen
from jaxdp.report.section import UNKNOWN

SHED = ("spread", "sent per device", "staleness", "state per device", "efficiency", "n")  # on a narrow screen
COLUMNS: tuple[tuple[str, Callable[[RunGroup], str]], ...] = (
    ("strategy", lambda cell: cell.label),
    ("devices", lambda cell: str(cell.devices)),
    ("conditions", lambda cell: cell.conditions),
    ("n", lambda cell: str(len(cell.runs))),
    ("tokens/s", lambda cell: _median(cell, q.THROUGHPUT)),
    ("spread", lambda cell: _ends(cell.spread(q.THROUGHPUT), q.THROUGHPUT)),
    ("state per device", lambda cell: _median(cell, q.STATE)),
    ("sent per device", lambda cell: _median(cell, q.SENT)),
    ("staleness", lambda cell: _median(cell, q.STALENESS)),
    ("last loss", lambda cell: _median(cell, q.LAST_LOSS)),
)


def print_study(found: Study) -> None:
    """A line a cell, then remarks, bends, differences that matter, and what gave no result."""
    console = screen()
    efficiency = {id(point.cell): f"{point.efficiency.median:.2f}" for curve in found.curves for point in curve.points}
    columns = [column for column in COLUMNS if any(column[1](cell).strip(UNKNOWN) for cell in found.cells)]
    names = [name for name, _ in columns]
    rows = [[show(cell) for _, show in columns] for cell in found.cells]
    if efficiency:
        names.append("efficiency")
        rows = [[*row, efficiency.get(id(cell), UNKNOWN)] for row, cell in zip(rows, found.cells, strict=True)]
    print_table(console, "", names, rows, left=("conditions",), fold=("conditions",), shed=SHED)
    for line in [*caveats(found.cells), *(f"{bend.label}: {bend.statement}" for bend in found.bends)]:
        console.print(f"note: {line.replace('**', '')}", markup=False)
    for each in (each for each in found.differences if each.matters):
        ratio = "" if each.ratio is None else f", B is {each.ratio:.3f} of A"
        doubt = " (n = 1: beyond its windows)" if each.doubtful else ""
        console.print(f"differs: {each.cell.name}: {each.metric.name} {each.judgement}{ratio}{doubt}", markup=False)
    for run in (run for run in found.runs if run.result is None):
        console.print(f"not measured: {run.name}: {run.status}: {run.reason or UNKNOWN}", markup=False)


def _median(cell: RunGroup, metric: q.Metric) -> str:
    found = cell.spread(metric)
    return UNKNOWN if found is None else metric.text(found.median)


def _ends(found: Spread | None, metric: q.Metric) -> str:
    if found is None or found.low is None or found.high is None:
        return UNKNOWN
    return f"{metric.text(found.low)} to {metric.text(found.high)}"
