"""The examples run as their first lines say, and their strategies agree."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "own_model": ["task.images=128", "task.width=8", "task.depth=1"],
    "own_llama": ["task.tokens=20000", "task.width=16", "task.context=16", "task.experts=2"],
}
MAX_LINES = 80


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    words = [word for setting in SMALL[name] for word in ("--set", setting)]
    command = [sys.executable, f"{name}.py", "--steps", "2", "--warmup", "1", "--json", "--quiet", *words]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ddp, fsdp = json.loads(done.stdout)
    assert ddp["unit"] == {"own_model": "images", "own_llama": "tokens"}[name]
    assert fsdp["loss"]["last"] == pytest.approx(ddp["loss"]["last"], rel=1e-5)
    assert fsdp["memory"]["state_bytes_per_device"] < 0.75 * ddp["memory"]["state_bytes_per_device"]
    assert fsdp["mfu_percent"] is None and "context" not in fsdp["settings"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_policy", ("ps-majority(75)", "computed for nothing")),
        ("own_delay", ("worker 0 cold, ddp: 430 s", "all workers cold, ps-async: 430 s")),
        ("own_strategy", ("fsdp_blocks:", "per step")),
    ],
)
def test_a_row_of_ones_own_runs_as_a_script(name: str, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=EXAMPLES, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in words)


def test_the_comparison_draws_what_it_measured(tmp_path: Path) -> None:
    figure = tmp_path / "comparison.png"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "compare.py", str(figure)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(f"{strategy}: " in done.stdout for strategy in ("ddp", "fsdp", "ps"))
    assert figure.stat().st_size > 10_000


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES
