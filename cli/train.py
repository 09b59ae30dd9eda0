"""`jaxdp train`: train a model under one strategy, with checkpoints."""

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
    say,
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
from jaxdp.job.stop import StopFlag


def train(
    strategy: Annotated[
        str | None, typer.Option("--strategy", metavar="S", help=f"One of {strategies_help()}.")
    ] = None,
    config: ConfigOption = None,
    task: TaskOption = None,
    set_: SetOption = None,
    devices: DevicesOption = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="K", help="Stop at this step; the schedule's length is train.steps."),
    ] = None,
    resume: Annotated[
        str, typer.Option("--resume", metavar="auto|never|STEP", help="Continue the run in --run-dir.")
    ] = "never",
    save_every: Annotated[
        int, typer.Option("--save-every", min=0, metavar="K", help="Steps between checkpoints (0: only the last).")
    ] = 0,
    eval_every: Annotated[
        int, typer.Option("--eval-every", min=0, metavar="K", help="Steps between evaluations (0: only the last).")
    ] = 0,
    stragglers: StragglersOption = None,
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
        bool, typer.Option("--xla-flags/--no-xla-flags", help="XLA's overlap flags for GPUs (listed in run.json).")
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
    """Train under one strategy; stop with Ctrl-C or SIGTERM and continue with --resume auto.

    Example: jaxdp train --config tiny --strategy fsdp --run-dir runs/mine --save-every 50
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
    plain_warnings()
    where = parse_resume(resume, run_dir)
    from jaxdp.job.processes import agreed
    from jaxdp.job.scheduler import find_job

    with (
        StopFlag(agreed) as stop,
        find_job(coordinator, processes, process_id, join_timeout, stall_timeout, stop) as job,
    ):
        flags |= {"task": task, "train.seed": seed, "stragglers": stragglers}
        configs = load_configs(config, set_, strategy, flags)
        if len(configs) > 1:
            raise BadInput(f"--strategy {strategy}: train takes one; compare several with jaxdp bench")
        if print_config_:
            if job.first:
                print_config(configs)
            return
        from jaxdp.run.prepare import prepare

        prepared = prepare(
            configs,
            devices,
            name="train",
            allow=allow or (),
            run_dir=run_dir,
            overwrite=overwrite,
            resume=where != "never",
            xla_flags=xla_flags,
            job=job,
            options={"--steps": steps, "--resume": where, "--save-every": save_every, "--eval-every": eval_every},
        )
        from cli.progress import StepProgress
        from jaxdp.run.train import train as run_train

        name = configs[0].strategy.name
        with StepProgress([name], steps or configs[0].train.steps, shown=job.first and not quiet) as progress:
            summary = run_train(
                prepared,
                steps=steps,
                resume=where,
                save_every=save_every,
                eval_every=eval_every,
                observe=lambda done, note: progress.advance(name, done, note),
                stop=stop,
            )
    if not job.first:
        pass
    elif json_:
        print_json(summary.to_json())
    else:
        loss, heldout = ("-" if x is None else f"{x:.4f}" for x in (summary.loss, summary.eval_loss))
        say(f"step {summary.step}: loss {loss}, held-out loss {heldout}; records: {summary.run_dir}")
    if stop.exit_code is not None:
        raise typer.Exit(stop.exit_code)


def parse_resume(text: str, run_dir: str | None):
    """ "auto", "never" or a step's number."""
    if text != "never" and run_dir is None:
        raise BadInput(f"--resume {text}: needs --run-dir, the folder of the run to continue")
    if text in ("auto", "never"):
        return text
    if not text.isdecimal():
        raise BadInput(f"--resume {text}: expected auto, never or a step's number")
    return int(text)
