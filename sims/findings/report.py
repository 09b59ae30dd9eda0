"""What a campaign leaves to read: one page with every finding, its values and figure, and the values as CSV."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from jaxdp.report.page import write_page
from jaxdp.report.section import Section, Table, TableCell, Tone, Verdict
from sims.findings.figure1 import CAPTION, TITLE, Point
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Finding

TONES: dict[str, Tone] = {HOLDS: "good", CONDITIONAL: "mixed", FAILS: "bad", UNTESTABLE: "neutral"}
INTRODUCTION = """\
Each finding of the study is tested, not assumed. How a value was obtained stands beside it:
**measured** on this machine's devices, **compiled** (read from the compiled program), **simulated** in virtual time, or
**predicted** by the cost and memory models.

Host devices share this machine's cores. Their wall-clock time is evidence only where steps are paced or latency is
injected, and is then said to be so; bytes and rounds of compiled programs are exact.
"""


def write(folder: Path, findings: Sequence[Finding], points: Sequence[Point], figure1: str | None) -> Path:
    """Writes findings.csv and report.html; returns the page's path."""
    (folder / "findings.csv").write_text(csv_text(findings), encoding="utf-8")
    sections = [Section("Verdicts", INTRODUCTION, _overview(findings))]
    sections += [_section(folder, finding) for finding in findings]
    if points:
        sections.insert(1, Section(TITLE, CAPTION, _figure1_table(points), figure=_svg(folder, figure1)))
    return write_page(folder / "report.html", "The study's findings, tested here", sections)


def csv_text(findings: Sequence[Finding]) -> str:
    """A line a value."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["finding", "verdict", "metric", "expected", "found", "how"])
    for finding in findings:
        lines.writerows([finding.name, finding.verdict, *value] for value in finding.values)
    return text.getvalue()


def _overview(findings: Sequence[Finding]) -> Table:
    rows = [
        [finding.name, TableCell(finding.verdict, finding.verdict, tone=TONES[finding.verdict]), finding.claim]
        for finding in findings
    ]
    return Table(("finding", "verdict", "claim"), rows)


def _section(folder: Path, finding: Finding) -> Section:
    rows = [[value.name.replace("_", " "), value.expected, value.found, value.how] for value in finding.values]
    return Section(
        f"{finding.name}: {finding.claim}",
        f"**Found:** {finding.reason}.\n\n**Tested:** {finding.condition}.",
        Table(("metric", "expected", "found", "how"), rows) if rows else None,
        figure=_svg(folder, finding.figure),
        verdict=Verdict(finding.verdict, TONES[finding.verdict]),
    )


def _svg(folder: Path, figure: str | None) -> str | None:
    return (folder / figure).read_text(encoding="utf-8") if figure else None


def _figure1_table(points: Sequence[Point]) -> Table:
    rows = [
        [
            p.strategy,
            p.devices,
            "one 4 times slower" if p.uneven else "even",
            100 * p.efficiency,
            p.tokens_per_second,
            p.how,
        ]
        for p in points
    ]
    columns = ("strategy", "devices", "workers", "scaling efficiency (%)", "tokens/s", "how")
    return Table(columns, rows, groups=[point.strategy for point in points])
