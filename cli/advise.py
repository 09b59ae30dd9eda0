"""`jaxdp advise`: which strategy to take on a cluster you may not have."""

from pathlib import Path
from typing import Annotated

import typer

from cli.common import (
    ConfigOption,
    DebugOption,
    JsonOption,
    PrintConfigOption,
    QuietOption,
    SetOption,
    load_configs,
    print_config,
    print_json,
    say,
)


def advise(
    hardware: Annotated[
        str, typer.Option("--hardware", metavar="PRESET|FILE", help="Such as h100x8, or a hardware.toml (jaxdp probe).")
    ],
    config: ConfigOption = None,
    set_: SetOption = None,
    hosts: Annotated[int | None, typer.Option("--hosts", min=1, metavar="M", help="Hosts of that kind.")] = None,
    nic_gbps: Annotated[
        float | None, typer.Option("--nic-gbps", metavar="G", help="Gigabits/s of network per device (not per host).")
    ] = None,
    unevenness: Annotated[
        str | None,
        typer.Option("--unevenness", metavar="SPEC", help='How workers differ: "persistent(factor=4,worker=0)".'),
    ] = None,
    stack: Annotated[
        str, typer.Option("--stack", help="Who trains: jaxdp, or for comparison torch-fsdp, nanotron, megatron, maxtext.")
    ] = "jaxdp",
    explain: Annotated[
        bool, typer.Option("--explain", help="Where the two best strategies differ, in seconds, and a remedy.")
    ] = False,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE.svg", help="Draw the prediction (and a CSV).")
    ] = None,
    print_config_: PrintConfigOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict every strategy's memory and step time on a cluster, and recommend one.

    Example: jaxdp advise --config gpt2-xl --hardware h100x8 --hosts 4 --nic-gbps 100
    """
    configs = load_configs(config, set_, None, {})
    if print_config_:
        print_config(configs)
        return
    from jaxdp.predict.advise import advise as plan
    from jaxdp.predict.hardware import load_hardware

    machine = load_hardware(hardware, hosts, nic_gbps, stack)
    delays = None
    if spec := unevenness or configs[0].stragglers:
        from jaxdp.stragglers.delays import parse

        delays = parse(spec, configs[0].train.seed, "--unevenness")
    origin = [word for flag, values in (("--config", config), ("--set", set_)) for v in values or () for word in (flag, v)]
    found = plan(configs[0], machine, delays, origin, explain=explain)
    if json_:
        print_json(found.to_json())
    else:
        from jaxdp.report.advice import print_advice

        print_advice(found, brief=quiet)
    if figure is not None:
        from jaxdp.report.advice import save_figure

        say(f"figure: {', '.join(map(str, save_figure(found, figure)))}")
