"""A sweep runs on whatever its cells do, and whenever it is killed its table ends as if it had not been.

Most tests start `tests/fake_bench.py` in place of `jaxdp bench`; what it does is told by the axis `train.seed`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxdp.errors import BadInput
from jaxdp.job import child
from jaxdp.records import SweepRow
from jaxdp.run.folder import open_run
from jaxdp.sweep.points import Run, make_cells
from jaxdp.sweep.run import open_sweep, read_rows, run_sweep
from jaxdp.sweep.spec import load_spec

ROOT = Path(__file__).parents[1]
FAKE = (sys.executable, "-I", "-S", str(ROOT / "tests" / "fake_bench.py"))
DEADLINE_S = 60.0

HEAD = 'name = "t"\nstrategies = ["ddp"]\nscaling = "weak"\ntimeout_s = 60\n'

# `jaxdp sweep` with the fake, as a user starts it.
SWEEP = f"""
import sys
import cli.sweep
from cli.main import main
cli.sweep.PROGRAM = {FAKE!r}
main()
"""


def write(folder: Path, axes: str, devices: str = "[1]", more: str = "") -> str:
    path = folder / "sweep.toml"
    path.write_text(f"{HEAD}devices = {devices}\n{more}\n[axes]\n{axes}\n")
    return str(path)


def run(source: str, path: Path, *, overwrite: bool = False, retry: bool = False) -> tuple[list[SweepRow], list[str]]:
    """The table, and the keys of the runs that were started now."""
    started: list[str] = []

    def observe(run: Run, row: SweepRow | None) -> None:
        if row is None and run.cell.refusal is None:
            started.append(run.key)

    spec = load_spec(source)
    cells = make_cells(spec)
    with open_sweep(path, spec, cells, overwrite=overwrite, retry=retry) as folder:
        return run_sweep(spec, cells, folder, FAKE, observe), started


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(path: Path) -> list[int]:
    """Of all processes that the fakes have told of."""
    return [int(pid) for file in path.glob("runs/*/pids") for pid in file.read_text().split()]


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def unmeasured(rows: Sequence[SweepRow]) -> list[dict[str, Any]]:
    """The rows without what differs from one measurement to the next."""
    kept = []
    for row in rows:
        values = row.to_json() | {"started_at": None, "seconds": None}
        kept.append(values | {"result": row.result and [row.result["strategy"], row.result["devices"], *row.result]})
    return kept


def test_every_kind_of_end_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0, 1, 2, 4, 5, 6, 8, 9]")
    rows, started = run(source, tmp_path / "run")
    assert [row.cell["train.seed"] for row in rows] == [0, 1, 2, 4, 5, 6, 8, 9]
    # The fourth kills itself, which the kernel, where it says so, did not do.
    assert [row.status for row in rows if row.cell["train.seed"] != 4] == [
        *("ok", "oom", "error", "refused", "error", "error", "ok")
    ]
    assert rows[3].status in ("oom", "error")
    assert rows[2].reason == "step 2 of ddp: the loss is nan"
    assert len(started) == 8
    for row in rows:
        assert row.run_dir and (tmp_path / "run" / row.run_dir / "pids").is_file()
        assert row.seconds is not None and row.seconds > 0 and row.started_at
        assert (row.result is None) == (row.status != "ok") == (row.reason is not None)
    log = next((tmp_path / "run" / "logs").glob(f"*{rows[2].key}.txt"))
    assert log.read_text().splitlines()[0] == "step 1 done"
    assert rows == read_rows(tmp_path / "run" / "table.jsonl")


def test_a_cell_that_hangs_is_ended_and_the_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    source = write(tmp_path, "train.seed = [33]", more="repeats = 2")  # deaf to SIGTERM
    Path(source).write_text(Path(source).read_text().replace("timeout_s = 60", "timeout_s = 1"))
    rows, _ = run(source, tmp_path / "run")
    assert [(row.status, row.reason) for row in rows] == [("timeout", "not done after 1 s (timeout_s)")] * 2
    until(lambda: all(gone(pid) for pid in pids(tmp_path / "run")))


def test_what_a_cell_leaves_running_is_ended(tmp_path: Path) -> None:
    rows, _ = run(write(tmp_path, "train.seed = [7]"), tmp_path / "run")
    assert rows[0].status == "ok"
    left = pids(tmp_path / "run")
    assert len(left) == 2
    until(lambda: all(gone(pid) for pid in left))


def test_refused_cells_are_recorded_first_and_start_no_process(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0]", devices="[2, 3]", more="repeats = 2\nset.strategy.unit = 'flat'")
    Path(source).write_text(Path(source).read_text().replace("ddp", "fsdp"))
    rows, started = run(source, tmp_path / "run")
    assert [(row.cell["devices"], row.repeat, row.status) for row in rows] == [
        *((2, 0, "ok"), (3, 0, "refused"), (3, 1, "refused"), (2, 1, "ok"))
    ]
    assert len(started) == 2
    assert [row.status for row in read_rows(tmp_path / "run" / "table.jsonl")] == ["refused"] * 2 + ["ok"] * 2
    refused = rows[1]
    assert refused.run_dir is None and refused.seconds is None and "block_split" in str(refused.reason)
    assert "block_split" in [finding["name"] for finding in refused.findings]
    # Once the check lets them pass, they are run, and only they.
    Path(source).write_text(f'allow = ["block_split"]\n{Path(source).read_text()}')
    rows, started = run(source, tmp_path / "run")
    assert len(started) == 2 and {row.status for row in rows} == {"ok"}


def test_retry_runs_failed_cells_again_and_others_never(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0, 2]")
    first, started = run(source, tmp_path / "run")
    assert len(started) == 2
    assert run(source, tmp_path / "run") == (first, [])
    again, started = run(source, tmp_path / "run", retry=True)
    assert started == [first[1].key]
    assert again[0] == first[0] and unmeasured(again) == unmeasured(first)
    assert len(run(source, tmp_path / "run", overwrite=True)[1]) == 2


def test_a_torn_line_is_cut_off_and_only_missing_rows_run_again(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0, 2, 9]")
    path = tmp_path / "run"
    before, _ = run(source, path)
    table = path / "table.jsonl"
    lines = table.read_bytes().splitlines(keepends=True)
    table.write_bytes(lines[0] + lines[1][:-20])
    after, started = run(source, path)
    assert started == [before[1].key, before[2].key]
    assert after[0] == before[0] and unmeasured(after) == unmeasured(before)
    assert len(table.read_bytes().splitlines()) == 3


def test_a_sweep_may_grow_but_results_are_never_orphaned(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(write(tmp_path, "train.seed = [0, 2]"), path)
    rows, started = run(write(tmp_path, "train.seed = [0, 2, 9]", more="repeats = 2"), path)
    assert len(rows) == 6 and len(started) == 4
    with pytest.raises(BadInput, match=r"2 results of cells .*'train.seed': 9.*--overwrite"):
        run(write(tmp_path, "train.seed = [0, 2]", more="repeats = 2"), path)
    # A failed row of a cell that is no more says nothing.
    rows, started = run(write(tmp_path, "train.seed = [0, 9]", more="repeats = 2"), path)
    assert len(rows) == len(read_rows(path / "table.jsonl")) == 4 and not started


def test_only_a_sweeps_folder_is_continued(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0]")
    with open_run(tmp_path / "bench") as folder:
        folder.write_json("run.json", {})
    with pytest.raises(BadInput, match="no sweep"):
        run(source, tmp_path / "bench")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        run(source, tmp_path / "mine", overwrite=True)
    spec = load_spec(source)
    with (
        open_sweep(tmp_path / "held", spec, make_cells(spec), overwrite=False, retry=False),
        pytest.raises(BadInput, match="another process"),
    ):
        run(source, tmp_path / "held")
    (tmp_path / "held" / "table.jsonl").write_text('{"key": "a.0"}\n')
    with pytest.raises(BadInput, match=r"table\.jsonl: not a row of a sweep"):
        run(source, tmp_path / "held")


def test_a_launcher_that_is_not_here_is_told_before_any_cell(tmp_path: Path) -> None:
    source = write(tmp_path, "train.seed = [0]", more='launch.command = "no-such-launcher -n {processes}"')
    with pytest.raises(BadInput, match="no-such-launcher"):
        run(source, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def start(*arguments: str, code: str = SWEEP) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_command_line_tells_prints_and_fails(tmp_path: Path) -> None:
    source, path = write(tmp_path, "train.seed = [0, 1, 2]"), tmp_path / "run"
    listed = start(source, "--dry-run", "--run-dir", str(path))
    out, _ = listed.communicate()
    assert listed.returncode == 0 and not path.exists()
    assert "jaxdp bench --config nano --strategy ddp --devices 1" in out and "train.seed=1" in out
    done = start(source, "--json", "--run-dir", str(path))
    out, said = done.communicate()
    assert done.returncode == 1
    assert [row["status"] for row in json.loads(out)["rows"]] == ["ok", "oom", "error"]
    assert "1/3 train.seed=0 devices=1 strategy=ddp: 1 tokens/s" in said and "left" in said
    assert said.splitlines()[-1].startswith("error: 1 of 3 runs failed; see ")
    told = start(write(tmp_path, "train.seed = [0, 1]"), "--quiet", "--run-dir", str(tmp_path / "other"))
    out, said = told.communicate()
    assert told.returncode == 0 and "oom: train.seed=1" in out
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_however_a_sweep_ends_its_cell_ends_and_the_table_is_good(tmp_path: Path, number: int, code: int) -> None:
    source, path = write(tmp_path, "train.seed = [0, 3, 9]"), tmp_path / "run"
    sweep = start(source, "--run-dir", str(path))
    until(lambda: len(pids(path)) == 3)  # the first cell's, and the hanging one's with its own child
    os.killpg(sweep.pid, number)
    _, said = sweep.communicate()
    assert sweep.returncode == code
    assert ("stopped with 1 of 3 runs" in said) == (number != signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in pids(path)))
    (done,) = read_rows(path / "table.jsonl")
    # Continued with a file whose hanging cell only differs in that it does not hang: it and the last one run.
    rows, started = run(write(tmp_path, "train.seed = [0, 9]"), path)
    assert rows[0] == done and len(started) == 1


SLOW = """
name = "killed"
strategies = ["ddp", "fsdp"]
devices = [1, 2, 3]
scaling = "strong"
steps = 4
warmup = 1
[set]
model.layers = 2
model.width = 32
model.ffn = 64
"""


@pytest.mark.slow
def test_killed_five_times_at_random_the_table_is_that_of_a_sweep_never_killed(tmp_path: Path) -> None:
    source, path = tmp_path / "sweep.toml", tmp_path / "killed"
    source.write_text(SLOW)
    code = "from cli.main import main; main()"
    whole = start(str(source), "--quiet", "--run-dir", str(tmp_path / "whole"), code=code)
    assert whole.communicate() and whole.returncode == 0
    draws = random.Random(0)
    seconds = sum(row.seconds or 0 for row in read_rows(tmp_path / "whole" / "table.jsonl"))
    killed = 0
    for _ in range(5):
        sweep = start(str(source), "--quiet", "--run-dir", str(path), code=code)
        time.sleep(draws.uniform(0.1, 0.3 * seconds))
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.communicate()
        killed += sweep.returncode == -signal.SIGKILL
        until(lambda: not [each for each in psutil.process_iter(["cmdline"]) if str(path) in str(each.info["cmdline"])])
    assert killed > 1
    last = start(str(source), "--quiet", "--run-dir", str(path), code=code)
    assert last.communicate() and last.returncode == 0
    expected, found = (read_rows(folder / "table.jsonl") for folder in (tmp_path / "whole", path))
    assert unmeasured(found) == unmeasured(expected)
    assert [row.status for row in found] == ["refused"] * 2 + ["ok"] * 4
    for row in found:
        if row.run_dir:
            assert json.loads((path / row.run_dir / "summary.json").read_text()) == row.result
