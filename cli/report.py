"""`jaxdp report`: what runs and sweeps found, as a page, Markdown, CSV and figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.common import OutputOptions, print_json, say
from cli.options import with_options


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of bench, train or sweep, or folders of these.")
    ]
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write (default: report/ in the first folder).")
    ] = None
    pool: Annotated[
        bool, typer.Option("--pool", help="Take two folders' runs of a cell as repeats, instead of comparing them.")
    ] = False


@with_options
def report(own: ReportOptions, output: OutputOptions) -> None:
    """Example: jaxdp report runs/sweep-scaling"""
    from jaxdp.report.analysis.write import study, write

    result = study(own.runs, own.pool)
    files = write(result, own.out or own.runs[0] / "report")
    if output.json:
        print_json({**result.to_json(), "files": [str(path) for path in files]})
        return
    if not output.quiet:
        from jaxdp.report.analysis.terminal import print_study

        print_study(result)
    say(f"page: {files[0]}")
