"""The section on loss: against tokens, against time, and the time to reach one."""

from collections.abc import Sequence
from dataclasses import replace

from jaxdp.report.analysis import metrics as q
from jaxdp.report.analysis.run_groups import RunGroup
from jaxdp.report.analysis.steps import LossPoint, thinned
from jaxdp.report.analysis.views import by_conditions, cell_table, facts_of, titled
from jaxdp.report.section import Chart, Point, Section, Series

LOSS_POINTS = 150  # of a curve


def losses(cells: Sequence[RunGroup], marks: dict[str, float]) -> Section | None:
    """Curves of the first repeat for each set of conditions, on its fewest and its most devices; time to a loss."""
    charts = []
    for conditions, own in by_conditions(cells):
        counts = [cell.devices for cell in own]
        for devices in sorted({min(counts), max(counts)}):
            charts += _loss_charts(conditions, devices, [cell for cell in own if cell.devices == devices])
    if not charts:
        return None
    prose = (
        "The loss of every global batch in training, thinned to the mean of stretches where there are many. Time is "
        "that of the steps, warm-up included, compiling left out. Drawn are the fewest and the most devices of each "
        "model, and of repeats the first."
    )
    if marks:
        listed = "; ".join(f"{mark:.2f}" + (f" ({where})" if where else "") for where, mark in marks.items())
        prose += (
            f"\n\nTime to loss: until the mean of the last ten global batches is at most {listed} nats a token, the "
            "lowest that every run reached."
        )
    return Section("Loss", prose, cell_table(cells, (q.TIME_TO_LOSS, q.LAST_LOSS, q.EVAL_LOSS)), charts)


def _loss_charts(conditions: str, devices: int, cells: Sequence[RunGroup]) -> list[Chart]:
    curves = {cell: cell.runs[0].steps for cell in cells}
    found = {cell: thinned(steps.points, LOSS_POINTS) for cell, steps in curves.items() if steps and steps.points}
    if not found:
        return []
    where = f"{devices} device{'s' if devices > 1 else ''}"
    charts = []
    for over, label, place in (("tokens", "tokens", _tokens), ("time", "seconds of training", _seconds)):
        series = [_series(cell, [Point(place(each), each.loss) for each in points]) for cell, points in found.items()]
        title = titled(f"Loss against {over}, {where}", conditions)
        charts.append(Chart(title, label, "loss (nats a token)", series, from_zero=False))
    return charts


def _series(cell: RunGroup, points: Sequence[Point]) -> Series:
    facts, name = facts_of(cell), cell.runs[0].name
    return Series(cell.label, [replace(point, details=facts, document=name) for point in points], cell.label)


def _tokens(point: LossPoint) -> float:
    return point.tokens


def _seconds(point: LossPoint) -> float:
    return point.seconds
