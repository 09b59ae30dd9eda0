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
    StragglersOption,
    TaskOption,
    load_configs,
    plain_warnings,
    print_config,
    print_json,
    strategies_help,
)
from cli.process_options import (
    CoordinatorOption,
    JoinTimeoutOption,
    ProcessesOption,
    ProcessIdOption,
    StallTimeoutOption,
)
from cli.server_options import (
    AddressOption,
    BackupsOption,
    BoundOption,
    CorrectionOption,
    DevicesPerWorkerOption,
    EngineOption,
    GroupOption,
    PipelineOption,
    PlacementOption,
    PolicyOption,
    ShardsOption,
    WorkersOption,
    WorkerStrategyOption,
    server_flags,
)
from jaxdp.errors import BadInput


def bench(
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="S[,S...]", help=strategies_help("several with commas, or all.")),
    ] = None,
    config: ConfigOption = None,
    task: TaskOption = None,
    set_: SetOption = None,
    devices: DevicesOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="K", help="Timed steps of each strategy (default 20).")
    ] = None,
    warm_up: Annotated[int, typer.Option("--warmup", min=1, metavar="W", help="Steps before the timed ones.")] = 3,
    until_loss: Annotated[
        float | None,
        typer.Option("--until-loss", metavar="X", help="Report the time to this mean loss, within --steps (then 500)."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write a timeline for ui.perfetto.dev.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Write a JAX profiler trace into the run folder.")] = False,
    stragglers: StragglersOption = None,
    attribute_stragglers: Annotated[
        bool,
        typer.Option("--attribute-stragglers", help="Tell which process the others wait for (several processes)."),
    ] = False,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    policy: PolicyOption = None,
    bound: BoundOption = None,
    backups: BackupsOption = None,
    group: GroupOption = None,
    correction: CorrectionOption = None,
    server_shards: ShardsOption = None,
    pipeline: PipelineOption = None,
    worker_strategy: WorkerStrategyOption = None,
    devices_per_worker: DevicesPerWorkerOption = None,
    placement: PlacementOption = None,
    address: AddressOption = None,
    coordinator: CoordinatorOption = None,
    processes: ProcessesOption = None,
    process_id: ProcessIdOption = None,
    join_timeout: JoinTimeoutOption = 300.0,
    stall_timeout: StallTimeoutOption = None,
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
    flags = server_flags(
        engine=engine,
        workers=workers,
        policy=policy,
        bound=bound,
        backups=backups,
        group=group,
        correction=correction,
        shards=server_shards,
        pipeline=pipeline,
        worker_strategy=worker_strategy,
        devices_per_worker=devices_per_worker,
        placement=placement,
        address=address,
    )
    from jaxdp.job.scheduler import find_job
    from jaxdp.job.stop import StopFlag

    plain_warnings()
    with (
        StopFlag(at_once=True),
        find_job(coordinator, processes, process_id, join_timeout, stall_timeout) as job,
    ):
        flags |= {"task": task, "train.seed": seed, "stragglers": stragglers}
        configs = load_configs(config, set_, strategy, flags)
        if print_config_:
            if job.first:
                print_config(configs)
            return
        from jaxdp.run.prepare import prepare

        if attribute_stragglers and job.processes == 1:
            raise BadInput("--attribute-stragglers: there is one process; jaxdp launch -n N starts several")
        steps = steps or (20 if until_loss is None else 500)
        options = {"--steps": steps, "--warmup": warm_up, "--until-loss": until_loss}
        options |= {"--trace": trace, "--profile": profile, "--attribute-stragglers": attribute_stragglers}
        prepared = prepare(
            configs,
            devices,
            allow=allow or (),
            run_dir=run_dir,
            overwrite=overwrite,
            name="bench",
            xla_flags=xla_flags,
            job=job,
            options=options,
        )
        from cli.progress import StepProgress
        from jaxdp.run.bench import bench as run_bench

        names = [each.strategy.name for each in configs]
        with StepProgress(names, steps, shown=job.first and not quiet) as progress:
            results = run_bench(
                prepared,
                steps=steps,
                warm_up=warm_up,
                until_loss=until_loss,
                profile=profile,
                trace=trace,
                attribute=attribute_stragglers,
                observe=progress.advance,
            )
        if not job.first:
            return
        if json_:
            print_json([result.to_json() for result in results])
        else:
            from jaxdp.report.tables import print_bench

            print_bench(results)
            if attribute_stragglers:
                from jaxdp.report.ranks import print_ranks

                print_ranks(results)
