"""`jaxdp reproduce`: test the study's findings here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import FolderOptions, OutputOptions, plain_warnings, print_json, say
from cli.options import with_options


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    only: Annotated[
        list[str], typer.Option(metavar="F[,F...]", help="Test these only: F1 to F6, the paper's P1 to P4.")
    ] = field(default_factory=list)
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter measurements: under two minutes.")] = False
    devices: Annotated[
        int | None,
        typer.Option("--devices", "-n", min=1, max=4096, help="Devices at most (default: all; 8 on a CPU)."),
    ] = None


@with_options
def reproduce(own: ReproduceOptions, options: FolderOptions, output: OutputOptions) -> None:
    """Example: jaxdp reproduce --quick"""
    from jaxdp.job.stop import StopFlag
    from jaxdp.run.folder import fresh_run, open_run
    from sims.findings import campaign
    from sims.findings.lab import Lab

    trials = campaign.chosen(own.only)
    plain_warnings()
    folder = open_run(Path(options.run_dir), overwrite=options.overwrite) if options.run_dir else fresh_run("reproduce")
    with StopFlag(at_once=True), folder:
        tell = (lambda line: None) if output.quiet else say
        document = campaign.run(trials, Lab(folder, own.quick, own.devices, tell))
    if output.json:
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
