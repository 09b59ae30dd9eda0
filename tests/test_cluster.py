"""The shipped recipes for clusters: their shell and YAML are sound, and jaxdp knows the commands in them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[1] / "configs" / "cluster"
SLURM, TWO_HOSTS = FOLDER / "slurm.sbatch", FOLDER / "two-hosts.sh"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder that comes first in PATH; each tool there writes down how it was called."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("srun", "scontrol", "jaxdp"):
        lines = ("#!/bin/bash", f'echo "{name} $*" >> "$CALLS"', 'env > "$CALLS.env"', "exit ${CODE:-0}")
        (folder / name).write_text("\n".join(lines))
        (folder / name).chmod(0o755)
    return folder


def call(tools: Path, script: Path, *arguments: str, **environment: str) -> tuple[int, list[str], dict[str, str]]:
    calls = tools / "calls"
    added = {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "SLURM_JOB_ID": "42"}
    done = subprocess.run(["bash", str(script), *arguments], env=os.environ | added | environment, capture_output=True)
    lines = calls.read_text().splitlines() if calls.exists() else []
    seen = (tools / "calls.env").read_text().splitlines() if lines else []
    return done.returncode, lines, dict(line.split("=", 1) for line in seen if "=" in line)


def assert_known(words: list[str]) -> None:
    """The command line is one that jaxdp takes."""
    command = [sys.executable, "-m", "cli", *words, "--print-config"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAXDP_")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parents[1], env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("code", "requeued"), [("143", True), ("0", False), ("1", False), ("3", False)])
def test_the_slurm_job_is_queued_again_only_when_it_was_stopped_in_good_order(
    tools: Path, code: str, requeued: bool
) -> None:
    (tools / "scontrol").write_text((tools / "scontrol").read_text().replace("${CODE:-0}", "0"))
    found, lines, _ = call(tools, SLURM, "--config", "1b", CODE=code)
    assert found == int(code)
    assert (lines[1:] == ["scontrol requeue 42"]) == requeued
    words = lines[0].split(" jaxdp ")[1].split()
    assert words[-2:] == ["--config", "1b"] and "runs/slurm-42" in words
    assert_known(words)


def test_two_hosts_by_hand(tools: Path) -> None:
    code, lines, seen = call(tools, TWO_HOSTS, "1", "first:29400", "bench", "--set", "a=b c", HOSTS="3")
    assert (code, lines) == (0, ["jaxdp bench --set a=b c"])
    names = ("JAXDP_PROCESS_ID", "JAXDP_COORDINATOR", "JAXDP_PROCESSES")
    assert [seen[name] for name in names] == ["1", "first:29400", "3"]
    assert call(tools, TWO_HOSTS, "1", "first:29400")[0] == 2


def test_the_job_set_is_one_job_of_as_many_processes_as_pods() -> None:
    job_set: Any = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    environment = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert str(job["parallelism"]) == str(job["completions"]) == environment["JAXDP_PROCESSES"]
    set_name, job_name = job_set["metadata"]["name"], replicated["name"]
    assert environment["JAXDP_COORDINATOR"].split(":")[0] == f"{set_name}-{job_name}-0-0.{set_name}"
    assert environment["JAXDP_COORDINATOR"].endswith(f":{container['ports'][0]['containerPort']}")
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in job["template"]["spec"]["volumes"]
    }
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] == container["name"]
    assert_known(container["args"])


@pytest.mark.parametrize("script", [SLURM, TWO_HOSTS], ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
