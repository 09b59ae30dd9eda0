"""Training as a whole: what a run leaves, and that stopping, resuming and moving to other devices changes nothing."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxdp.config import Config, build
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.job.stop import StopFlag
from jaxdp.run.prepare import prepare
from jaxdp.run.train import TrainSummary, train

STEPS = 12


def settings(strategy: str, **train_keys: Any) -> Config:
    return build(
        {
            "model": {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 16, "dropout": 0.1},
            "optim": {"learning_rate": 3e-3, "warmup_steps": 3},
            "train": {"global_batch": 8, "steps": STEPS, **train_keys},
            "strategy": {"name": strategy, "min_shard_bytes": 0},
            "data": {"corpus": "synthetic"},
        }
    )


class StopAt(StopFlag):
    """A stop that is asked for once the run has written a step."""

    def __init__(self, step: int, folder: Path):
        super().__init__()
        self.step, self.folder = step, folder

    @property
    def requested(self) -> bool:
        return len(rows(self.folder)) >= self.step


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(config: Config, devices: int, folder: Path, stop_at: int | None = None, **options: Any) -> TrainSummary:
    overwrite = options.pop("overwrite", False)
    resume = options.get("resume", "never")
    prepared = prepare(
        [config], devices, name="train", run_dir=str(folder), resume=resume != "never", overwrite=overwrite
    )
    stop = StopFlag() if stop_at is None else StopAt(stop_at, folder)
    try:
        return train(prepared, observe=lambda steps, note: None, stop=stop, **options)
    finally:
        prepared.folder.release()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], TrainSummary]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    summary = run(settings("ddp"), 2, folder)
    return rows(folder), summary


def test_a_run_leaves_its_records(uninterrupted: tuple[list[dict[str, Any]], TrainSummary]) -> None:
    steps, summary = uninterrupted
    assert [row["step"] for row in steps] == list(range(STEPS))
    assert [row["tokens"] for row in steps] == [8 * 16 * (step + 1) for step in range(STEPS)]
    assert set(steps[0]) == {
        "step", "tokens", "loss", "grad_norm", "step_time_s", "data_wait_s", "learning_rate"
    }  # fmt: skip
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert (summary.step, summary.checkpoint_step, summary.resumed_from) == (STEPS, STEPS, None)
    assert summary.loss == steps[-1]["loss"] and summary.tokens == steps[-1]["tokens"]
    assert summary.eval_loss is not None and math.isfinite(summary.eval_loss)


@pytest.mark.parametrize(
    ("first", "second"), [(("fsdp", 4), ("ddp", 2)), (("ddp", 2), ("hsdp", 4)), (("zero1", 2), ("zero1", 2))]
)
def test_stopped_and_resumed_elsewhere_follows_the_uninterrupted_run(
    first: tuple[str, int],
    second: tuple[str, int],
    tmp_path: Path,
    uninterrupted: tuple[list[dict[str, Any]], TrainSummary],
) -> None:
    folder = tmp_path / "run"
    at = random.randint(1, STEPS - 1)
    stopped = run(settings(first[0]), first[1], folder, stop_at=at)
    assert at <= stopped.step == stopped.checkpoint_step
    summary = run(settings(second[0]), second[1], folder, resume="auto")
    assert summary.resumed_from == stopped.step
    expected, whole = uninterrupted
    found = rows(folder)
    assert [row["step"] for row in found] == list(range(STEPS))
    for key in ("loss", "grad_norm", "learning_rate"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], rel=2e-5), key
    assert summary.eval_loss == pytest.approx(whole.eval_loss, rel=2e-5)


@pytest.mark.slow
def test_a_checkpoint_moves_through_counts_that_divide_no_dim(tmp_path: Path) -> None:
    """A host fails, another comes back: every strategy goes on from what another left on another number of devices."""
    batch = {"global_batch": 840}  # what 8, 7, 6 and 5 devices divide
    whole = run(settings("ddp", **batch), 8, tmp_path / "whole")
    moves = [(name, devices) for name in ("fsdp", "zero1", "ddp") for devices in (8, 7, 5)]
    moves = random.sample([*moves, ("hsdp", 8), ("hsdp", 6)], k=5)
    for step, (strategy, devices) in enumerate([("fsdp", 8), *moves, ("fsdp", 8)], start=1):
        last = run(
            settings(strategy, **batch),
            devices,
            tmp_path / "moved",
            steps=STEPS if step == len(moves) + 2 else step,
            resume="never" if step == 1 else "auto",
        )
    found, expected = rows(tmp_path / "moved"), rows(tmp_path / "whole")
    for key in ("loss", "grad_norm", "learning_rate"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], rel=2e-5), (key, moves)
    assert last.eval_loss == pytest.approx(whole.eval_loss, rel=2e-5), moves


def test_resumed_on_the_same_devices_it_is_the_same_run_bit_for_bit(tmp_path: Path) -> None:
    run(settings("fsdp"), 2, tmp_path / "whole")
    run(settings("fsdp"), 2, tmp_path / "parts", steps=5)
    run(settings("fsdp"), 2, tmp_path / "parts", resume=5)
    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert [row["loss"] for row in whole] == [row["loss"] for row in parts]


def test_killed_before_its_first_checkpoint_a_run_starts_again(tmp_path: Path) -> None:
    run(settings("ddp"), 1, tmp_path / "run", steps=3)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    summary = run(settings("ddp"), 1, tmp_path / "run", steps=3, resume="auto")
    assert summary.resumed_from is None
    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1, 2]


def test_resuming_at_the_end_trains_nothing_and_says_so(tmp_path: Path) -> None:
    first = run(settings("ddp"), 1, tmp_path / "run", steps=3)
    again = run(settings("ddp"), 1, tmp_path / "run", steps=3, resume="auto")
    assert (again.step, again.resumed_from, again.loss) == (3, 3, first.loss)
    assert len(rows(tmp_path / "run")) == 3


def test_another_model_or_data_order_is_refused(tmp_path: Path) -> None:
    run(settings("ddp"), 1, tmp_path / "run", steps=2)
    other = settings("ddp").model_copy(update={"model": settings("ddp").model.model_copy(update={"layers": 3})})
    with pytest.raises(BadInput, match=r"model\.layers"):
        run(other, 1, tmp_path / "run", resume="auto")
    with pytest.raises(BadInput, match=r"train\.seed"):
        run(settings("ddp", seed=1), 1, tmp_path / "run", resume="auto")
    with pytest.raises(BadInput, match="holds another run"):
        run(settings("ddp"), 1, tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path: Path) -> None:
    hot = settings("ddp").model_copy(
        update={"optim": build({"optim": {"name": "sgd", "learning_rate": 1e30, "clip": 0, "warmup_steps": 0}}).optim}
    )
    with pytest.raises(JaxdpError, match="learning_rate"):
        run(hot, 2, tmp_path / "run", save_every=1)
    for row in rows(tmp_path / "run"):
        assert row["loss"] is None or math.isfinite(row["loss"])
    saved = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved and saved[-1] < len(rows(tmp_path / "run"))


def test_skipping_keeps_the_state_finite(tmp_path: Path) -> None:
    hot = settings("ddp", on_nonfinite="skip").model_copy(
        update={"optim": build({"optim": {"name": "sgd", "learning_rate": 1e30, "clip": 0, "warmup_steps": 0}}).optim}
    )
    summary = run(hot, 2, tmp_path / "run")
    assert summary.step == STEPS


@pytest.mark.slow
def test_sigterm_saves_and_the_resumed_process_goes_on(tmp_path: Path) -> None:
    """A real process, stopped at a random moment after its first step."""
    folder = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "cli", "train", "--strategy", "ddp", "--devices", "2", "--run-dir", str(folder)),
        *("--set", "train.steps=100000", "--set", "data.corpus=synthetic", "--quiet"),
    ]
    process = subprocess.Popen(command, env={**os.environ, "JAX_NUM_CPU_DEVICES": "2"})
    deadline = time.monotonic() + 120
    while not rows(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(random.random())
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped"] and summary["checkpoint_step"] == summary["step"] == len(rows(folder))
