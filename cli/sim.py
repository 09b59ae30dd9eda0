"""`jaxdp sim`: what if workers, links or devices were uneven, in virtual time."""

import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common import (
    DebugOption,
    JsonOption,
    OverwriteOption,
    PrintConfigOption,
    QuietOption,
    RunDirOption,
    SeedOption,
    print_json,
    say,
)
from cli.server_options import BackupsOption, BoundOption, GroupOption, PolicyOption
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag
from jaxdp.strict_json import plain
from sims.strategy import known_strategies

if TYPE_CHECKING:
    from jaxdp.run.folder import RunFolder
    from jaxdp.timeline import Timeline
    from sims.results import Result, Trainer
    from sims.scenario import Scenario


class Queue(StrEnum):
    fifo = "fifo"
    shared = "shared"


class CorrectionChoice(StrEnum):
    none = "none"
    lr_over_staleness = "lr_over_staleness"
    delay_compensation = "delay_compensation"


def sim(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|list|replay]", help="A scenario, `list`, or `replay FILE.csv`.")
    ] = None,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The trace to replay.")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="TOML of a simulation, or a shipped one; repeat."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override one key; repeat.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", metavar="S[,S...]", help=", ".join(known_strategies())),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", help="Workers (default 8).")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="K", help="Global batches (default 1000): K*N gradients.")
    ] = None,
    compute_s: Annotated[
        str | None, typer.Option("--compute-s", metavar="S[,S...]", help="Seconds of a worker's step, or one for each.")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="PRESET|FILE", help="Times by the cost model, such as h100x8.")
    ] = None,
    hosts: Annotated[int | None, typer.Option("--hosts", help="Hosts of the hardware.")] = None,
    run: Annotated[
        str | None, typer.Option("--run", metavar="FOLDER", help="Compute time from a measured run's steps.")
    ] = None,
    delays: Annotated[
        str | None,
        typer.Option("--delays", metavar="SPEC", help='Such as "lognormal(sigma=0.2),link(factor=4,worker=0)".'),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="K", help="Seeds to average over.")] = None,
    seed: SeedOption = None,
    policy: PolicyOption = None,
    bound: BoundOption = None,
    backups: BackupsOption = None,
    group: GroupOption = None,
    period: Annotated[int | None, typer.Option("--period", help="Of local_sgd: steps between averages.")] = None,
    correction: Annotated[CorrectionChoice | None, typer.Option("--correction", help="For stale gradients.")] = None,
    server_shards: Annotated[int | None, typer.Option("--server-shards", help="Shards of the server.")] = None,
    nic_gbps: Annotated[float | None, typer.Option("--nic-gbps", help="A worker's link (default: no limit).")] = None,
    server_nic_gbps: Annotated[
        float | None, typer.Option("--server-nic-gbps", help="A server shard's link (default: no limit).")
    ] = None,
    latency_s: Annotated[float | None, typer.Option("--latency-s", help="Of a message, one way.")] = None,
    apply_s: Annotated[float | None, typer.Option("--apply-s", help="Seconds to apply a push.")] = None,
    message_bytes: Annotated[
        int | None, typer.Option("--message-bytes", help="Bytes of the parameters and of the gradients.")
    ] = None,
    queue: Annotated[Queue | None, typer.Option("--queue", help="How the server's link is shared.")] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Train for real; only time is simulated. Imports JAX.")
    ] = False,
    train: Annotated[
        str | None, typer.Option("--train", metavar="FILE_OR_NAME", help="Config for --gradients, --hardware (nano).")
    ] = None,
    learning_rates: Annotated[
        str | None, typer.Option("--learning-rates", metavar="X[,X...]", help="Common grid; the best is kept for each.")
    ] = None,
    until_loss: Annotated[
        float | None, typer.Option("--until-loss", metavar="X", help="With --gradients: report the time to this loss.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write a timeline a strategy, for ui.perfetto.dev.")] = False,
    run_dir: RunDirOption = None,
    overwrite: OverwriteOption = False,
    print_config: PrintConfigOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Simulate strategies under uneven workers in virtual time, replay a trace, or rerun a published experiment.

    Example: jaxdp sim --strategy ddp,ps --workers 8 --compute-s 1 --delays "persistent(factor=4,worker=0)"
    """
    if name == "list":
        _list(json_)
        return
    if name == "replay":
        _replay(file, json_)
        return
    from sims import scenario

    if file:
        raise BadInput(f"{file}: only `jaxdp sim replay` takes a file; give a simulation's TOML with --config")
    if name and name not in scenario.shipped_names():
        _published(name, json_)
        return
    flags: dict[str, Any] = {
        "workers": workers,
        "steps": steps,
        "compute_s": _one_or_many(_numbers("--compute-s", compute_s)),
        "hardware": hardware,
        "hosts": hosts,
        "run": run,
        "delays": delays,
        "seeds": seeds,
        "seed": seed,
        "nic_gbps": nic_gbps,
        "server_nic_gbps": server_nic_gbps,
        "latency_s": latency_s,
        "apply_s": apply_s,
        "message_bytes": message_bytes,
        "queue": queue and queue.value,
        "train": train,
        "learning_rates": _numbers("--learning-rates", learning_rates),
        "until_loss": until_loss,
    }
    options = {
        "policy": policy,
        "bound": bound,
        "backups": backups,
        "group": group,
        "period": period,
        "correction": correction and correction.value,
        "server_shards": server_shards,
    }
    if name and config:
        raise BadInput(f"{name}: give either a name or --config, not both")
    case = scenario.load([name] if name else config or [], _given(flags), _given(options), _names(strategy), set_ or ())
    if print_config:
        typer.echo(scenario.to_toml(case), nl=False)
        return
    if not gradients and (learning_rates or until_loss is not None):
        raise BadInput("--learning-rates, --until-loss: belong to --gradients; add it")
    with StopFlag(at_once=True):
        _simulate(case, name or (config or ["sim"])[-1], gradients, trace, run_dir, overwrite, json_, quiet)


LONG = 1_000_000  # gradients from which on progress is shown


def _simulate(
    case: "Scenario",
    name: str,
    gradients: bool,
    trace: bool,
    run_dir: str | None,
    overwrite: bool,
    json_: bool,
    quiet: bool,
) -> None:
    from cli.progress import StepProgress
    from jaxdp.timeline import Timeline
    from sims import results, scenario, tables

    trainer = _trainer(case) if gradients else None
    folder = _open_folder(run_dir, overwrite, Path(name).stem) if run_dir or trace else None
    timelines = {strategy.label: Timeline(case.workers) for strategy in case.strategies} if trace else {}
    labels = [strategy.label for strategy in case.strategies]
    total, told = case.steps * case.seeds, dict.fromkeys(labels, 0)
    shown = not quiet and (gradients or total * case.workers >= LONG)
    with StepProgress(labels, total, shown=shown) as bar:

        def progress(label: str, share: float) -> None:
            steps = round(share * total) - told[label]
            told[label] += steps
            bar.advance(label, steps, "simulated")

        found = results.compare(case, lambda strategy: timelines.get(strategy.label), progress, trainer)
    rows = [result.to_json() for result in found]
    document = {
        "results": rows,
        "setting": scenario.plain_values(case),
        "how": {"results": "simulated"},
    }
    if folder:
        with folder:
            _write(folder, document, found, timelines)
    if json_:
        print_json(plain(document | {"run_dir": folder and str(folder.path)}))
        return
    tables.print_results(rows)
    if folder:
        say(f"records: {folder.path}")


def _trainer(case: "Scenario") -> "Trainer":
    """Real training: a setup for each seed, made when first needed. Whatever can be refused is refused here."""
    from functools import cache, partial

    from sims import gradients

    for strategy in case.strategies:
        gradients.refuse_untrainable(strategy)
    setup = cache(partial(gradients.TrainingSetup, case))
    setup(case.seed)
    return lambda strategy, seed, timeline, progress: gradients.best_of_grid(setup(seed), strategy, timeline, progress)


def _open_folder(run_dir: str | None, overwrite: bool, name: str) -> "RunFolder":
    from jaxdp.run.folder import fresh_run, open_run

    return open_run(Path(run_dir), overwrite=overwrite) if run_dir else fresh_run(f"sim-{name}")


def _write(
    folder: "RunFolder", document: dict[str, Any], found: "list[Result]", timelines: "dict[str, Timeline]"
) -> None:
    """Everything a simulation leaves: JSON, CSV, timelines, and figures, whose failure loses nothing."""
    from sims import figures, results

    folder.write_json("results.json", document)
    folder.file("results.csv").write_text(results.to_csv(document["results"]), encoding="utf-8")
    if any(result.trainings for result in found):
        folder.file("losses.csv").write_text(results.losses_csv(found), encoding="utf-8")
    for label, timeline in timelines.items():
        timeline.save(folder.file("trace.json" if len(timelines) == 1 else f"trace-{slug(label)}.json"))
    try:
        figures.draw_all(found[0].scenario, found, folder.file("figures"))
    except Exception as error:
        say(f"warning: figures were not drawn ({error})")


def slug(label: str) -> str:
    """A strategy's label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_+.]+", "-", label).strip("-")


def _list(json_: bool) -> None:
    from sims import published, scenario

    shipped = {name: scenario.headline(scenario.find(name)) for name in scenario.shipped_names()}
    experiments = {name: experiment.title for name, experiment in published.EXPERIMENTS.items()}
    if json_:
        print_json({"experiments": experiments, "simulations": shipped})
        return
    for title, entries in (("published experiments", experiments), ("simulations", shipped)):
        typer.echo(title)
        for name, line in entries.items():
            typer.echo(f"  {name:24} {line}")


def _replay(file: Path | None, json_: bool) -> None:
    from sims import replay, tables

    if file is None:
        raise BadInput("replay: needs a trace, as in `jaxdp sim replay trace.csv`")
    report = replay.replay(str(file))
    if json_:
        print_json(report)
    else:
        tables.print_replay(report)


def _published(name: str, json_: bool) -> None:
    from sims import checks, published, scenario, tables

    if name not in published.EXPERIMENTS:
        checks.refuse_name(name, [*published.EXPERIMENTS, *scenario.shipped_names(), "list", "replay"])
    report = published.EXPERIMENTS[name].report()
    if json_:
        print_json(report)
    else:
        tables.print_published(report)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if value is not None}


def _names(strategy: str | None) -> list[str] | None:
    """The strategies named on the command line; the server's has one name whatever its policy."""
    if strategy is None:
        return None
    names = [name.strip() for name in strategy.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise BadInput(f"--strategy {strategy}: expected different strategies with commas between them")
    return names


def _numbers(flag: str, text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{flag} {text}: expected a number, or several with commas between them") from None


def _one_or_many(values: list[float] | None) -> float | list[float] | None:
    return values[0] if values and len(values) == 1 else values
