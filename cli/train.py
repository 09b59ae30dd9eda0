"""`jaxdp train`: train a model under one strategy, with checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import (
    ConfigOptions,
    FolderOptions,
    JobOptions,
    OutputOptions,
    RunOptions,
    plain_warnings,
    print_config,
    print_json,
    say,
)
from cli.options import Keys, with_options
from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Stop at this step; the schedule's length is train.steps.")
    ] = None
    resume: Annotated[str, typer.Option(metavar="auto|never|STEP", help="Continue the run in --run-dir.")] = "never"
    save_every: Annotated[
        int, typer.Option(min=0, metavar="K", help="Steps between checkpoints (0: only the last).")
    ] = 0
    eval_every: Annotated[
        int, typer.Option(min=0, metavar="K", help="Steps between evaluations (0: only the last).")
    ] = 0


@with_options
def train(
    keys: Annotated[Mapping[str, Any], Keys(Config, "strategy.name", "task", "train.seed", "stragglers", "server")],
    source: ConfigOptions,
    own: TrainOptions,
    run: RunOptions,
    folder: FolderOptions,
    job_options: JobOptions,
    output: OutputOptions,
) -> None:
    """Stop with Ctrl-C or SIGTERM and continue with --resume auto.

    Example: jaxdp train --config tiny --strategy fsdp --run-dir runs/mine --save-every 50
    """
    plain_warnings()
    from jaxdp.job.processes import agreed

    with StopFlag(agreed) as stop, job_options.find(stop) as job:
        resumed = own.resume != "never" and folder.run_dir
        configs = source.load(keys, Path(folder.run_dir or "") / "run.json" if resumed else None)
        if len(configs) > 1:
            raise BadInput(f"--strategy {keys['strategy.name']}: train takes one; compare several with jaxdp bench")
        if source.print_config:
            if job.first:
                print_config(configs)
            return
        from cli.progress import StepProgress
        from jaxdp.api import train as run_train

        (config,) = configs
        steps = own.steps or config.train.steps
        with StepProgress([config.strategy.name], steps, shown=job.first and not output.quiet) as progress:
            summary = run_train(
                config, **vars(own), **vars(run), **vars(folder), observe=progress.advance, stop=stop, job=job
            )
    if not job.first:
        pass
    elif output.json:
        print_json(summary.to_json())
    else:
        loss, heldout = ("-" if x is None else f"{x:.4f}" for x in (summary.loss, summary.eval_loss))
        say(f"step {summary.step}: loss {loss}, held-out loss {heldout}; records: {summary.run_dir}")
    if stop.exit_code is not None:
        if job.first:
            say(f"stopped at step {summary.step}; go on with: jaxdp train --run-dir {summary.run_dir} --resume auto")
        raise typer.Exit(stop.exit_code)
