"""`jaxdp sim`: what if workers, links or devices were uneven, in virtual time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import FolderOptions, OutputOptions, PrintConfigOption, SetOption, print_json, say
from cli.options import Keys, with_options
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag
from sims.scenario import Scenario
from sims.strategy import Strategy, known_strategies

SCENARIO_KEYS = Keys(
    Scenario,
    *("workers", "steps", "compute_s", "hardware", "hosts", "run", "stragglers", "seeds", "seed", "nic_gbps"),
    *("server_nic_gbps", "latency_s", "apply_s", "message_bytes", "queue", "train", "learning_rates", "until_loss"),
)
STRATEGY_KEYS = Keys(
    Strategy,
    *("policy", "bound", "backups", "group", "period", "correction", "server_shards"),
    panel="Strategies",
)
LONG = 1_000_000  # gradients from which on progress is shown


@dataclass(frozen=True, kw_only=True)
class SimOptions:
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|list|replay]", help="A scenario, `list`, or `replay FILE.csv`.")
    ] = None
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The trace to replay.")] = None
    strategy: Annotated[
        str | None, typer.Option(metavar="S[,S...]", help=f"What to compare: {', '.join(known_strategies())}.")
    ] = None
    config: Annotated[
        list[str],
        typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="TOML of a simulation, or a shipped one; repeat."),
    ] = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    print_config: PrintConfigOption = False
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Train for real; only time is simulated. Imports JAX.")
    ] = False
    trace: Annotated[bool, typer.Option("--trace", help="Write a timeline a strategy, for ui.perfetto.dev.")] = False


@with_options
def sim(
    own: SimOptions,
    keys: Annotated[Mapping[str, Any], SCENARIO_KEYS],
    strategy_keys: Annotated[Mapping[str, Any], STRATEGY_KEYS],
    folder: FolderOptions,
    output: OutputOptions,
) -> None:
    """Example: jaxdp sim --strategy ddp,ps --workers 8 --compute-s 1 --stragglers "persistent(factor=4,worker=0)" """
    from sims import scenario, tables

    if own.name == "list":
        from sims.published import catalogue

        _show(catalogue(), tables.print_catalogue, output)
    elif own.name == "replay":
        from sims.replay import replay

        _show(replay(own.file), tables.print_replay, output)
    elif own.file:
        raise BadInput(f"{own.file}: only `jaxdp sim replay` takes a file; give a simulation's TOML with --config")
    elif own.name and own.name not in scenario.shipped_names():
        from sims.published import report

        _show(report(own.name), tables.print_published, output)
    elif own.name and own.config:
        raise BadInput(f"{own.name}: give either a name or --config, not both")
    else:
        sources = [own.name] if own.name else own.config
        case = scenario.load(sources, keys, strategy_keys, own.strategy, own.set_)
        if own.print_config:
            typer.echo(scenario.to_toml(case), nl=False)
        else:
            with StopFlag(at_once=True):
                _simulate(case, Path(sources[-1]).stem if sources else "sim", own, folder, output)


def _simulate(case: Scenario, name: str, own: SimOptions, folder: FolderOptions, output: OutputOptions) -> None:
    from cli.progress import StepProgress
    from sims import tables
    from sims.run import simulate

    shown = not output.quiet and (own.gradients or case.steps * case.seeds * case.workers >= LONG)
    labels = [strategy.label for strategy in case.strategies]
    with StepProgress(labels, case.steps * case.seeds, shown=shown) as progress:
        simulation = simulate(
            case, name=name, gradients=own.gradients, trace=own.trace, **vars(folder), observe=progress.advance
        )
    document = simulation.to_json()
    _show(document, lambda document: tables.print_results(document["results"]), output)
    if simulation.run_dir and not output.json:
        say(f"records: {simulation.run_dir}")


def _show(document: Mapping[str, Any], show: Any, output: OutputOptions) -> None:
    if output.json:
        print_json(document)
    else:
        show(document)
