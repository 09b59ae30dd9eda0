"""What a report is made of: sections of prose, tables and charts, drawn by `page`, `figures` and `markdown` alike.

Plain values without JAX or matplotlib. Unknown is `None`, and shown as an em dash.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

UNKNOWN = "—"

Tone = Literal["good", "bad", "mixed", "neutral"]
Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Verdict:
    """A badge beside a heading: "holds", "does not hold"."""

    text: str
    tone: Tone = "neutral"


@dataclass(frozen=True)
class TableCell:
    """`text` is read, `value` is sorted by (unknown sorts last), `note` says more when asked."""

    text: str
    value: float | str | None = None
    note: str = ""
    tone: Tone = "neutral"


@dataclass(frozen=True)
class Table:
    """Rows of cells or plain values. `groups` names a row's switch (its strategy), one a row, or is empty."""

    columns: Sequence[str]
    rows: Sequence[Sequence[TableCell | str | float | None]]
    groups: Sequence[str] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"every row has {len(self.columns)} cells, one a column")
        if self.groups and len(self.groups) != len(self.rows):
            raise ValueError("groups: one a row, or none at all")

    @property
    def cells(self) -> list[list[TableCell]]:
        return [[as_cell(value) for value in row] for row in self.rows]


@dataclass(frozen=True)
class Point:
    """A measured y, with its spread from `low` to `high`; `details` and `flag` are shown when the point is opened.

    `document` names the settings that can be read from there. In a chart with `categories`, x is the index of
    one, and y lies along the horizontal axis.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    flag: str = ""
    document: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one line. `group` is the switch it obeys and sets its colour; "" is always shown.

    A `reference` is an ideal to compare with: a thin grey line without points.
    """

    name: str
    points: Sequence[Point]
    group: str = ""
    reference: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines over a numeric x, or dots in rows where `categories` are given. Labels carry the units."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_scale: Scale = "linear"
    y_scale: Scale = "linear"
    from_zero: bool = True
    categories: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One heading and what stands under it, in this order: prose, charts, a ready SVG, a table.

    `prose` is plain text with blank lines between paragraphs, lines that begin with "- " as a list, **bold**
    and `code`; `figure` is the text of an SVG that was drawn elsewhere.
    """

    heading: str
    prose: str = ""
    table: Table | None = None
    charts: Sequence[Chart] = ()
    figure: str | None = None
    verdict: Verdict | None = None


def as_cell(value: TableCell | str | float | None) -> TableCell:
    """A plain value as a cell; what is not finite is unknown."""
    if isinstance(value, TableCell):
        return value
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return TableCell(UNKNOWN)
    if isinstance(value, str):
        return TableCell(value, value)
    return TableCell(number_text(value), value)


def number_text(value: float) -> str:
    """Four digits that count, thousands apart, as the page's script writes them too."""
    if value == int(value) or abs(value) >= 1e4:
        return f"{round(value):,}"
    return f"{value:.4g}"


def groups_of(sections: Sequence[Section]) -> list[str]:
    """Every switch that tables and charts name, in order of appearance; its place sets colour, marker and dash."""
    found: dict[str, None] = {}
    for section in sections:
        for chart in section.charts:
            found |= dict.fromkeys(series.group for series in chart.series if series.group)
        found |= dict.fromkeys(group for group in (section.table.groups if section.table else ()) if group)
    return list(found)
