"""Tests the findings one after the other; one that fails is recorded as not testable here, and the others go on."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxdp.errors import BadInput, JaxdpError
from sims.findings import drawing, figure1, report
from sims.findings.claims import CLAIMS
from sims.findings.f1_memory import F1
from sims.findings.f2_crossover import F2
from sims.findings.f3_fastest import F3
from sims.findings.f4_uneven import F4
from sims.findings.f5_boundaries import F5
from sims.findings.f6_choice import F6
from sims.findings.figure1 import Point
from sims.findings.finding import Drawing, Finding, Trial
from sims.findings.lab import Lab

FINDINGS = (F1, F2, F3, F4, F5, F6)
TRIALS = {trial.name: trial for trial in (*FINDINGS, *CLAIMS)}


def chosen(only: Iterable[str]) -> list[Trial]:
    """The trials of these names (upper or lower case), all where none is named; raises `BadInput`."""
    names = [name.strip().upper() for text in only for name in text.split(",")]
    if unknown := [name for name in names if name not in TRIALS]:
        raise BadInput(f"--only {unknown[0]}: no such finding; known: {', '.join(TRIALS)}")
    return [trial for name, trial in TRIALS.items() if not names or name in names]


def run(trials: Sequence[Trial], lab: Lab) -> dict[str, Any]:
    """Every trial's finding, and Figure 1 where all are tested; what is known so far is written as it comes in."""
    findings: list[Finding] = []
    document: dict[str, Any] = {}
    for trial in trials:
        lab.say(f"{trial.name}: {trial.claim}")
        findings.append(test(trial, lab))
        lab.say(f"{trial.name}: {findings[-1].verdict}: {findings[-1].reason}")
        document = _document(findings, lab)
        lab.folder.write_json("results.json", document)
    points, drawn = _figure1(lab) if len(trials) == len(TRIALS) else ([], None)
    page = _page(lab, findings, points, drawn)
    document |= {"figure1": {"points": [asdict(point) for point in points], "figure": drawn}, "page": page}
    lab.folder.write_json("results.json", document)
    return document


def _document(findings: Sequence[Finding], lab: Lab) -> dict[str, Any]:
    names = {trial.name for trial in FINDINGS}
    return {
        "findings": [finding.to_json() for finding in findings if finding.name in names],
        "claims": [finding.to_json() for finding in findings if finding.name not in names],
        "quick": lab.quick,
        "run_dir": str(lab.folder.path),
    }


def test(trial: Trial, lab: Lab) -> Finding:
    try:
        evidence = trial.measure(lab)
        finding = trial.judge(evidence)
    except Exception as error:
        return trial.untestable(told(error))
    lab.folder.write_json(f"evidence/{trial.name}.json", asdict(evidence))
    figure = _drawn(trial.name, lambda: trial.draw(evidence), lab)
    return finding.drawn(figure) if figure else finding


def _figure1(lab: Lab) -> tuple[list[Point], str | None]:
    lab.say(figure1.TITLE)
    try:
        points = figure1.points(lab)
    except Exception as error:
        lab.say(f"warning: Figure 1 could not be filled in ({told(error)})")
        return [], None
    return points, _drawn("figure1", lambda: figure1.draw(points), lab)


def _drawn(name: str, draw: Any, lab: Lab) -> str | None:
    """The figure's path within the folder; one that fails loses nothing else."""
    try:
        drawing_: Drawing = draw()
        svg, *_ = drawing.write(drawing_, lab.folder.file(f"figures/{name}"))
    except Exception as error:
        lab.say(f"{name}: warning: its figure was not drawn ({told(error)})")
        return None
    return str(Path(svg).relative_to(lab.folder.path))


def _page(lab: Lab, findings: Sequence[Finding], points: Sequence[Point], drawn: str | None) -> str | None:
    try:
        return str(report.write(lab.folder.path, findings, points, drawn))
    except Exception as error:
        lab.say(f"warning: the page was not written ({told(error)})")
        return None


def told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, JaxdpError) else f"unexpected {type(error).__name__}: {text[:300]}"
