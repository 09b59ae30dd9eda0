"""A page of findings in one file: it opens from disk, loads nothing, and no text from a run can become markup.

write_page(path, "My study", [Section("F1: memory", prose="FSDP holds less.", verdict=Verdict("holds", "good"))])
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from jaxdp.config import dotted
from jaxdp.report import style
from jaxdp.report.section import Section, Table, TableCell, groups_of
from jaxdp.strict_json import to_json, write_atomically

SCRIPTS = ("scales.js", "marks.js", "charts.js", "card.js", "tables.js", "documents.js", "page.js")


def write_page(
    path: Path,
    title: str,
    sections: Sequence[Section],
    *,
    subtitle: str = "",
    documents: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Writes `sections` as one self-contained HTML file, whole or not at all, and returns its path.

    `documents` are named nested settings (a run's resolved config) that a reader can open and compare.
    Raises `JaxdpError` where the file cannot be written.
    """
    write_atomically(path, html(title, sections, subtitle, documents or {}).encode())
    return path


def html(title: str, sections: Sequence[Section], subtitle: str, documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The page's text."""
    script = "\n".join(asset(name) for name in SCRIPTS)
    groups = groups_of(sections)
    data = {
        "groups": groups,
        "markers": style.MARKERS,
        "dashes": style.DASHES,
        "colours": len(style.COLOURS),
        "charts": [asdict(chart) for section in sections for chart in section.charts],
        "documents": {name: dotted(document) for name, document in documents.items()},
    }
    parts = {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "style": style.css() + asset("page.css"),
        "script": script,
        # Only this script may run, so that markup which slipped in from a run could do nothing.
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": script_safe(to_json(data)),
        "switches": "".join(_switch(index, name) for index, name in enumerate(groups)),
        "contents": "".join(_entry(index, section) for index, section in enumerate(sections)),
        "sections": _sections(sections),
        "documents": asset("documents.html") if documents else "",
        "documents_entry": '<li><a href="#settings">Settings of the runs</a></li>' if documents else "",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("page.html"))


def asset(name: str) -> str:
    return (files("jaxdp.report") / "assets" / name).read_text(encoding="utf-8")


def script_safe(text: str) -> str:
    """JSON that cannot end the script element that it stands in, nor open a comment there."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def prose_html(text: str) -> str:
    """Paragraphs, lists, **bold** and `code`; everything else is shown as it stands."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines and all(line.startswith("- ") for line in lines):
            blocks.append("<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>")
        elif block:
            blocks.append(f"<p>{_inline(' '.join(lines))}</p>")
    return "".join(blocks)


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _switch(index: int, name: str) -> str:
    return (
        f'<label class="switch"><input type="checkbox" checked data-group="{index}">'
        f'<svg class="key" data-key="{index}" aria-hidden="true"></svg>{escape(name)}</label>'
    )


def _entry(index: int, section: Section) -> str:
    tone = f' data-tone="{section.verdict.tone}"' if section.verdict and section.verdict.tone != "neutral" else ""
    return f'<li><a href="#section-{index}"{tone}>{escape(section.heading)}</a></li>'


def _sections(sections: Sequence[Section]) -> str:
    groups, drawn, written = groups_of(sections), 0, []
    for index, section in enumerate(sections):
        charts = "".join(
            f'<figure class="chart" data-chart="{drawn + place}"></figure>' for place in range(len(section.charts))
        )
        drawn += len(section.charts)
        written.append(_section(index, section, charts, groups))
    return "\n".join(written)


def _section(index: int, section: Section, charts: str, groups: Sequence[str]) -> str:
    badge = section.verdict
    parts = [
        f'<section id="section-{index}" aria-labelledby="heading-{index}">',
        f'<h2 id="heading-{index}">{escape(section.heading)}',
        f' <span class="badge" data-tone="{badge.tone}">{escape(badge.text)}</span>' if badge else "",
        "</h2>",
        f'<div class="prose">{prose_html(section.prose)}</div>' if section.prose else "",
        f'<div class="charts">{charts}</div>' if charts else "",
        _picture(section) if section.figure else "",
        table_html(section.table, groups) if section.table else "",
        "</section>",
    ]
    return "".join(parts)


def _picture(section: Section) -> str:
    """As an image, not as markup: nothing in it can run, and its ids cannot meet another figure's."""
    content = base64.b64encode((section.figure or "").encode()).decode()
    return f'<img class="picture" alt="{escape(section.heading)}" src="data:image/svg+xml;base64,{content}">'


def table_html(table: Table, groups: Sequence[str]) -> str:
    """A table whose columns sort (by the script) and whose rows obey their group's switch."""
    cells = table.cells
    numeric = [not any(isinstance(row[place].value, str) for row in cells) for place in range(len(table.columns))]
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    head = "".join(
        f'<th scope="col" aria-sort="none"{_number(number)}><button type="button">{escape(name)}</button></th>'
        for name, number in zip(table.columns, numeric, strict=True)
    )
    body = []
    for place, row in enumerate(cells):
        group = f' data-group="{groups.index(table.groups[place])}"' if table.groups and table.groups[place] else ""
        body.append(f"<tr{group}>{''.join(map(_cell, row, numeric))}</tr>")
    label = escape(table.caption or "table")
    return (
        f'{caption}<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(cell: TableCell, numeric: bool) -> str:
    value = "" if cell.value is None else f' data-value="{escape(str(cell.value))}"'
    tone = "" if cell.tone == "neutral" else f' data-tone="{cell.tone}"'
    note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
    return f"<td{value}{tone}{_number(numeric)}>{escape(cell.text)}{note}</td>"


def _number(numeric: bool) -> str:
    return ' class="number"' if numeric else ""
