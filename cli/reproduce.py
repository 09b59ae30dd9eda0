"""`jaxdp reproduce`: test the study's findings here."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import (
    DebugOption,
    JsonOption,
    OverwriteOption,
    QuietOption,
    RunDirOption,
    plain_warnings,
    print_json,
    say,
)


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="F[,F...]", help="Test these only: F1 to F6, the paper's P1 to P4."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter measurements: under two minutes.")] = False,
    devices: Annotated[
        int | None,
        typer.Option("--devices", "-n", min=1, max=4096, help="Devices at most (default: all; 8 on a CPU)."),
    ] = None,
    run_dir: RunDirOption = None,
    overwrite: OverwriteOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Test the study's findings F1 to F6 on this machine and by prediction: a verdict, values and a figure each.

    Example: jaxdp reproduce --quick
    """
    from jaxdp.job.stop import StopFlag
    from jaxdp.run.folder import fresh_run, open_run
    from sims.findings import campaign
    from sims.findings.lab import Lab

    trials = campaign.chosen(only or ())
    plain_warnings()
    folder = open_run(Path(run_dir), overwrite=overwrite) if run_dir else fresh_run("reproduce")
    with StopFlag(at_once=True), folder:
        document = campaign.run(trials, Lab(folder, quick, devices, (lambda line: None) if quiet else say))
    if json_:
        print_json(document)
    else:
        _print(document)


def _print(document: dict[str, Any]) -> None:
    """A verdict and what it rests on, one finding after the other."""
    for finding in (*document["findings"], *document["claims"]):
        typer.echo(f"{finding['finding']} {finding['verdict']}: {finding['claim']}")
        typer.echo(f"   found: {finding['reason']}")
        typer.echo(f"   tested: {finding['condition']}")
    typer.echo(f"records: {document['run_dir']}; page: {document['page']}")
