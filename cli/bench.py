"""`jaxdp bench`: measure strategies on the devices at hand."""

from collections.abc import Mapping
from dataclasses import dataclass
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
)
from cli.options import Keys, with_options
from jaxdp.config import Config
from jaxdp.job.stop import StopFlag


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Timed steps of each strategy (default 20).")
    ] = None
    warm_up: Annotated[int, typer.Option("--warmup", min=1, metavar="W", help="Steps before the timed ones.")] = 3
    until_loss: Annotated[
        float | None, typer.Option(metavar="X", help="Report the time to this mean loss, within --steps (then 500).")
    ] = None
    trace: Annotated[bool, typer.Option("--trace", help="Write a timeline for ui.perfetto.dev.")] = False
    profile: Annotated[bool, typer.Option("--profile", help="Write a JAX profiler trace into the run folder.")] = False
    attribute_stragglers: Annotated[
        bool,
        typer.Option("--attribute-stragglers", help="Say which process the others wait for (several processes)."),
    ] = False


CONFIG_KEYS = Keys(
    Config,
    *("strategy.name", "task", "train.seed", "stragglers", "server"),
    metavars={"strategy.name": "S[,S...]|all"},
)


@with_options
def bench(
    keys: Annotated[Mapping[str, Any], CONFIG_KEYS],
    source: ConfigOptions,
    own: BenchOptions,
    run: RunOptions,
    folder: FolderOptions,
    job_options: JobOptions,
    output: OutputOptions,
) -> None:
    """Example: jaxdp bench --config tiny --strategy ddp,fsdp --devices 4"""
    plain_warnings()
    with StopFlag(at_once=True), job_options.find() as job:
        configs = source.load(keys)
        if source.print_config:
            if job.first:
                print_config(configs)
            return
        from cli.progress import StepProgress
        from jaxdp.api import bench as measure
        from jaxdp.api import bench_steps

        names = [config.strategy.name for config in configs]
        steps = own.steps or bench_steps(own.until_loss)
        with StepProgress(names, steps, shown=job.first and not output.quiet) as progress:
            results = measure(configs, **vars(own), **vars(run), **vars(folder), observe=progress.advance, job=job)
        if not job.first:
            return
        if output.json:
            print_json([result.to_json() for result in results])
        else:
            from jaxdp.report.tables import print_bench

            print_bench(results)
            if own.attribute_stragglers:
                from jaxdp.report.ranks import print_ranks

                print_ranks(results)
