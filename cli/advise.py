"""`jaxdp advise`: which strategy to take on a cluster you may not have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import ConfigOptions, OutputOptions, print_config, print_json, say
from cli.options import Keys, with_options
from jaxdp.config import Config
from jaxdp.predict.calibrated.rates import OWN_STACK


@dataclass(frozen=True, kw_only=True)
class AdviseOptions:
    hardware: Annotated[
        str, typer.Option(metavar="PRESET|FILE", help="Such as h100x8, or a hardware.toml (jaxdp probe).")
    ]
    hosts: Annotated[int | None, typer.Option(min=1, metavar="M", help="Hosts of that kind.")] = None
    nic_gbps: Annotated[
        float | None, typer.Option(metavar="G", help="Gigabits/s of network per device (not per host).")
    ] = None
    stack: Annotated[
        str,
        typer.Option(help="Who trains: jaxdp, or for comparison torch-fsdp, nanotron, megatron, maxtext."),
    ] = OWN_STACK
    explain: Annotated[
        bool, typer.Option("--explain", help="Where the two best strategies differ, in seconds, and a remedy.")
    ] = False
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

    config = configs[0]
    advice = predict(config, own.hardware, hosts=own.hosts, nic_gbps=own.nic_gbps, stack=own.stack, origin=source.words)
    explanation = None
    if own.explain:
        from jaxdp.predict.explain import explain

        explanation = explain(advice)
    if output.json:
        print_json(advice.to_json() | ({"explanation": explanation.to_json()} if explanation else {}))
    else:
        from jaxdp.report.advice import print_advice

        print_advice(advice, brief=output.quiet, explanation=explanation)
    if own.figure is not None:
        from jaxdp.report.advice import save_figure

        say(f"figure: {', '.join(map(str, save_figure(advice, own.figure)))}")
