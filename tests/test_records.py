"""Records tell the truth: who trained which steps, what was held out, and what did not train at all."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import jaxdp
from jaxdp.config import Config, build, load
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag
from jaxdp.report.analysis.write import sections_of, study
from jaxdp.run.divergence import divergence
from tests.report_cases import result

SMALL = {
    "model": {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 16},
    "data": {"corpus": "synthetic"},
    "train": {"global_batch": 8, "steps": 12},
}


def config(strategy: str = "ddp", **keys: dict) -> Config:
    return build(
        {**SMALL, "strategy": {"name": strategy}, **{key: {**SMALL.get(key, {}), **keys[key]} for key in keys}}
    )


def train(folder: Path, strategy: str = "ddp", keys: dict | None = None, **options):
    lines: list[str] = []
    options.setdefault("devices", 2)
    summary = jaxdp.train(
        config(strategy, **(keys or {})),
        run_dir=str(folder),
        observe=lambda name, steps, note: lines.append(note),
        **options,
    )
    return summary, lines


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_part_of_a_run_is_its_own_strategys(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, steps=6)
    faster = {"optim": {"learning_rate": 2e-3}}
    _, lines = train(folder, "fsdp", faster, devices=4, steps=9, resume="auto")
    assert any("changed since step 6:" in line and "optim.learning_rate" in line for line in lines)
    train(folder, "fsdp", faster, devices=4, resume="auto")
    segments = json.loads((folder / "run.json").read_text())["segments"]
    assert [part["from_step"] for part in segments] == [0, 6, 9]
    assert [(part["config"]["strategy"]["name"], len(part["devices"])) for part in segments] == [
        ("ddp", 2),
        ("fsdp", 4),
        ("fsdp", 4),
    ]
    cells = study([folder]).cells
    assert {(cell.strategy, cell.devices, len(cell.runs)) for cell in cells} == {("ddp", 2, 1), ("fsdp", 4, 1)}
    steps = {cell.strategy: cell.runs[0].steps for cell in cells}
    assert all(part is not None for part in steps.values())
    assert {name: len(part.points) for name, part in steps.items() if part} == {"ddp": 6, "fsdp": 6}


def test_resuming_with_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, steps=4, eval_every=2)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    summary, _ = train(folder, "fsdp", {"optim": {"learning_rate": 1e-3}}, steps=4, resume="auto")
    assert summary.step == 4
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_heldout_losses_are_kept_and_taken_back_with_their_steps(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary, _ = train(folder, steps=6, eval_every=2, save_every=2)
    kept = rows(folder / "evaluations.jsonl")
    assert [row["step"] for row in kept] == [2, 4, 6]
    assert kept[-1]["eval_loss"] == pytest.approx(summary.eval_loss)
    again, _ = train(folder, steps=6, eval_every=2, save_every=2, resume=4)
    assert [row["step"] for row in rows(folder / "evaluations.jsonl")] == [2, 4, 6]
    assert again.eval_loss == pytest.approx(summary.eval_loss, rel=1e-5)


@pytest.mark.parametrize("split", [{"heldout": 0.2}, {"heldout_sequences": 7}])
def test_text_that_was_held_out_is_never_trained_on(split: dict, tmp_path: Path) -> None:
    train(tmp_path / "run", steps=2)
    with pytest.raises(BadInput, match=f"data.{next(iter(split))} was .* held out would be trained on"):
        train(tmp_path / "run", keys={"data": split}, resume="auto")


def test_the_number_of_checkpoints_is_a_key(tmp_path: Path) -> None:
    train(tmp_path / "run", keys={"train": {"keep_checkpoints": 1}}, steps=6, save_every=2)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000006"]


def test_a_copied_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, steps=6)
    shutil.copytree(folder / "checkpoints" / "00000006", folder / "checkpoints" / "00000009")
    summary, _ = train(folder, resume="auto", save_every=1)
    assert (summary.resumed_from, summary.step) == (6, 12)
    with pytest.raises(Exception, match="is a copy of the checkpoint of step 12"):
        shutil.copytree(folder / "checkpoints" / "00000012", folder / "checkpoints" / "00000099")
        train(folder, resume=99)


def test_a_run_goes_on_with_its_own_config(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, "fsdp", {"optim": {"learning_rate": 3e-3}}, steps=2)
    command = [sys.executable, "-m", "cli", "train", "--run-dir", str(folder), "--resume", "auto", "--print-config"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "printed.toml").write_text(done.stdout)
    expected = config("fsdp", optim={"learning_rate": 3e-3})
    assert load([str(tmp_path / "printed.toml")]) == load([str(folder / "run.json")]) == expected


def test_a_full_disk_ends_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "check", "--config", "nano", "--json"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert done.returncode not in (0, 120)
    assert len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("first", "losses", "diverged"),
    [
        (5.6, [5.6, 5.0, 4.0], False),
        (5.6, [5.6, 5.7], False),  # the noise of a batch
        (5.6, [5.6, 8.0, 9.9, 9.94], True),
        (3.0, [3.0, 3.5, 4.0], True),  # below guessing, but it forgets
        (9.9, [9.9, 9.8, 9.7], True),  # better, and worse than guessing
        (5.6, [5.6, math.nan], True),
        (5.6, [], False),
    ],
)
def test_what_does_not_train_is_called_diverged(first: float, losses: list[float], diverged: bool) -> None:
    assert (divergence(first, losses, config()) is not None) == diverged


def test_a_diverged_bench_says_so_and_has_no_time_to_loss(tmp_path: Path) -> None:
    wild = {"optim": {"name": "sgd", "learning_rate": 1e4, "warmup_steps": 0, "clip": 0.0, "schedule": "constant"}}
    (found,) = jaxdp.bench(
        config("ddp", **wild, train={"on_nonfinite": "skip"}),
        devices=2,
        steps=6,
        until_loss=100.0,
        run_dir=str(tmp_path / "run"),
    )
    assert found.diverged and found.extra["time_to_loss_s"] is None
    assert "diverged" in found.notes[0]


def test_a_diverged_run_is_told_first_and_never_ranked(tmp_path: Path) -> None:
    for name, rate, wild in (("ddp", 100.0, False), ("fsdp", 90.0, False), ("ps", 500.0, True)):
        folder = tmp_path / name
        folder.mkdir()
        loss = {"first": 5.6, "last": 9.94} if wild else {"first": 5.6, "last": 3.0}
        document = result(name, 4, rate, diverged=wild, loss=loss)
        (folder / "summary.json").write_text(json.dumps(document))
        record = {"config": {"strategy": {"name": name}}, "devices": [{"kind": "cpu", "platform": "cpu"}] * 4}
        (folder / "run.json").write_text(json.dumps(record))
    overview = sections_of(study([tmp_path]))[0].prose
    bullets = [line for line in overview.splitlines() if line.startswith("- ")]
    assert "**ps" in bullets[0] and "diverged" in bullets[0] and "9.94" in bullets[0]
    assert "**ddp** has the highest throughput" in bullets[1]


def test_a_stop_flag_that_is_not_raised_yet_is_the_one_that_stops(tmp_path: Path) -> None:
    class AfterOneWindow(StopFlag):
        @property
        def requested(self) -> bool:
            return (tmp_path / "run" / "steps.jsonl").exists() and len(rows(tmp_path / "run" / "steps.jsonl")) > 0

    stop = AfterOneWindow()
    assert not stop
    summary, _ = train(tmp_path / "run", stop=stop)
    assert summary.stopped and 0 < summary.step < 12
