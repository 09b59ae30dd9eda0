"""A study as a table on the terminal, with what a reader must know below it."""

import sys
from collections.abc import Callable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxdp.report.analysis import metrics as q
from jaxdp.report.analysis.chapters import caveats
from jaxdp.report.analysis.run_groups import RunGroup
from jaxdp.report.analysis.spread import Spread
from jaxdp.report.analysis.write import Study
from jaxdp.report.section import UNKNOWN

WIDTH = 160  # where the output is piped
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
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else WIDTH)
    efficiency = {id(point.cell): f"{point.efficiency.median:.2f}" for curve in found.curves for point in curve.points}
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    columns = [column for column in COLUMNS if any(column[1](cell).strip(UNKNOWN) for cell in found.cells)]
    for name, _ in columns:
        # Long conditions are folded, so that they don't push the numbers off the screen.
        justify = "left" if name in ("strategy", "conditions") else "right"
        table.add_column(name, justify=justify, no_wrap=name != "conditions", overflow="fold")
    table.add_column("efficiency", justify="right", no_wrap=True)
    for cell in found.cells:
        table.add_row(*(Text(show(cell)) for _, show in columns), efficiency.get(id(cell), UNKNOWN))
    console.print(table)
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
