"""The campaign: one finding that fails stops nothing, and everything is there to read afterwards."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jaxdp.errors import BadInput
from jaxdp.run.folder import open_run
from sims.findings import campaign, drawing
from sims.findings.finding import HOLDS, UNTESTABLE, Drawing, Finding, Trial, Value
from sims.findings.lab import Lab

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    devices: int
    share: float


@dataclass(frozen=True)
class Evidence:
    rows: tuple[Row, ...]


def judged(_: Evidence) -> Finding:
    return Finding("F1", "less <b>", "always", HOLDS, "it is", (Value("share", None, float("nan"), "measured"),))


def drawn(evidence: Evidence) -> Drawing:
    figure, (axes,) = drawing.panels(1)
    axes.plot([row.devices for row in evidence.rows], [row.share for row in evidence.rows])
    return Drawing(figure, evidence.rows)


def failing(*_: Any) -> Any:
    raise BadInput("needs 6 devices")


def trial(
    name: str, measure: Any = lambda lab: Evidence((Row(2, 0.5),)), judge: Any = judged, draw: Any = drawn
) -> Trial:
    return Trial(name, "less <b>", "always", measure, judge, draw)


@pytest.fixture
def lab(tmp_path: Path):
    with open_run(tmp_path / "run") as folder:
        yield Lab(folder)


def test_a_failing_finding_stops_no_other(lab):
    document = campaign.run([trial("F1", measure=failing), trial("F1", judge=failing), trial("F1")], lab)
    assert [finding["verdict"] for finding in document["findings"]] == [UNTESTABLE, UNTESTABLE, HOLDS]
    assert document["findings"][0]["reason"] == "needs 6 devices"
    assert json.loads((lab.folder.path / "results.json").read_text()) == json.loads(json.dumps(document)) | {
        "findings": [{**each, "found": dict.fromkeys(each["found"])} for each in document["findings"]]
    }


def test_a_finding_leaves_evidence_figure_values_and_page(lab):
    (finding,) = campaign.run([trial("F1")], lab)["findings"]
    folder = lab.folder.path
    assert json.loads((folder / "evidence/F1.json").read_text()) == {"rows": [{"devices": 2, "share": 0.5}]}
    assert (folder / finding["figure"]).read_bytes().startswith(b"<?xml")
    assert (folder / "figures/F1.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "figures/F1.csv").read_text() == "devices,share\n2,0.5\n"
    assert (folder / "findings.csv").read_text().splitlines()[1].startswith("F1,holds,share,")
    page = (folder / "report.html").read_text()
    assert "less &lt;b&gt;" in page and "less <b>" not in page.replace("less &lt;b&gt;", "")


def test_a_failing_figure_loses_no_finding(lab):
    (finding,) = campaign.run([trial("F1", draw=failing)], lab)["findings"]
    assert finding["verdict"] == HOLDS and finding["figure"] is None


def test_only_known_findings_are_chosen():
    assert [each.name for each in campaign.chosen(["f5,F1"])] == ["F1", "F5"]
    assert len(campaign.chosen([])) == len(campaign.TRIALS) == 10
    with pytest.raises(BadInput, match="F9: no such finding; known: F1, F2"):
        campaign.chosen(["F9"])
    with pytest.raises(BadInput, match="no such finding"):  # nothing named is a mistake, not everything
        campaign.chosen([","])


def test_too_few_devices_are_told(lab):
    with pytest.raises(BadInput, match="needs 64 devices and has 8"):
        lab.need(64)


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "cli", "reproduce", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ, timeout=300, check=False)


def test_the_command_prints_one_document(tmp_path):
    done = run("--only", "P2", "--json", "--quiet", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0 and done.stderr == ""
    document = json.loads(done.stdout)
    (claim,) = document["claims"]
    assert document["findings"] == [] and claim["finding"] == "P2"
    assert set(claim) >= {"finding", "claim", "condition", "verdict", "expected", "found", "how", "figure"}
    assert set(claim["expected"]) == set(claim["found"]) == set(claim["how"])
    assert (tmp_path / "run" / claim["figure"]).is_file()


def test_a_wrong_name_is_refused_before_any_work(tmp_path):
    done = run("--only", "F7", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 2 and done.stderr.startswith("error: --only F7: no such finding")
    assert not (tmp_path / "run").exists()
