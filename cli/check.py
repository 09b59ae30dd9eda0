"""`jaxdp check`: what will go wrong, before the run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import AllowOption, ConfigOptions, JobOptions, OutputOptions, print_config, print_json, say
from cli.options import Keys, with_options
from jaxdp.config import Config
from jaxdp.errors import BadInput, Refused
from jaxdp.job.stop import StopFlag

if TYPE_CHECKING:
    from jaxdp.predict.preflight import Report

WITHOUT_A_CHOICE = 4  # what a run on a CPU would take


def _counts(text: str) -> range:
    """The numbers of devices of `N` or `A:B`."""
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and (last.isdecimal() or not colon)):
        raise BadInput(f"--devices {text}: expected a number or a range such as 1:16")
    low, high = int(first), int(last) if colon else int(first)
    if not 1 <= low <= high or high - low >= 4096:
        raise BadInput(f"--devices {text}: expected 1 or more, a range from low to high of at most 4096 counts")
    return range(low, high + 1)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    devices: Annotated[
        Any,
        typer.Option(
            "--devices", "-n", metavar="N|A:B", parser=_counts, help="Devices, or a range to sweep (default 4)."
        ),
    ] = None
    hosts: Annotated[int | None, typer.Option(min=1, help="Hosts that the devices are spread over (default 1).")] = None
    hardware: Annotated[str | None, typer.Option(metavar="PRESET|FILE", help="Whose memory to check against.")] = None
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the step too, and hold its collectives against the plan.")
    ] = False
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Compile for devices that aren't here: v5e:2x4, or --hosts of h100x8."),
    ] = None
    allow: AllowOption = field(default_factory=list)
    figure: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw where boundaries fall (and a CSV).")] = (
        None
    )


CONFIG_KEYS = Keys(Config, "strategy.name", "task", metavars={"strategy.name": "S[,S...]|all"})


@with_options
def check(
    keys: Annotated[Mapping[str, Any], CONFIG_KEYS],
    source: ConfigOptions,
    own: CheckOptions,
    job_options: JobOptions,
    output: OutputOptions,
) -> None:
    """Example: jaxdp check --config nano --strategy fsdp_flat --devices 1:8"""
    with StopFlag(at_once=True), job_options.find() as job:
        configs = source.load(keys)
        if source.print_config:
            if job.first:
                print_config(configs)
            return
        counts = own.devices or range(WITHOUT_A_CHOICE, WITHOUT_A_CHOICE + 1)
        if len(counts) > 1 and (own.compile or own.topology):
            raise BadInput(f"--devices {counts[0]}:{counts[-1]}: --compile takes one number of devices")
        if own.figure and configs[0].task:
            raise BadInput("--figure: draws the blocks of the built-in transformer; leave it out with a task")
        from jaxdp.api import check as examine

        options = {key: value for key, value in vars(own).items() if key not in ("devices", "figure")}
        reports = [[examine(config, count, job=job, **options) for count in counts] for config in configs]
        if job.first:
            _show(configs, reports, output)
            if own.figure:
                from jaxdp.report.check import save_boundaries

                say(f"figure: {', '.join(map(str, save_boundaries(reports[0], configs[0], own.figure)))}")
        refused = [
            f"{report.strategy} on {report.devices} devices" for row in reports for report in row if not report.ok
        ]
        if refused:
            raise Refused(f"not safe: {', '.join(refused)}; see the findings, or pass --allow NAME")


def _show(configs: list[Config], reports: "list[list[Report]]", output: OutputOptions) -> None:
    if output.json:
        documents = [report.to_json() for row in reports for report in row]
        print_json(documents if len(documents) > 1 else documents[0])
    elif not output.quiet:
        from jaxdp.report.check import print_check, print_sweep

        for config, row in zip(configs, reports, strict=True):
            if len(row) > 1:
                print_sweep(row, config)
            else:
                print_check(row[0])
