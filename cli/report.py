"""`jaxdp report`: what runs and sweeps found, as a page, Markdown, CSV and figures."""

from pathlib import Path
from typing import Annotated

import typer

from cli.common import DebugOption, JsonOption, QuietOption, print_json, say


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of bench, train or sweep, or folders of these.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where to write (default: report/ in the first folder).")
    ] = None,
    pool: Annotated[
        bool, typer.Option("--pool", help="Take two folders' runs of a cell as repeats, instead of comparing them.")
    ] = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Turn runs into scaling curves, tables and a page; two folders with the same cells are compared.

    Example: jaxdp report runs/sweep-scaling
    """
    from jaxdp.report.analysis.write import study, write

    found = study(runs, pool)
    files = write(found, out or runs[0] / "report")
    if json_:
        print_json({**found.to_json(), "files": [str(path) for path in files]})
        return
    if not quiet:
        from jaxdp.report.analysis.terminal import print_study

        print_study(found)
    say(f"page: {files[0]}")
