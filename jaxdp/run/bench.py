"""Measuring strategies side by side: the same batches, interleaved windows, so that drift hits all alike."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.job.attribution import attribute_lateness
from jaxdp.predict.preflight import Report
from jaxdp.records import BenchResult, StepRecord, StepTime, Window, step_time
from jaxdp.run import facts, oom
from jaxdp.run.divergence import divergence
from jaxdp.run.factory import Run, make_run
from jaxdp.run.prepare import Prepared
from jaxdp.run.provenance import provenance
from jaxdp.server.run import ServerRun
from jaxdp.timeline import timeline
from jaxdp.units import seconds_text
from jaxdp.workload import units_per_batch

WINDOWS = 10
# A server that takes turns starts each window with all its workers at the beginning of a step: shorter ones would
# mostly measure that.
SERVER_STEPS = 5
RACE_STEPS = 5  # a window of a race to a loss
RACE_MEAN_STEPS = 10  # over which its loss is averaged

# Told the strategy, the steps just done, and a remark for people.
Observer = Callable[[str, int, str], None]


@dataclass
class Measured:
    """What the windows of one strategy gave; the warm-up is recorded but not timed."""

    run: Run
    warm_up: Window
    windows: list[Window] = field(default_factory=list)
    time_to_loss_s: float | None = None
    steps_to_loss: int | None = None

    @property
    def name(self) -> str:
        return self.run.config.strategy.name

    @property
    def records(self) -> list[StepRecord]:
        return [record for window in (self.warm_up, *self.windows) for record in window.records]

    @property
    def step_time_s(self) -> StepTime:
        return step_time([window.seconds / window.steps for window in self.windows])

    @property
    def mean_step_s(self) -> float:
        return sum(window.seconds for window in self.windows) / sum(window.steps for window in self.windows)

    @property
    def data_wait_share(self) -> float:
        """Of the time of all streams of batches: one of a mesh strategy, one a worker of a server."""
        waited = sum(record.data_wait_s for window in self.windows for record in window.records)
        streams = self.run.workers if isinstance(self.run, ServerRun) else 1
        return waited / sum(window.seconds for window in self.windows) / streams


def bench(
    prepared: Prepared,
    *,
    steps: int,
    warm_up: int,
    until_loss: float | None = None,
    profile: bool = False,
    trace: bool = False,
    attribute: bool = False,
    observe: Observer,
    stop: object = False,
) -> list[BenchResult]:
    """Compiles, measures and records every prepared strategy; a result's folder is its part of the run's folder."""
    with ExitStack() as stack:
        runs = []
        for config in prepared.configs:
            run = make_run(
                config, prepared.data, prepared.devices, hosts=prepared.hosts, spans=trace, arrivals=attribute
            )
            stack.enter_context(closing(run))
            with oom.named("compiling", config, _report(prepared, config)):
                run.compile()
            observe(config.strategy.name, 0, f"compiled in {run.compile_s:.1f} s")
            with oom.named("making its state", config, _report(prepared, config)):
                run.start()
            runs.append(run)
            _record_start(prepared, run)
        if profile and prepared.folder.writes:
            stack.enter_context(jax.profiler.trace(str(prepared.folder.file("profile"))))
        # Of several runs the first is named: they share the memory.
        with oom.named("training", runs[0].config, prepared.reports[0]):
            measured = measure(runs, steps, warm_up, observe, stop, until_loss)
        return [_record_end(prepared, each, until_loss) for each in measured if each.windows]


def measure(
    runs: Sequence[Run],
    steps: int,
    warm_up: int,
    observe: Observer,
    stop: object = False,
    until_loss: float | None = None,
) -> list[Measured]:
    """Warms every run up, then times `steps` steps of each in up to ten interleaved windows.

    With `until_loss`, windows of a few steps go on until a run's mean loss over the last ten steps is no more
    than that, or `steps` are over; its time counts from the first step, the warm-up included.
    `stop` true ends it after the window at hand. Raises `JaxdpError` at a loss that is not finite.
    """
    measured = []
    for run in runs:
        measured.append(Measured(run, run.window(warm_up)))
        if isinstance(run, ServerRun):
            run.loop.metrics.reset()
        observe(run.config.strategy.name, 0, "warmed up")
    takes_turns = len(runs) > 1 and any(isinstance(run, ServerRun) for run in runs)
    sizes = window_sizes(steps, SERVER_STEPS if takes_turns else 1)
    if until_loss is not None:
        sizes = [RACE_STEPS] * (steps // RACE_STEPS)
    for index, size in enumerate(sizes):
        # Every other round goes backwards, so that no strategy always follows the same one.
        for each in measured if index % 2 == 0 else reversed(measured):
            if stop:
                return measured
            if each.time_to_loss_s is None:
                _time(each, size, settle=len(runs) > 1, observe=observe)
                if until_loss is not None:
                    _finish_race(each, until_loss)
    return measured


def _time(each: Measured, size: int, settle: bool, observe: Observer) -> None:
    window = each.run.window(size, settle=settle)
    refuse_nonfinite(each.run.config, window.records)
    each.windows.append(window)
    step_s = window.seconds / window.steps
    observe(each.name, size, f"loss {window.records[-1].loss:.3f}, {seconds_text(step_s)} a step")


def _finish_race(each: Measured, until_loss: float) -> None:
    """Notes the time if the mean loss of the last ten global batches has come down to the mark."""
    end = each.records[-1].tokens
    batch = units_per_batch(each.run.config)
    last = [record.loss for record in each.records if record.tokens > end - RACE_MEAN_STEPS * batch]
    if end >= RACE_MEAN_STEPS * batch and sum(last) / len(last) <= until_loss:
        each.time_to_loss_s = sum(window.seconds for window in (each.warm_up, *each.windows))
        each.steps_to_loss = end // batch


def window_sizes(steps: int, least: int = 1) -> list[int]:
    """Up to ten windows, as equal as can be, of at least so many steps."""
    count = max(1, min(WINDOWS, steps // least))
    return [steps // count + (index < steps % count) for index in range(count)]


def refuse_nonfinite(config: Config, records: Sequence[StepRecord]) -> None:
    """Raises `JaxdpError` at the first loss that is not finite, unless such steps are to be skipped."""
    if config.train.on_nonfinite == "skip":
        return
    for record in records:
        if not record.finite:
            raise JaxdpError(
                f"step {record.step} of {config.strategy.name}: the loss is {record.loss}, its gradient's norm "
                f"{record.grad_norm}; lower optim.learning_rate, set optim.clip, or train.on_nonfinite=skip"
            )


def _result(prepared: Prepared, measured: Measured, until_loss: float | None) -> BenchResult:
    run = measured.run
    config, first = run.config, run.devices[0]
    units = units_per_batch(config)
    seconds = measured.step_time_s
    # Injected delays make some windows long, and a server's bursts of pushes make some short: then all of them count.
    rate = units / (measured.mean_step_s if config.stragglers else seconds.median)
    communication = facts.communication_of(run)
    use = facts.utilisation(run, rate)
    losses = [record.loss for record in measured.records]
    failing = divergence(losses[0], losses, config)
    race: dict[str, Any] = {"time_to_loss_s": measured.time_to_loss_s, "steps_to_loss": measured.steps_to_loss}
    race = dict.fromkeys(race) if failing else race
    known = facts.notes(run, use, [f.message for f in _report(prepared, config).findings], prepared.machines)
    return BenchResult(
        strategy=config.strategy.name,
        devices=len(run.devices),
        platform=first.platform,
        device_kind=first.device_kind,
        unit=run.recipe.task.unit,
        tokens_per_step=units,
        tokens_per_second=rate,
        tokens_per_second_per_device=rate / len(run.devices),
        step_time_s=seconds,
        compile_s=run.compile_s,
        data_wait_share=measured.data_wait_share,
        mfu_percent=use.mfu_percent,
        mfu_causal_percent=use.mfu_causal_percent,
        hfu_percent=use.hfu_percent,
        mfu_formula=facts.mfu_formula(run),
        memory=facts.memory_of(run, alone=len(prepared.configs) == 1),
        collectives=communication.rows,
        collective_bytes_per_device=communication.bytes_per_device,
        collective_bytes_minimum=communication.minimum,
        loss={"first": losses[0], "last": losses[-1]},
        diverged=failing is not None,
        settings=facts.settings(run, prepared.xla_flags),
        run_dir=str(prepared.folder.path / _prefix(prepared, config)),
        how=facts.HOW,
        notes=[f"{config.strategy.name} {failing}", *known] if failing else known,
        extra={**facts.extra(run), **(race if until_loss is not None else {}), **_ranks(prepared, measured)},
    )


def _ranks(prepared: Prepared, measured: Measured) -> dict[str, Any]:
    arrivals_s = [step for window in measured.windows for step in window.arrivals_s]
    return (
        {"ranks": attribute_lateness(arrivals_s, prepared.host_names, measured.step_time_s.median)}
        if arrivals_s
        else {}
    )


def _report(prepared: Prepared, config: Config) -> Report:
    return prepared.reports[prepared.configs.index(config)]


def _prefix(prepared: Prepared, config: Config) -> str:
    return "" if len(prepared.configs) == 1 else f"{config.strategy.name}/"


def _record_start(prepared: Prepared, run: Run) -> None:
    report = _report(prepared, run.config)
    document = provenance(run.config, run.devices, prepared.data.describe(), report.to_json(), prepared.xla_flags)
    prepared.folder.write_json(f"{_prefix(prepared, run.config)}run.json", document)


def _record_end(prepared: Prepared, measured: Measured, until_loss: float | None) -> BenchResult:
    prefix = _prefix(prepared, measured.run.config)
    result = _result(prepared, measured, until_loss)
    with prepared.folder.lines(f"{prefix}steps.jsonl") as lines:
        for record in measured.records:
            lines.append(record.to_json())
    prepared.folder.write_json(f"{prefix}summary.json", result.to_json())
    spans = [span for window in measured.windows for span in window.spans]
    if spans and prepared.folder.writes:
        timeline(spans, len(measured.run.devices)).save(prepared.folder.file(f"{prefix}trace.json"))
    return result
