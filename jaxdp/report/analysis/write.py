"""The whole report: from folders to `report.md`, `report.csv`, `report.html` and its figures."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from jaxdp.errors import BadInput
from jaxdp.report.analysis import against, chapters
from jaxdp.report.analysis.bends import Bend, bends_of
from jaxdp.report.analysis.compare import Difference, differences, in_common, settings_that_differ
from jaxdp.report.analysis.load import Measurement, load
from jaxdp.report.analysis.losses import losses
from jaxdp.report.analysis.metrics import METRICS
from jaxdp.report.analysis.run_groups import Curve, RunGroup, cells_of, curves_of, with_axes, with_time_to_loss
from jaxdp.report.analysis.scaling import scaling
from jaxdp.report.analysis.settings import settings_of
from jaxdp.report.markdown import markdown
from jaxdp.report.page import write_page
from jaxdp.report.section import Section, groups_of
from jaxdp.strict_json import write_atomically

MARK = ".jaxdp-report"  # marks a folder as a report's
CSV_COLUMNS = (
    *("strategy", "devices", "tokens_per_step", "conditions", "scaling", "metric"),
    *("median", "low", "high", "n", "spread", "how"),
)


@dataclass(frozen=True)
class Study:
    """Everything that a report says. `compared` names A and B; then cells of the two stay apart."""

    runs: list[Measurement]
    cells: list[RunGroup]
    curves: list[Curve]
    bends: list[Bend]
    marks: dict[str, float]  # the loss that times are taken to, by conditions
    compared: tuple[str, str] | None
    differences: list[Difference]
    settings: list[tuple[str, str, str]]

    def to_json(self) -> dict[str, Any]:
        a_b = {"a": self.compared[0], "b": self.compared[1]} if self.compared else {}
        comparison = {**a_b, "differences": [each.to_json() for each in self.differences],
                      "settings": [{"key": k, "a": a, "b": b} for k, a, b in self.settings]}  # fmt: skip
        return {
            "cells": [_cell_json(cell) for cell in self.cells],
            "curves": [_curve_json(curve) for curve in self.curves],
            "bends": [bend.to_json() for bend in self.bends],
            "comparison": comparison if self.compared else None,
            "not_measured": [
                {"run": run.name, "strategy": run.strategy, "devices": run.devices, "axes": run.axes,
                 "status": run.status, "reason": run.reason}
                for run in self.runs if run.result is None
            ],
            "notes": chapters.caveats(self.cells),
        }  # fmt: skip


def study(folders: Sequence[Path], pool: bool = False) -> Study:
    """Reads the folders. Two that share cells are compared, unless `pool` takes their runs as repeats.

    Raises `BadInput` where a folder holds nothing that was measured.
    """
    names = _sources(folders)
    read = {name: load(folder, name) for name, folder in zip(names, folders, strict=True)}
    if len(names) == 2 and not pool:
        left, right = read.values()
        a, b = with_axes(left, right), with_axes(right, left)
        if in_common(cells_of(a), cells_of(b)):
            return _study([*a, *b], (names[0], names[1]))
    return _study(with_axes([run for runs in read.values() for run in runs]), None)


def _study(runs: Sequence[Measurement], compared: tuple[str, str] | None) -> Study:
    found, marks = with_time_to_loss(runs)
    cells = cells_of(found, name_source=compared is not None)
    if not cells:
        raise BadInput(
            f"{runs[0].source}: none of its {len(runs)} runs has a result; {runs[0].reason or 'run it again'}"
        )
    curves = curves_of(cells)
    bends = [bend for curve in curves for bend in bends_of(curve)]
    if compared is None:
        return Study(found, cells, curves, bends, marks, None, [], [])
    a, b = ([run for run in found if run.source == name] for name in compared)
    settings = settings_that_differ(a, b)
    return Study(found, cells, curves, bends, marks, compared, differences(cells_of(a), cells_of(b)), settings)


def _sources(folders: Sequence[Path]) -> list[str]:
    """Short names of the folders: their last part where that tells them apart."""
    resolved = [folder.resolve() for folder in folders]
    if len(set(resolved)) < len(resolved):
        raise BadInput("RUN: a folder is given twice; its runs would be compared with themselves")
    names = [path.name for path in resolved]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def sections_of(found: Study) -> list[Section]:
    lost = sum(run.result is None for run in found.runs)
    compared = against.comparison(*found.compared, found.differences, found.settings) if found.compared else []
    sections = [
        chapters.overview(found.cells, found.curves, found.bends, lost),
        *compared,
        scaling(found.curves, found.bends),
        chapters.throughput(found.cells, found.curves),
        chapters.memory(found.cells),
        chapters.communication(found.cells),
        losses(found.cells, found.marks),
        chapters.staleness(found.cells),
        against.predictions(found.cells),
        chapters.not_measured(found.runs),
        chapters.notes(found.cells),
    ]
    return [section for section in sections if section is not None]


def write(found: Study, out: Path) -> list[Path]:
    """Writes every file of the report into `out`, over those of an earlier report, and returns their paths.

    Raises `BadInput` for a folder that holds anything else.
    """
    _claim(out)
    from jaxdp.report.charts import draw

    sections = sections_of(found)
    charts = [chart for section in sections for chart in section.charts]
    title, subtitle = _title(found), _subtitle(found)
    documents = {run.name: settings_of(run.record) for run in found.runs if run.record}
    page = write_page(out / "report.html", title, sections, subtitle=subtitle, documents=documents)
    write_atomically(out / "report.csv", to_csv(found).encode())
    figures = draw(charts, groups_of(sections), out / "figures")
    write_atomically(out / "report.md", markdown(title, subtitle, sections, figures, out).encode())
    drawn = [path.with_suffix(suffix) for path in figures.values() for suffix in (".png", ".svg")]
    return [page, out / "report.md", out / "report.csv", *drawn]


def _claim(out: Path) -> None:
    """Makes the folder a report's, so that a later report may replace it, and nothing else is replaced by one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in out.iterdir())
        if held and MARK not in held:
            names = ", ".join(held[:3])
            raise BadInput(f"--out {out}: holds files that no report wrote ({names}); choose a new folder")
        (out / MARK).touch()
    except OSError as error:
        raise BadInput(f"--out {out}: cannot be written ({error.strerror}); choose another folder") from None


def _title(found: Study) -> str:
    if found.compared:
        return f"{found.compared[1]} against {found.compared[0]}"
    sources = list(dict.fromkeys(run.source for run in found.runs))
    return ", ".join(sources[:3]) + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")


def _subtitle(found: Study) -> str:
    results = [run.result or {} for run in found.runs]
    kinds = dict.fromkeys(f"{r['device_kind']} ({r.get('platform')})" for r in results if r.get("device_kind"))
    devices = sorted({cell.devices for cell in found.cells})
    dates = sorted(str(run.record["started"])[:10] for run in found.runs if run.record.get("started"))
    versions = dict.fromkeys(str((run.record.get("versions") or {}).get("jax")) for run in found.runs if run.record)
    parts = [
        f"{sum(len(cell.runs) for cell in found.cells)} runs of {len(found.cells)} cells",
        f"{', '.join(map(str, devices))} devices" + (f" of {', '.join(kinds)}" if kinds else ""),
        f"jax {', '.join(versions)}" if versions else "",
        (dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}") if dates else "",
    ]
    return " · ".join(filter(None, parts))


def to_csv(found: Study) -> str:
    """A line for each metric of each cell: tidy, and empty where a spread is unknown."""
    text = StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(CSV_COLUMNS)
    for cell in found.cells:
        start = [cell.label, cell.devices, cell.tokens_per_step, cell.conditions, ""]
        for key, values in _metrics_json(cell).items():
            if values:
                lines.writerow(
                    [*start, key, *(values[name] for name in ("median", "low", "high", "n", "spread", "how"))]
                )
    for curve in found.curves:
        for point in curve.points:
            start = [curve.label, point.cell.devices, point.cell.tokens_per_step, curve.conditions, curve.scaling]
            for key, value in (("speed_up", point.speed_up), ("efficiency", point.efficiency)):
                lines.writerow([*start, key, *value.to_json().values(), "measured"])
    return text.getvalue()


def _cell_json(cell: RunGroup) -> dict[str, Any]:
    return {
        "strategy": cell.label, "devices": cell.devices, "tokens_per_step": cell.tokens_per_step,
        "conditions": cell.conditions, "runs": [run.name for run in cell.runs],
        "findings": list(cell.findings.values()),
        "quantities": _metrics_json(cell),
        "predicted": {q.key: value for q in METRICS if (value := cell.predicted(q)) is not None},
    }  # fmt: skip


def _metrics_json(cell: RunGroup) -> dict[str, dict[str, Any] | None]:
    found = {}
    for metric in METRICS:
        value = cell.spread(metric)
        found[metric.key] = value and value.to_json() | {"how": metric.how(cell.runs[0].result)}
    return found


def _curve_json(curve: Curve) -> dict[str, Any]:
    points = [
        {"devices": point.cell.devices, "speed_up": point.speed_up.to_json(), "efficiency": point.efficiency.to_json()}
        for point in curve.points
    ]
    return {"strategy": curve.label, "conditions": curve.conditions, "scaling": curve.scaling,
            "base_devices": curve.base, "points": points}  # fmt: skip
