"""A report's charts as files, PNG and SVG, drawn by matplotlib; they need no display and no page."""

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from jaxdp.report import style
from jaxdp.report.section import Chart, Series
from jaxdp.strict_json import write_atomically

GREY = "#6b7280"
MAX_MARKERS = 40  # of a series, as in the page
ROW_INCHES = 0.42
DODGE = 0.02  # of the x, between series


def draw(charts: Sequence[Chart], groups: Sequence[str], folder: Path) -> dict[int, Path]:
    """Writes NAME.png and NAME.svg for every chart that has a point; the PNGs by the chart's place."""
    written: dict[int, Path] = {}
    for place, chart in enumerate(charts):
        if not any(series.points for series in chart.series if not series.reference):
            continue
        name = slug(chart.title)
        taken = {path.stem for path in written.values()}
        path = folder / f"{name}.png" if name not in taken else folder / f"{name}-{place}.png"
        for suffix, kind in ((".png", "png"), (".svg", "svg")):
            content = BytesIO()
            # Without a date two reports of the same runs are the same files.
            _figure(chart, groups).savefig(
                content, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {}
            )
            write_atomically(path.with_suffix(suffix), content.getvalue())
        written[place] = path
    return written


def slug(title: str) -> str:
    """A title as a file's name: letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:80] or "figure"


def _figure(chart: Chart, groups: Sequence[str]) -> Any:
    from matplotlib.figure import Figure

    rows = len(chart.categories)
    figure = Figure(figsize=(7.5, max(2.2, 1.4 + ROW_INCHES * rows) if rows else 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(plain(chart.title), loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.7)
    (_rows if rows else _lines)(axes, chart, groups)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def _lines(axes: Any, chart: Chart, groups: Sequence[str]) -> None:
    # Over devices a series stands a little aside, so that no marker or whisker hides another.
    own = [series for series in chart.series if not series.reference] if chart.x_scale == "log" else []
    for series in chart.series:
        aside = 1 + DODGE * (own.index(series) - (len(own) - 1) / 2) if series in own else 1.0
        xs, ys = [aside * point.x for point in series.points], [point.y for point in series.points]
        axes.plot(xs, ys, **_style(series, groups))
        for x, point in zip(xs, series.points, strict=True):
            if point.low is not None and point.high is not None:
                axes.vlines(x, point.low, point.high, color=_colour(series, groups), linewidth=1.2)
            if point.flag:
                axes.plot([x], [point.y], "o", markersize=13, markerfacecolor="none", markeredgecolor="#b3261e")
    axes.set(xlabel=plain(chart.x_label), ylabel=plain(chart.y_label))
    if chart.x_scale == "log":
        axes.set_xscale("log", base=2)
        ticks = sorted({point.x for series in chart.series for point in series.points})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    if chart.y_scale == "log":
        axes.set_yscale("log")
    elif chart.from_zero:
        axes.set_ylim(bottom=0)


def _rows(axes: Any, chart: Chart, groups: Sequence[str]) -> None:
    drawn = [series for series in chart.series if not series.reference]
    shared = sum(len(series.points) for series in drawn) > len(chart.categories)  # dots of several series in a row
    for number, series in enumerate(drawn):
        style_of = _style(series, groups) | {"linestyle": "none"}
        shift = 0.5 * ((number + 1) / (len(drawn) + 1) - 0.5) if shared else 0.0
        rows = [point.x + shift for point in series.points]
        axes.plot([point.y for point in series.points], rows, **style_of)
        for row, point in zip(rows, series.points, strict=True):
            if point.low is not None and point.high is not None:
                axes.hlines(row, point.low, point.high, color=_colour(series, groups), linewidth=1.2)
    for series in chart.series:
        if series.reference and series.points:
            axes.axvline(series.points[0].y, color=GREY, linestyle=":", linewidth=1.2, label=plain(series.name))
    axes.set_yticks(range(len(chart.categories)), [plain(name) for name in chart.categories], fontsize=8)
    axes.set_ylim(len(chart.categories) - 0.4, -0.6)
    axes.set_xlabel(plain(chart.y_label))
    if chart.from_zero:
        axes.set_xlim(left=0)


def _style(series: Series, groups: Sequence[str]) -> dict[str, Any]:
    label = plain(series.name)
    if series.reference:
        return {"color": GREY, "linestyle": ":", "linewidth": 1.2, "label": label}
    index = groups.index(series.group) if series.group else 0
    dash = style.DASHES[index % len(style.DASHES)]
    lengths = [float(length) / 2 for length in dash.split()]
    return {
        "color": _colour(series, groups),
        "linestyle": (0, lengths) if lengths else "-",
        "linewidth": 1.6,
        "marker": style.MATPLOTLIB_MARKERS[style.MARKERS[index % len(style.MARKERS)]],
        "markersize": 6 if len(series.points) <= MAX_MARKERS else 0,
        "markeredgecolor": "white",
        "label": label,
    }


def _colour(series: Series, groups: Sequence[str]) -> str:
    index = groups.index(series.group) if series.group else 0
    return style.COLOURS[index % len(style.COLOURS)].light
