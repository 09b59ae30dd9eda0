"""Figures of a simulation as SVG and PNG, each with the CSV of its points; matplotlib loads when one is drawn."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from jaxdp.report.style import COLOURS, DASHES, MARKERS, MATPLOTLIB_MARKERS
from sims.curve import smoothed
from sims.results import Result, simulate
from sims.scenario import Scenario

FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
DRAWN_STALENESS = 0.999
SWEPT_PUSHES = 20_000  # pushes of one point of the sweep, so that the figure takes a second

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # label -> (x, y)


def draw_all(scenario: Scenario, results: Sequence[Result], folder: Path) -> list[Path]:
    """Throughput against slowdown, idle share, staleness; the files written."""
    rows = [result.to_json() for result in results]
    idle = {row["label"]: (range(scenario.workers), [100 * share for share in row["idle_share"]]) for row in rows}
    paths = draw(
        folder / "throughput_against_slowdown",
        slowed(scenario),
        "slowdown of worker 0",
        "useful gradients/s, relative to none slowed",
    )
    paths += draw(folder / "idle_share", idle, "worker", "idle (%)", joined=False)
    stale = {result.strategy.label: _shares(result) for result in results if result.strategy.name == "ps"}
    if stale:
        x = f"staleness of a gradient (the {100 * DRAWN_STALENESS:g} % that are least stale)"
        paths += draw(folder / "staleness", stale, x, "share of gradients (%)", marked=False)
    if any(result.trainings for result in results):
        paths += draw_losses(results, folder)
    return paths


def draw_losses(results: Sequence[Result], folder: Path) -> list[Path]:
    """The first seed's loss, each strategy with its best learning rate, against virtual time and against tokens."""
    curves = {result.strategy.label: smoothed(result.trainings[0].points) for result in results if result.trainings}
    losses = {label: [point.loss for point in curve] for label, curve in curves.items()}
    times = {label: ([p.virtual_time_s for p in curve], losses[label]) for label, curve in curves.items()}
    tokens = {label: ([float(p.tokens) for p in curve], losses[label]) for label, curve in curves.items()}
    return draw_panels(
        folder / "loss", {"virtual time (s)": times, "tokens": tokens}, "loss (nats a token)", marked=False
    )


def slowed(scenario: Scenario) -> Series:
    """Each strategy's useful throughput when worker 0 is a factor slower on top of the scenario's delays."""
    steps = max(20, min(scenario.steps, SWEPT_PUSHES // scenario.workers))
    series = {}
    for strategy in scenario.strategies:
        rates = []
        for factor in FACTORS:
            slower = ",".join(filter(None, [scenario.stragglers, f"persistent(factor={factor},worker=0)"]))
            point = replace(scenario, stragglers=slower, steps=steps)
            rates.append(simulate(point, strategy, scenario.seed).useful_per_second)
        series[strategy.label] = (FACTORS, [rate / rates[0] for rate in rates])
    return series


def draw(path: Path, series: Series, x: str, y: str, *, marked: bool = True, joined: bool = True) -> list[Path]:
    """One line a label, to `path`.svg, .png and .csv."""
    return draw_panels(path, {x: series}, y, marked=marked, joined=joined)


def draw_panels(
    path: Path, panels: Mapping[str, Series], y: str, *, marked: bool = True, joined: bool = True
) -> list[Path]:
    """Panels side by side, each named by its x axis; they share the y axis and the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(panels) + 1.8, 4.5), layout="constrained")
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (x, series) in zip(grid, panels.items(), strict=True):
        for style, (label, (xs, ys)) in zip(_styles(len(series), marked, joined), series.items(), strict=False):
            axes.plot(list(xs), list(ys), label=label, **style)
        axes.set(xlabel=x)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set(ylabel=y)
    if marked:
        figure.axes[0].set_ylim(bottom=-0.02 * figure.axes[0].get_ylim()[1])  # zero is part of a share's picture
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_suffix(suffix) for suffix in (".svg", ".png", ".csv")]
    figure.savefig(written[0], metadata={"Date": None})
    figure.savefig(written[1], dpi=150)
    with written[2].open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["x axis", "label", "x", y])
        for x, series in panels.items():
            for label, (xs, ys) in series.items():
                lines.writerows([x, label, a, b] for a, b in zip(xs, ys, strict=True))
    return written


def _styles(count: int, marked: bool, joined: bool) -> list[dict[str, Any]]:
    """Colour, dash and marker of each line; a later one is thinner, so that it hides none that it coincides with."""
    styles = []
    for index, colour, dash, marker in zip(range(count), cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
        dashes = tuple(float(part) / 2 for part in dash.split())
        styles.append(
            {
                "color": colour.light,
                "linewidth": 1.2 + 2.4 * (1 - (index + 1) / count) if marked else 1.3,
                "linestyle": (0, dashes) if joined and dashes else "-" if joined else "",
                "marker": MATPLOTLIB_MARKERS[marker] if marked else "",
                "markersize": 4 + 4 * (1 - (index + 1) / count) if joined else 4,
            }
        )
    return styles


def _shares(result: Result) -> tuple[list[float], list[float]]:
    """The histogram up to the staleness that all but a few gradients keep below."""
    counts: dict[int, int] = dict(sorted(result.staleness.items()))
    total, seen, shown = sum(counts.values()), 0, {}
    for stale, count in counts.items():
        if seen > DRAWN_STALENESS * total:
            break
        shown[stale] = count
        seen += count
    return [float(stale) for stale in shown], [100 * count / total for count in shown.values()]
