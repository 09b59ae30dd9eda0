"""One simulation from its keys to its records: `jaxdp.simulate`, which `jaxdp sim` calls."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdp.errors import BadInput
from jaxdp.strict_json import plain
from jaxdp.timeline import Timeline
from sims import results, scenario
from sims.results import Result, Trainer
from sims.scenario import Scenario

if TYPE_CHECKING:
    from jaxdp.run.folder import RunFolder

Observer = Callable[[str, int, str], None]  # the strategy's label, the steps just done, a remark for people


@dataclass(frozen=True)
class Simulation:
    """A result for each strategy, in the scenario's order; `run_dir` where records were asked for."""

    scenario: Scenario
    results: tuple[Result, ...]
    run_dir: str | None = None

    def to_json(self) -> dict[str, Any]:
        return plain(
            {
                "results": [result.to_json() for result in self.results],
                "setting": scenario.plain_values(self.scenario),
                "how": {"results": "simulated"},
                "run_dir": self.run_dir,
            }
        )


def simulate(
    source: Scenario | str | Iterable[str] = (),
    *,
    name: str = "sim",
    gradients: bool = False,
    trace: bool = False,
    run_dir: str | None = None,
    overwrite: bool = False,
    observe: Observer | None = None,
    **keys: Any,
) -> Simulation:
    """Simulates strategies under uneven workers in virtual time.

    `source` is a scenario, or the name or file of one, or of several, later ones winning; `keys` are those of
    `Scenario` and win over it, with `strategies` as names or tables:
    `simulate(workers=8, compute_s=1.0, stragglers="lognormal(sigma=0.3)", strategies=["ddp", "ps"])`.
    With `gradients` the training is real and only time is simulated. Records go to `run_dir`, by default nowhere, or,
    where a `trace` of the timeline is asked for, to a new folder under runs/ with `name` in its own. Raises `BadInput`.
    """
    if isinstance(source, Scenario):
        case = scenario.build(scenario.stated_values(source) | keys)
    else:
        case = scenario.load([source] if isinstance(source, str) else list(source), keys, {})
    if not gradients and (case.learning_rates or case.until_loss is not None):
        raise BadInput("learning_rates, until_loss: belong to real gradients; add --gradients")
    trainer = _trainer(case) if gradients else None
    folder = _open_folder(run_dir, overwrite, name) if run_dir or trace else None
    timelines = {strategy.label: Timeline(case.workers) for strategy in case.strategies} if trace else {}
    progress = _in_steps(case, observe) if observe else None
    outcomes = results.compare(case, lambda strategy: timelines.get(strategy.label), progress, trainer)
    simulation = Simulation(case, tuple(outcomes), folder and str(folder.path))
    if folder:
        with folder:
            _write(folder, simulation, timelines)
    return simulation


def _in_steps(case: Scenario, observe: Observer) -> results.Progress:
    """Tells steps where a simulation tells the share that is done."""
    done: dict[str, int] = {}

    def progress(label: str, share: float) -> None:
        steps = round(share * case.steps * case.seeds) - done.get(label, 0)
        done[label] = done.get(label, 0) + steps
        observe(label, steps, "simulated")

    return progress


def _trainer(case: Scenario) -> Trainer:
    """Real training: a setup for each seed, made when first needed. Whatever can be refused is refused here."""
    from sims import gradients

    for strategy in case.strategies:
        gradients.refuse_untrainable(strategy)
    setup = cache(partial(gradients.TrainingSetup, case))
    setup(case.seed)
    return lambda strategy, seed, timeline, progress: gradients.best_of_grid(setup(seed), strategy, timeline, progress)


def _open_folder(run_dir: str | None, overwrite: bool, name: str) -> "RunFolder":
    from jaxdp.run.folder import fresh_run, open_run

    return open_run(Path(run_dir), overwrite=overwrite) if run_dir else fresh_run(f"sim-{name}")


def _write(folder: "RunFolder", simulation: Simulation, timelines: Mapping[str, Timeline]) -> None:
    """Everything a simulation leaves: JSON, CSV, timelines, and figures, whose failure loses nothing."""
    from sims import figures

    document = simulation.to_json()
    del document["run_dir"]  # the same, wherever it lies
    folder.write_json("results.json", document)
    folder.file("results.csv").write_text(results.to_csv(document["results"]), encoding="utf-8")
    if any(result.trainings for result in simulation.results):
        folder.file("losses.csv").write_text(results.losses_csv(simulation.results), encoding="utf-8")
    for label, timeline in timelines.items():
        timeline.save(folder.file("trace.json" if len(timelines) == 1 else f"trace-{slug(label)}.json"))
    try:
        figures.draw_all(simulation.scenario, simulation.results, folder.file("figures"))
    except Exception as error:
        import logging

        logging.getLogger(__name__).warning("figures were not drawn (%s)", error)


def slug(label: str) -> str:
    """A strategy's label as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_+.]+", "-", label).strip("-")
