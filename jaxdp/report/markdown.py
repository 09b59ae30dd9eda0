"""A report as Markdown, with its figures beside it."""

import re
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path

from jaxdp.report.section import Section, Table, TableCell


def markdown(title: str, subtitle: str, sections: Sequence[Section], figures: Mapping[int, Path], folder: Path) -> str:
    """The text of `report.md`; `figures` are the drawn charts by their place among all charts."""
    parts = [f"# {inline(title)}", inline(subtitle)]
    drawn = 0
    for section in sections:
        badge = f" [{section.verdict.text}]" if section.verdict else ""
        parts += [f"## {inline(section.heading + badge)}", prose(section.prose)]
        for chart in section.charts:
            if drawn in figures:
                path = Path(relpath(figures[drawn], folder)).as_posix()
                parts.append(f"![{inline(chart.title)}]({path})")
            drawn += 1
        parts.append(table(section.table) if section.table else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def prose(text: str) -> str:
    """Section prose is Markdown already; only what could open an HTML element is taken out of it."""
    return text.replace("<", "&lt;")


def inline(text: str) -> str:
    """Text in which nothing is markup."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text.replace("<", "&lt;")).replace("\n", " ")


def table(found: Table) -> str:
    lines = [inline(found.caption), ""] if found.caption else []
    lines.append("| " + " | ".join(inline(name) for name in found.columns) + " |")
    lines.append("|" + " --- |" * len(found.columns))
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in found.cells]
    return "\n".join(lines)


def _cell(cell: TableCell) -> str:
    return inline(f"{cell.text} ({cell.note})" if cell.note else cell.text)
