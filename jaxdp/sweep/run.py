"""Running a sweep: every cell a process of its own, every outcome a row; killed at any moment it goes on where it was.

The folder holds `sweep.json` (the file as it was read), `table.jsonl` (a `records.SweepRow` a line), and for each
row its run's folder in `runs/` and what its process said in `logs/`. No JAX here.
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired
from types import FrameType
from typing import NoReturn

from jaxdp.errors import BadInput
from jaxdp.job import child
from jaxdp.records import SweepRow
from jaxdp.run.folder import RunFolder, open_run, remove
from jaxdp.strict_json import keep_lines, read_lines
from jaxdp.sweep.outcome import Outcome, kernel_oom_kills, outcome
from jaxdp.sweep.points import Run, SweepPoint, in_order
from jaxdp.sweep.spec import SweepSpec

TABLE = "table.jsonl"
DOCUMENT = "sweep.json"

# Told each run when it starts (None), and its row when it is done.
Observer = Callable[[Run, SweepRow | None], None]


def open_sweep(path: Path, spec: SweepSpec, cells: Sequence[SweepPoint], *, overwrite: bool, retry: bool) -> RunFolder:
    """The claimed folder of a sweep, new or continued; the table keeps the rows that need not be run again.

    These are all but, with `retry`, the failed ones, and those refused before whose cells now pass. A folder with
    results of cells that the file no longer has is refused: they would be lost or left over.
    """
    launcher = cells[0].launcher[:1]
    if launcher and launcher != ("jaxdp",) and shutil.which(launcher[0]) is None:
        raise BadInput(f"launch.command: {launcher[0]}: no such program here; load its module, or correct the command")
    folder = open_run(path, resume=not overwrite, overwrite=overwrite)
    try:
        if not folder.file(DOCUMENT).is_file() and folder.file("run.json").is_file():
            raise BadInput(f"--run-dir {path}: holds a run that is no sweep; --overwrite it, or choose another")
        _keep_valid_rows(folder, spec, cells, retry)
        folder.write_json(DOCUMENT, spec.model_dump())
    except BaseException:
        folder.release()
        raise
    return folder


def _keep_valid_rows(folder: RunFolder, spec: SweepSpec, cells: Sequence[SweepPoint], retry: bool) -> None:
    table = folder.file(TABLE)
    runs = {run.key: run for run in in_order(cells, spec.repeats)}
    rows = read_rows(table)
    if gone := [row for row in rows if row.key not in runs and row.result]:
        raise BadInput(
            f"--run-dir {folder.path}: its table has {len(gone)} results of cells that the sweep no longer has, such "
            f"as {gone[0].cell}; give the file as it was, another --run-dir, or --overwrite"
        )

    def stays(row: SweepRow) -> bool:
        if row.key not in runs or (retry and row.status != "ok"):
            return False
        return row.run_dir is not None or runs[row.key].cell.refusal is not None

    keep = {row.key for row in rows if stays(row)}
    if len(keep) < len(rows):
        keep_lines(table, lambda row: row["key"] in keep)


def read_rows(table: Path) -> list[SweepRow]:
    """A table's rows, none before its first; raises `BadInput` for a file that is no table of this version."""
    try:
        return [SweepRow.from_json(row) for row in read_lines(table)] if table.exists() else []
    except ValueError as error:
        raise BadInput(f"{table}: {error}; choose another --run-dir, or --overwrite") from None


def run_sweep(
    spec: SweepSpec, cells: Sequence[SweepPoint], folder: RunFolder, program: Sequence[str], observe: Observer
) -> list[SweepRow]:
    """Runs what the table lacks, refused cells first, which take no process; returns the whole table in order.

    `program` is how `jaxdp` is called. A signal ends the process at hand; the table then simply lacks its row.
    """
    runs = in_order(cells, spec.repeats)
    with folder.lines(TABLE) as lines, sigterm_as_exit():
        done = {row.key for row in read_rows(folder.file(TABLE))}
        for run in sorted((run for run in runs if run.key not in done), key=lambda run: run.cell.refusal is None):
            observe(run, None)
            row = _refused(spec, run) if run.cell.refusal else _measure(spec, run, folder, program)
            lines.append(row.to_json())
            observe(run, row)
    rows = {row.key: row for row in read_rows(folder.file(TABLE))}
    return [rows[run.key] for run in runs]


def _refused(spec: SweepSpec, run: Run) -> SweepRow:
    return _row(spec, run, Outcome("refused", run.cell.refusal))


def _measure(spec: SweepSpec, run: Run, folder: RunFolder, program: Sequence[str]) -> SweepRow:
    """Runs the cell in a new process and a new run folder, whatever a killed sweep left there."""
    run_dir, log = folder.file(f"runs/{run.name}"), folder.file(f"logs/{run.name}.txt")
    remove(run_dir)
    log.parent.mkdir(exist_ok=True)
    command = [*run.cell.command(program), "--overwrite", "--run-dir", str(run_dir)]
    kills, started_at, start_s = kernel_oom_kills(), _utc_now(), time.monotonic()
    with log.open("wb") as said, tempfile.TemporaryFile() as printed:
        try:
            with child.started(command, stdout=printed, stderr=said) as process:
                code = process.wait(spec.timeout_s)
        except TimeoutExpired:
            found = Outcome("timeout", f"not done after {spec.timeout_s:g} s (timeout_s)")
        else:
            # A launcher's processes may have run elsewhere.
            new_kills = None if kills is None or run.cell.launcher else (kernel_oom_kills() or kills) - kills
            printed.seek(0)
            found = outcome(code, printed.read(), _tail(log), new_kills)
    seconds = time.monotonic() - start_s
    return _row(spec, run, found, started_at, seconds, f"runs/{run.name}")


def _row(
    spec: SweepSpec,
    run: Run,
    found: Outcome,
    started_at: str | None = None,
    seconds: float | None = None,
    run_dir: str | None = None,
) -> SweepRow:
    return SweepRow(
        key=run.key,
        cell=run.cell.values,
        repeat=run.repeat,
        scaling=spec.scaling,
        global_batch=run.cell.config.train.global_batch,
        status=found.status,
        reason=found.reason,
        started_at=started_at,
        seconds=seconds,
        result=found.result,
        predicted=run.cell.predicted,
        findings=list(run.cell.findings),
        run_dir=run_dir,
    )


def remaining_s(rows: Sequence[SweepRow], left: Sequence[Run]) -> float | None:
    """What the runs that are left will take, each as long as its cell took before, or else as all did on average."""
    took = {row.key.partition(".")[0]: row.seconds for row in rows if row.seconds is not None}
    if not took:
        return None
    average = sum(took.values()) / len(took)
    return sum(took.get(run.cell.hash, average) for run in left if run.cell.refusal is None)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """SIGTERM ends the program as Ctrl-C does, by an exception, so that what it started is ended too."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tail(log: Path, most: int = 2**16) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most))
        return file.read().decode(errors="replace")


def _utc_now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
