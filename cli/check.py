"""`jaxdp check`: what will go wrong, before the run."""

from pathlib import Path
from typing import Annotated

import typer

from cli.common import (
    AllowOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    PrintConfigOption,
    QuietOption,
    SetOption,
    TaskOption,
    load_configs,
    print_config,
    print_json,
    say,
    strategies_help,
)
from cli.process_options import CoordinatorOption, JoinTimeoutOption, ProcessesOption, ProcessIdOption
from jaxdp.errors import BadInput, Refused
from jaxdp.job.processes import gather, host_name
from jaxdp.job.scheduler import find_job
from jaxdp.job.stop import StopFlag

WITHOUT_A_CHOICE = 4  # what a run on a CPU would take


def check(
    strategy: Annotated[
        str | None, typer.Option("--strategy", metavar="S[,S...]", help=strategies_help("or all."))
    ] = None,
    config: ConfigOption = None,
    task: TaskOption = None,
    set_: SetOption = None,
    devices: Annotated[
        str | None, typer.Option("--devices", "-n", metavar="N|A:B", help="Devices, or a range to sweep (default 4).")
    ] = None,
    hosts: Annotated[int, typer.Option("--hosts", min=1, help="Hosts that the devices are spread over.")] = 1,
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="PRESET|FILE", help="Whose memory to check against.")
    ] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the step too, and hold its collectives against the plan.")
    ] = False,
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology", metavar="NAME", help="Compile for devices that aren't here: v5e:2x4, or --hosts of h100x8."
        ),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE.svg", help="Draw where boundaries fall (and a CSV).")
    ] = None,
    coordinator: CoordinatorOption = None,
    processes: ProcessesOption = None,
    process_id: ProcessIdOption = None,
    join_timeout: JoinTimeoutOption = 300.0,
    allow: AllowOption = None,
    print_config_: PrintConfigOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Check shards, batch, memory and boundaries of a config without training.

    Example: jaxdp check --config nano --strategy fsdp_flat --devices 1:8
    """
    with StopFlag(at_once=True), find_job(coordinator, processes, process_id, join_timeout) as job:
        configs = load_configs(config, set_, strategy, {"task": task})
        if print_config_:
            if job.first:
                print_config(configs)
            return
        from jaxdp.predict.preflight import check_allowed, preflight
        from jaxdp.report.check import document, print_check, print_sweep, save_boundaries

        allowed = check_allowed(allow or ())
        if figure is not None and configs[0].task:
            raise BadInput("--figure: draws the blocks of the built-in transformer; leave it out with a task")
        counts = _counts(devices)
        if topology is not None or compile_:
            from jaxdp.predict.compiled import compiled_check

            if len(counts) > 1:
                raise BadInput(f"--devices {devices}: --compile takes one number of devices")
            job.join()
        host_names = gather(host_name())
        hosts = hosts if hosts > 1 else len(set(host_names))
        memory, platform = _memory_and_platform(hardware)
        chosen = configs[0]
        found = []
        for each in configs:
            for count in counts:
                report = preflight(each, count, hosts, memory, platform=platform)
                compiles = report.runs and document(report, each.strategy.name, allowed)["ok"]
                if compiles and (topology is not None or compile_):
                    report = compiled_check(each, report, hosts, topology, memory, host_names=host_names)
                found.append((each, report))
        if not job.first:
            pass
        elif json_:
            documents = [document(report, each.strategy.name, allowed) for each, report in found]
            print_json(documents if len(documents) > 1 else documents[0])
        elif not quiet:
            for each in configs:
                reports = [report for owner, report in found if owner is each]
                if len(reports) > 1:
                    print_sweep(reports, each.strategy.name, each.model, each.strategy.row.flat)
                else:
                    print_check(reports[0], each.strategy.name, allowed)
        if figure is not None and job.first:
            reports = [report for owner, report in found if owner is chosen]
            drawn = save_boundaries(reports, chosen.model, chosen.strategy.row.flat, figure)
            say(f"figure: {', '.join(map(str, drawn))}")
        refused = [
            f"{each.strategy.name} on {report.devices} devices"
            for each, report in found
            if not document(report, each.strategy.name, allowed)["ok"]
        ]
        if refused:
            raise Refused(f"not safe: {', '.join(refused)}; see the findings, or pass --allow NAME")


def _counts(text: str | None) -> list[int]:
    if text is None:
        return [WITHOUT_A_CHOICE]
    first, colon, last = text.partition(":")
    if not (first.isdecimal() and (last.isdecimal() or not colon)):
        raise BadInput(f"--devices {text}: expected a number or a range such as 1:16")
    low, high = int(first), int(last) if colon else int(first)
    if not 1 <= low <= high or high - low >= 4096:
        raise BadInput(f"--devices {text}: expected 1 or more, a range from low to high of at most 4096 counts")
    return list(range(low, high + 1))


def _memory_and_platform(hardware: str | None) -> tuple[int | None, str | None]:
    if hardware is None:
        return None, None
    from jaxdp.predict.hardware import load_hardware

    machine = load_hardware(hardware)
    return machine.memory_bytes, machine.groups[0].platform
