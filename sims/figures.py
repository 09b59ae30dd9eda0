"""Figures of a simulation as SVG and PNG, each with the CSV of its points; matplotlib loads when one is drawn."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sims.curve import smoothed
from sims.results import Result, simulate
from sims.setting import Setting

FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
SWEPT_PUSHES = 20_000  # pushes of one point of the sweep, so that the figure takes a second

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # label -> (x, y)


def draw_all(setting: Setting, results: Sequence[Result], folder: Path) -> list[Path]:
    """Throughput against slowdown, idle share, staleness; the files written."""
    rows = [result.to_json() for result in results]
    idle = {row["label"]: (range(setting.workers), [100 * share for share in row["idle_share"]]) for row in rows}
    paths = draw(
        folder / "throughput_against_slowdown",
        slowed(setting),
        "slowdown of worker 0",
        "useful gradients/s, relative to none slowed",
    )
    paths += draw(folder / "idle_share", idle, "worker", "idle (%)", marker="o")
    stale = {result.strategy.label: _shares(result) for result in results if result.strategy.name == "ps"}
    if stale:
        paths += draw(folder / "staleness", stale, "staleness of a gradient", "share of gradients (%)", marker=".")
    if any(result.trainings for result in results):
        paths += draw_losses(results, folder)
    return paths


def draw_losses(results: Sequence[Result], folder: Path) -> list[Path]:
    """The first seed's loss, each strategy with its best learning rate, against virtual time and against tokens."""
    curves = {result.strategy.label: smoothed(result.trainings[0].points) for result in results if result.trainings}
    losses = {label: [point.loss for point in curve] for label, curve in curves.items()}
    times = {label: ([p.virtual_time_s for p in curve], losses[label]) for label, curve in curves.items()}
    tokens = {label: ([float(p.tokens) for p in curve], losses[label]) for label, curve in curves.items()}
    return draw_panels(folder / "loss", {"virtual time (s)": times, "tokens": tokens}, "loss (nats a token)", marker="")


def slowed(setting: Setting) -> Series:
    """Each strategy's useful throughput when worker 0 is a factor slower on top of the setting's delays."""
    steps = max(20, min(setting.steps, SWEPT_PUSHES // setting.workers))
    series = {}
    for strategy in setting.strategies:
        rates = []
        for factor in FACTORS:
            slower = ",".join(filter(None, [setting.delays, f"persistent(factor={factor},worker=0)"]))
            point = replace(setting, delays=slower, steps=steps)
            rates.append(simulate(point, strategy, setting.seed).useful_per_second)
        series[strategy.label] = (FACTORS, [rate / rates[0] for rate in rates])
    return series


def draw(path: Path, series: Series, x: str, y: str, marker: str = "o") -> list[Path]:
    """One line a label, to `path`.svg, .png and .csv."""
    return draw_panels(path, {x: series}, y, marker)


def draw_panels(path: Path, panels: Mapping[str, Series], y: str, marker: str = "o") -> list[Path]:
    """Panels side by side, each named by its x axis; they share the y axis and the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7 * len(panels), 4.5), layout="constrained")
    for axes, (x, series) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        for label, (xs, ys) in series.items():
            axes.plot(list(xs), list(ys), marker=marker, markersize=4, linewidth=1.3, label=label)
        axes.set(xlabel=x)
        axes.grid(alpha=0.3)
    figure.axes[0].set(ylabel=y)
    figure.axes[-1].legend(fontsize=8)
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


def _shares(result: Result) -> tuple[list[float], list[float]]:
    counts: dict[int, Any] = dict(sorted(result.staleness.items()))
    total = sum(counts.values())
    return [float(stale) for stale in counts], [100 * count / total for count in counts.values()]
