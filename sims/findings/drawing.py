"""What the findings' figures share: size, colours of the strategies, heat maps, and files. matplotlib loads late."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.report.figure import save
from jaxdp.report.style import COLOURS
from sims.findings.finding import Drawing

STRATEGIES = ("ddp", "fsdp", "ps", "zero1", "hsdp")  # in the order of the colours
COLOUR = {name: COLOURS[place].light for place, name in enumerate(STRATEGIES)}
OTHER, FLAGGED = COLOURS[5].light, COLOURS[1].light


def panels(count: int, width: float = 5.2, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure without a display, with `count` axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * count, height), layout="constrained")
    axes = [figure.add_subplot(1, count, place + 1) for place in range(count)]
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def heat_map(
    axes: Any, values: Sequence[Sequence[float]], x: Sequence[str], y: Sequence[str], region: np.ndarray, form: str
) -> None:
    """Rows of values from the bottom up, each written in its cell; `region` (booleans) is outlined."""
    cells = np.array(values, dtype=float)
    axes.grid(False)
    axes.spines[["top", "right"]].set_visible(True)
    axes.imshow(cells, origin="lower", aspect="auto", cmap="Blues", alpha=0.75)
    axes.set_xticks(range(len(x)), x)
    axes.set_yticks(range(len(y)), y)
    middle = (np.nanmin(cells) + np.nanmax(cells)) / 2
    for (row, column), value in np.ndenumerate(cells):
        text = number_text(value, form)
        dark = value > middle + 0.25 * (np.nanmax(cells) - np.nanmin(cells))
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    _outline(axes, region)


def number_text(value: float, form: str) -> str:
    """The number in this form; "-" for none, and never a negative zero."""
    text = "-" if np.isnan(value) else form.format(value)
    return text.lstrip("-") if text.strip("-0.") == "" and text != "-" else text


def _outline(axes: Any, region: np.ndarray) -> None:
    """A line along every edge between a cell inside and one outside."""
    rows, columns = region.shape
    padded = np.pad(region, 1)
    for row in range(rows + 1):
        for column in range(columns + 1):
            here, left, below = padded[row + 1, column + 1], padded[row + 1, column], padded[row, column + 1]
            x, y = column - 0.5, row - 0.5
            if here != left and row < rows:
                axes.plot([x, x], [y, y + 1], color=FLAGGED, linewidth=2.5, solid_capstyle="projecting")
            if here != below and column < columns:
                axes.plot([x, x + 1], [y, y], color=FLAGGED, linewidth=2.5, solid_capstyle="projecting")


def write(drawing: Drawing, path: Path) -> list[Path]:
    """`path` with .svg, .png and .csv; raises `JaxdpError` where that fails."""
    written = save(drawing.figure, csv_text(drawing.rows), path.with_suffix(".svg"))
    png = path.with_suffix(".png")
    if png not in written:
        drawing.figure.savefig(png, dpi=110)
    return [*dict.fromkeys([*written, png])]


def csv_text(rows: Sequence[Any]) -> str:
    """One line a row (a dataclass); parts of lists are joined by spaces."""
    text = io.StringIO()
    lines = [{key: _plain(value) for key, value in asdict(row).items()} for row in rows]
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value
