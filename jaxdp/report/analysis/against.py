"""Sections that hold one thing against another: a prediction against its measurement, B against A."""

from collections.abc import Sequence

from jaxdp.report.analysis.compare import Difference
from jaxdp.report.analysis.metrics import METRICS, THROUGHPUT, Metric
from jaxdp.report.analysis.run_groups import RunGroup
from jaxdp.report.analysis.views import facts_of, shown
from jaxdp.report.section import Chart, Point, Section, Series, Table, TableCell, Verdict, number_text

MAX_ROWS = 40  # of a chart of cells; more are read in the table


def predictions(cells: Sequence[RunGroup]) -> Section | None:
    """Predicted against measured, for what both are known of."""
    rows, groups, points = [], [], {}
    for cell in cells:
        for metric in METRICS:
            predicted, found = cell.predicted(metric), cell.spread(metric)
            if predicted is None or found is None or not found.median:
                continue
            ratio = predicted / found.median
            rows.append([cell.name, metric.name, TableCell(metric.text(predicted), predicted),
                         shown(found, metric.text), TableCell(number_text(ratio), ratio)])  # fmt: skip
            groups.append(cell.label)
            points.setdefault(metric, {}).setdefault(cell, ratio)
    if not rows:
        return None
    charts = [_ratio_chart(metric, ratios) for metric, ratios in points.items() if len(ratios) <= MAX_ROWS]
    prose = (
        "Predicted over measured (bytes: over compiled); 1 is exact. Times are the cost model's for the `hardware` "
        "that the sweep names, which need not be the machine it ran on; without one, memory is the pre-flight check's."
    )
    columns = ["cell", "metric", "predicted", "measured", "ratio"]
    return Section("Predicted against measured", prose, Table(columns, rows, groups), charts)


def _ratio_chart(metric: Metric, ratios: dict[RunGroup, float]) -> Chart:
    cells = list(ratios)
    names = [cell.name for cell in cells]
    series = []
    for label in dict.fromkeys(cell.label for cell in cells):
        own = [place for place, cell in enumerate(cells) if cell.label == label]
        series.append(Series(label, [_ratio_point(place, ratios[cells[place]], cells[place]) for place in own], label))
    series.append(Series("exact", [Point(0, 1.0), Point(max(1, len(cells) - 1), 1.0)], reference=True))
    return Chart(f"{metric.name.capitalize()}: predicted over measured", "cell", "predicted / measured", series,
                 categories=names)  # fmt: skip


def _ratio_point(place: int, ratio: float, cell: RunGroup) -> Point:
    return Point(place, ratio, details=facts_of(cell), document=cell.runs[0].name)


def comparison(a: str, b: str, found: Sequence[Difference], settings: Sequence[tuple[str, str, str]]) -> list[Section]:
    """B against A in the cells that both have, and what was set otherwise."""
    matter = [each for each in found if each.matters]
    unknown = sum(each.judgement == "unknown" for each in found)
    prose = (
        f"A is `{a}`, B is `{b}`. A difference matters where the spreads of both lie apart; what is counted rather "
        f"than timed (bytes) differs or not. {len(matter)} of {len(found)} metrics differ so."
    )
    if any(each.doubtful for each in matter):
        prose += " Where n = 1 only the run's windows are known: another run may differ by more than they do."
    if unknown:
        prose += f" Of {unknown} nothing can be said: they come from single runs, without a spread."
    rows = [
        [each.cell.name, each.metric.name, shown(each.a, each.metric.text), shown(each.b, each.metric.text),
         None if each.ratio is None else TableCell(f"{each.ratio:.3f}", each.ratio), _judged(each)]
        for each in sorted(found, key=lambda each: not each.matters)
    ]  # fmt: skip
    columns = ["cell", "metric", "A", "B", "B / A", "judgement"]
    rates = [each for each in found if each.metric is THROUGHPUT]
    charts = [_difference_chart(rates)] if 0 < len(rates) <= MAX_ROWS else []
    badge = Verdict(f"{len(matter)} differ", "mixed") if matter else Verdict("no difference beyond the spread")
    keys = Table(["key", "A", "B"], settings, caption="Settings, versions and machine")
    told = "" if settings else "Nothing is set otherwise: configs, versions and machine are the same."
    return [
        Section("B against A", prose, Table(columns, rows), charts, verdict=badge),
        Section("What was set otherwise", told, keys if settings else None),
    ]


def _judged(each: Difference) -> TableCell:
    tone = "good" if each.judgement == "better" else "bad" if each.judgement == "worse" else "neutral"
    note = "n = 1: beyond its windows" if each.doubtful else ""
    return TableCell(each.judgement, each.judgement, note, "mixed" if each.judgement == "different" else tone)


def _difference_chart(found: Sequence[Difference]) -> Chart:
    points = []
    for place, each in enumerate(found):
        a, b, ratio = each.a, each.b, each.ratio or 0.0
        known = None not in (a.low, a.high, b.low, b.high)
        low, high = ((b.low or 0) / (a.high or 1), (b.high or 0) / (a.low or 1)) if known else (None, None)
        points.append(Point(place, ratio, low, high, {"judgement": each.judgement}, document=each.cell.runs[0].name))
    series = [Series("B / A", points)]
    series.append(Series("the same", [Point(0, 1.0), Point(max(1, len(found) - 1), 1.0)], reference=True))
    names = [each.cell.name for each in found]
    note = "Bars reach from the least to the most that the spreads of both allow."
    return Chart("Throughput: B over A", "cell", "B / A", series, from_zero=False, categories=names, note=note)
