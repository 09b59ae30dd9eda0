"""Measuring strategies side by side: the same batches, interleaved windows, so that drift hits all alike."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.records import BenchResult, StepRecord, StepTime, step_time
from jaxdp.run import facts
from jaxdp.run.mesh_run import MeshRun, Window
from jaxdp.run.prepare import Prepared
from jaxdp.run.provenance import provenance

WINDOWS = 10

# Told the strategy, the steps just done, and a remark for people.
Observer = Callable[[str, int, str], None]


@dataclass
class Measured:
    """What the windows of one strategy gave; the warm-up is recorded but not timed."""

    run: MeshRun
    warm_up: list[StepRecord] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)

    @property
    def records(self) -> list[StepRecord]:
        return [*self.warm_up, *(record for window in self.windows for record in window.records)]

    @property
    def step_time_s(self) -> StepTime:
        return step_time([window.seconds / len(window.records) for window in self.windows])

    @property
    def data_wait_share(self) -> float:
        waited = sum(record.data_wait_s for window in self.windows for record in window.records)
        return waited / sum(window.seconds for window in self.windows)


def bench(
    prepared: Prepared, *, steps: int, warm_up: int, profile: bool = False, observe: Observer, stop: Any = False
) -> list[BenchResult]:
    """Compiles, measures and records every prepared strategy; a result's folder is its part of the run's folder."""
    runs = []
    for config in prepared.configs:
        run = MeshRun(config, prepared.data, prepared.devices)
        run.compile()
        observe(config.strategy.name, 0, f"compiled in {run.compile_s:.1f} s")
        run.start()
        runs.append(run)
        _record_start(prepared, run)
    with jax.profiler.trace(str(prepared.folder.file("profile"))) if profile else nullcontext():
        measured = measure(runs, steps, warm_up, observe, stop)
    results = [_result(prepared, each) for each in measured if each.windows]
    for each, result in zip(measured, results, strict=False):
        _record_end(prepared, each, result)
    return results


def measure(runs: Sequence[MeshRun], steps: int, warm_up: int, observe: Observer, stop: Any = False) -> list[Measured]:
    """Warms every run up, then times `steps` steps of each in up to ten interleaved windows.

    `stop` true ends it after the window at hand. Raises `JaxdpError` at a loss that is not finite.
    """
    measured = [Measured(run) for run in runs]
    for each in measured:
        each.warm_up = each.run.window(warm_up).records
        observe(each.run.config.strategy.name, 0, "warmed up")
    for index, size in enumerate(window_sizes(steps)):
        # Every other round goes backwards, so that no strategy always follows the same one.
        for each in measured if index % 2 == 0 else reversed(measured):
            if stop:
                return measured
            window = each.run.window(size)
            refuse_nonfinite(each.run.config, window.records)
            each.windows.append(window)
            last = window.records[-1]
            observe(
                each.run.config.strategy.name, size, f"loss {last.loss:.3f}, {last.step_time_s * 1e3:.0f} ms a step"
            )
    return measured


def window_sizes(steps: int) -> list[int]:
    """Up to ten windows, as equal as can be."""
    count = min(WINDOWS, steps)
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


def _result(prepared: Prepared, measured: Measured) -> BenchResult:
    run = measured.run
    config, first = run.config, run.devices[0]
    tokens = config.train.global_batch * config.model.context
    seconds = measured.step_time_s
    rate = tokens / seconds.median
    communication = facts.communication_of(run)
    use = facts.utilisation(run, rate)
    alone = len(prepared.configs) == 1
    return BenchResult(
        strategy=config.strategy.name,
        devices=len(run.devices),
        platform=first.platform,
        device_kind=first.device_kind,
        tokens_per_step=tokens,
        tokens_per_second=rate,
        tokens_per_second_per_device=rate / len(run.devices),
        step_time_s=seconds,
        compile_s=run.compile_s,
        data_wait_share=measured.data_wait_share,
        mfu_percent=use.mfu_percent,
        mfu_causal_percent=use.mfu_causal_percent,
        hfu_percent=use.hfu_percent,
        mfu_formula=facts.MFU_FORMULA,
        memory=facts.memory_of(run, alone),
        collectives=communication.rows,
        collective_bytes_per_device=communication.bytes_per_device,
        collective_bytes_minimum=communication.minimum,
        loss={"first": measured.records[0].loss, "last": measured.records[-1].loss},
        settings=facts.settings(run, prepared.xla_flags),
        run_dir=str(_place(prepared, config)),
        how=facts.HOW,
        notes=facts.notes(run, use, [finding.message for finding in _report(prepared, config).findings]),
    )


def _report(prepared: Prepared, config: Config) -> Any:
    return prepared.reports[prepared.configs.index(config)]


def _prefix(prepared: Prepared, config: Config) -> str:
    return "" if len(prepared.configs) == 1 else f"{config.strategy.name}/"


def _place(prepared: Prepared, config: Config) -> Any:
    return prepared.folder.path / _prefix(prepared, config)


def _record_start(prepared: Prepared, run: MeshRun) -> None:
    report = _report(prepared, run.config)
    document = provenance(run.config, run.devices, prepared.data.describe(), report.to_json(), prepared.xla_flags)
    prepared.folder.write_json(f"{_prefix(prepared, run.config)}run.json", document)


def _record_end(prepared: Prepared, measured: Measured, result: BenchResult) -> None:
    prefix = _prefix(prepared, measured.run.config)
    with prepared.folder.lines(f"{prefix}steps.jsonl") as lines:
        for record in measured.records:
            lines.append(record.to_json())
    prepared.folder.write_json(f"{prefix}summary.json", result.to_json())
