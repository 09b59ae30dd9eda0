"""`jaxdp advise`: which strategy to take on a cluster you may not have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import ConfigOptions, OutputOptions, print_config, print_json, say
from cli.options import Keys, with_options
from jaxdp.config import Config


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    hardware: Annotated[
        str, typer.Option(metavar="PRESET|FILE", help="Such as h100x8, or a hardware.toml (jaxdp probe).")
    ]
    hosts: Annotated[int | None, typer.Option(min=1, metavar="M", help="Hosts of that kind.")] = None
    nic_gbps: Annotated[
        float | None, typer.Option(metavar="G", help="Gigabits/s of network per device (not per host).")
    ] = None
    figure: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw the prediction (and a CSV).")] = None


@with_options
def advise(
    own: AdviseOptions,
    keys: Annotated[Mapping[str, Any], Keys(Config, "stragglers")],
    source: ConfigOptions,
    output: OutputOptions,
) -> None:
    """Example: jaxdp advise --config gpt2-xl --hardware h100x8 --hosts 4 --nic-gbps 100"""
    configs = source.load(keys)
    if source.print_config:
        print_config(configs)
        return
    from jaxdp.api import advise as predict

    advice = predict(configs[0], own.hardware, hosts=own.hosts, nic_gbps=own.nic_gbps)
    if output.json:
        print_json(advice.to_json())
    else:
        from jaxdp.report.advice import print_advice

        print_advice(advice, brief=output.quiet)
    if own.figure is not None:
        from jaxdp.report.advice import save_figure

        say(f"figure: {', '.join(map(str, save_figure(advice, own.figure)))}")
