"""That training learns: real text below its unigram entropy, a known source to near its entropy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.slow


def trained(folder: Path, strategy: str, *overrides: str) -> tuple[float, dict[str, Any]]:
    """The held-out loss of `tiny` at the end, and what the run says of its data.

    A process of its own: hundreds of steps want the optimised machine code that the other tests do without.
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    settings = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "cli", "train", "--config", "tiny", "--strategy", strategy, "--devices", "2"]
    command += ["--run-dir", str(folder), "--json", "--quiet", *settings]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["eval_loss"], json.loads((folder / "run.json").read_text())["data"]


@pytest.mark.parametrize("strategy", ["fsdp", "ps"])
def test_tiny_learns_more_of_the_stdlib_than_how_often_bytes_occur(strategy: str, tmp_path: Path) -> None:
    loss, data = trained(tmp_path / "run", strategy, "train.steps=60")
    assert loss < data["unigram_entropy_nats"]


def test_tiny_comes_within_five_percent_of_the_markov_sources_entropy(tmp_path: Path) -> None:
    loss, data = trained(tmp_path / "run", "ddp", "data.corpus=synthetic", "model.vocab=64")
    assert data["best_loss_nats"] < loss < 1.05 * data["best_loss_nats"]
