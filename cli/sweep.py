"""`jaxdp sweep`: every cell of a grid, each in a process of its own, into one table."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common import FolderOptions, OutputOptions, print_json, say
from cli.options import with_options
from jaxdp.errors import JaxdpError

if TYPE_CHECKING:
    from jaxdp.records import SweepRow
    from jaxdp.sweep.points import Run, SweepPoint
    from jaxdp.sweep.spec import SweepSpec

PROGRAM = (sys.executable, "-P", "-m", "cli")  # this installation, whatever the PATH and the folder


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    file: Annotated[str, typer.Argument(metavar="FILE_OR_NAME", help="The sweep's TOML, or quick, boundaries, study.")]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cells and their commands; run nothing.")] = False
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False


@with_options
def sweep(own: SweepOptions, options: FolderOptions, output: OutputOptions) -> None:
    """Example: jaxdp sweep quick"""
    from jaxdp.sweep.points import make_cells
    from jaxdp.sweep.spec import load_spec

    spec = load_spec(own.file)
    cells = make_cells(spec)
    if own.dry_run:
        _list(spec, cells, output.json)
        return
    path = Path(options.run_dir or f"runs/sweep-{spec.name}")
    rows = _run(spec, cells, path, overwrite=options.overwrite, retry=own.retry, quiet=output.quiet)
    if output.json:
        print_json({"name": spec.name, "run_dir": str(path.absolute()), "rows": [row.to_json() for row in rows]})
    else:
        from jaxdp.report.sweep import print_rows

        print_rows(spec.name, rows)
        say(f"table: {path / 'table.jsonl'}")
    failed = sum(row.status == "error" for row in rows)
    if failed:
        raise JaxdpError(f"{failed} of {len(rows)} runs failed; see {path / 'logs'}, --retry repeats them")


def _run(
    spec: "SweepSpec", cells: "list[SweepPoint]", path: Path, *, overwrite: bool, retry: bool, quiet: bool
) -> "list[SweepRow]":
    from cli.progress import CellProgress
    from jaxdp.sweep.points import in_order
    from jaxdp.sweep.run import open_sweep, read_rows, remaining_s, run_sweep

    left = {run.key: run for run in in_order(cells, spec.repeats)}
    total = len(left)
    with (
        open_sweep(path, spec, cells, overwrite=overwrite, retry=retry) as folder,
        CellProgress(total, shown=not quiet) as progress,
    ):
        rows = read_rows(folder.path / "table.jsonl")
        for row in rows:
            del left[row.key]
        if rows:
            progress.say(f"{len(rows)} of {total} runs are in {path} already")
            progress.update(len(rows), "")

        def observe(run: "Run", row: "SweepRow | None") -> None:
            if row is not None:
                rows.append(row)
                del left[run.key]
            remaining = _remaining_text(remaining_s(rows, list(left.values())))
            done = total - len(left)
            progress.update(done, f"{remaining}  {run.cell}")
            if row is not None:
                progress.say(f"{done}/{total} {run.cell}: {_outcome_text(row)}{f'; {remaining}' if left else ''}")

        try:
            return run_sweep(spec, cells, folder, PROGRAM, observe)
        except (KeyboardInterrupt, SystemExit):
            progress.say(f"stopped with {len(rows)} of {total} runs in {path}; the same command runs the rest")
            raise


def _list(spec: "SweepSpec", cells: "list[SweepPoint]", json: bool) -> None:
    entries = [
        {
            "cell": cell.values,
            "global_batch": cell.config.train.global_batch,
            "command": shlex.join(cell.command(("jaxdp",))),
            "refusal": cell.refusal,
            "findings": list(cell.findings),
            "predicted": cell.predicted,
        }
        for cell in cells
    ]
    if json:
        print_json({"name": spec.name, "scaling": spec.scaling, "repeats": spec.repeats, "cells": entries})
        return
    from jaxdp.report.sweep import print_plan

    print_plan(spec.name, spec.scaling, spec.repeats, entries)


def _outcome_text(row: "SweepRow") -> str:
    if row.result is None:
        return f"{row.status}: {row.reason}"
    return f"{row.result['tokens_per_second']:,.0f} {row.result.get('unit', 'tokens')}/s ({row.seconds:.0f} s)"


def _remaining_text(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown yet"
    return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} min left"
