"""`jaxdp bench`: measure strategies on the devices at hand."""

from typing import Annotated

import typer

from cli.common import (
    AllowOption,
    ConfigOption,
    DebugOption,
    DevicesOption,
    JsonOption,
    OverwriteOption,
    PrintConfigOption,
    QuietOption,
    RunDirOption,
    SeedOption,
    SetOption,
    load_configs,
    print_config,
    print_json,
)


def bench(
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="S[,S...]", help="ddp, zero1, fsdp, hsdp, several with commas, or all."),
    ] = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    devices: DevicesOption = None,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="K", help="Timed steps of each strategy.")] = 20,
    warm_up: Annotated[int, typer.Option("--warmup", min=1, metavar="W", help="Steps before the timed ones.")] = 3,
    profile: Annotated[bool, typer.Option("--profile", help="Write a JAX profiler trace into the run folder.")] = False,
    xla_flags: Annotated[
        bool, typer.Option("--xla-flags/--no-xla-flags", help="XLA's overlap flags for GPUs (listed in the result).")
    ] = True,
    run_dir: RunDirOption = None,
    overwrite: OverwriteOption = False,
    seed: SeedOption = None,
    allow: AllowOption = None,
    print_config_: PrintConfigOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure throughput, memory and communication of strategies, interleaved on the same batches.

    Example: jaxdp bench --config tiny --strategy ddp,fsdp --devices 4
    """
    configs = load_configs(config, set_, strategy, {"train.seed": seed})
    if print_config_:
        print_config(configs)
        return
    from jaxdp.run.prepare import prepare

    prepared = prepare(
        configs, devices, allow=allow or (), run_dir=run_dir, overwrite=overwrite, name="bench", xla_flags=xla_flags
    )
    from cli.progress import StepProgress
    from jaxdp.run.bench import bench as run_bench

    with StepProgress([each.strategy.name for each in configs], steps, shown=not quiet) as progress:
        results = run_bench(prepared, steps=steps, warm_up=warm_up, profile=profile, observe=progress.advance)
    if json_:
        print_json([result.to_json() for result in results])
    else:
        from jaxdp.report.tables import print_bench

        print_bench(results)
