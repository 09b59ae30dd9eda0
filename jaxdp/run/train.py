"""Training: the run's windows with evaluation, checkpoints, resuming and stopping in good order."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.job import processes
from jaxdp.job.stop import StopFlag
from jaxdp.records import StepRecord
from jaxdp.run import manifest, oom
from jaxdp.run.bench import refuse_nonfinite
from jaxdp.run.checkpoint import Checkpoints
from jaxdp.run.divergence import LAST, divergence
from jaxdp.run.factory import Run, make_run
from jaxdp.run.folder import NoLines, RunFolder
from jaxdp.run.prepare import Prepared
from jaxdp.run.provenance import provenance
from jaxdp.run.segments import changes, continued, earlier, refuse_other_split
from jaxdp.strict_json import JsonLines, from_json, keep_lines
from jaxdp.units import seconds_text
from jaxdp.workload import unit, units_per_batch

WINDOW_S = 1.0  # how long a stop may have to wait; a window is at least one step
MAX_STEPS = 50
SEEN_WITHIN_S = 30.0  # network file systems may take a while to show a new file

Resume = int | Literal["auto", "never"]

# Told the steps just done, and a line for people.
Observer = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainSummary:
    """`loss` is the last step's, `eval_loss` the mean over every held-out unit; `tokens` counts the task's `unit`.

    `diverged`: the loss ended above the run's first one, or above guessing.
    """

    strategy: str
    devices: int
    unit: str
    step: int
    loss: float | None
    eval_loss: float | None
    tokens: int
    checkpoint_step: int | None
    resumed_from: int | None
    run_dir: str
    stopped: bool
    diverged: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def train(
    prepared: Prepared,
    *,
    steps: int | None = None,
    resume: Resume = "never",
    save_every: int = 0,
    eval_every: int = 0,
    observe: Observer,
    stop: StopFlag,
) -> TrainSummary:
    """Trains up to step `steps` (default: the schedule's length) and always saves the last step.

    A stop ends it after the window at hand, saved. Raises `BadInput` for a checkpoint that isn't this run's,
    before compiling, and `JaxdpError` at a loss that is not finite, which is never saved.
    """
    config, folder = prepared.configs[0], prepared.folder
    end = steps or config.train.steps
    directory = folder.file("checkpoints")
    processes.on_first(lambda: _refuse_other_run(config, prepared, resume))
    before = processes.on_first(lambda: earlier(folder.path)) if resume != "never" else None
    _refuse_unshared(folder.path)
    made = make_run(config, prepared.data, prepared.devices, hosts=prepared.hosts)
    with closing(made) as run, Checkpoints(directory, keep=config.train.keep_checkpoints) as checkpoints:
        restored = None
        if resume != "never":
            restored = checkpoints.restore(resume, run.abstract_state(), must_match=_identity(config, prepared))
        if restored is None:
            run.start()
        else:
            run.start(restored.state, restored.metadata.get("server"))
        last_loss = None if restored is None else restored.metadata.get("loss")
        idle = run.next_step >= end
        if idle:
            observe(0, f"the checkpoint of step {run.next_step} is at or past the last step, {end}: nothing to train")
        else:
            _record_start(prepared, run, resume, before)
            if before and restored and (changed := changes(before, config)):
                observe(0, f"changed since step {restored.step}: {', '.join(changed)}")
            with oom.named("compiling", config, prepared.reports[0]):
                run.compile()
            observe(run.next_step, f"compiled in {run.compile_s:.1f} s")
            if end > config.train.steps and config.optim.schedule == "cosine":
                observe(
                    0, f"steps after {config.train.steps} train at a rate of 0; --set train.steps={end} stretches it"
                )
        log = (lambda name: NoLines()) if idle else folder.lines
        with (
            log("steps.jsonl") as lines,
            log("evaluations.jsonl") as evaluations,
            oom.named("training", config, prepared.reports[0]),
        ):
            losses = _loop(run, end, save_every, eval_every, checkpoints, (lines, evaluations), prepared, observe, stop)
            last_loss = losses[-1] if losses else last_loss
            if not idle:
                checkpoints.save(run.next_step, run.state, _metadata(config, prepared, run, last_loss))
            eval_loss = run.evaluate(stop)
            _record_evaluation(evaluations, run, eval_loss)
        checkpoints.wait()
        failing = divergence(processes.on_first(lambda: _first_loss(folder)), losses, config)
        if failing:
            observe(0, failing)
        summary = TrainSummary(
            strategy=config.strategy.name,
            devices=len(run.devices),
            unit=run.recipe.task.unit,
            step=run.next_step,
            loss=last_loss,
            eval_loss=eval_loss,
            tokens=run.next_step * units_per_batch(config),
            checkpoint_step=processes.on_first(lambda: max(checkpoints.steps(), default=None)),
            resumed_from=None if restored is None else restored.step,
            run_dir=str(folder.path),
            stopped=stop.requested,
            diverged=failing is not None,
        )
    if not idle:
        folder.write_json("summary.json", summary.to_json())
    return summary


def _loop(
    run: Run,
    end: int,
    save_every: int,
    eval_every: int,
    checkpoints: Checkpoints,
    logs: tuple[JsonLines | NoLines, JsonLines | NoLines],
    prepared: Prepared,
    observe: Observer,
    stop: StopFlag,
) -> list[float | None]:
    """Windows until the end or a stop; returns the losses of the last steps. `logs` are of steps and evaluations."""
    losses: list[float | None] = []
    lines, evaluations = logs
    size = 1
    while run.next_step < end and not stop:
        reach = min(end, _next(run.next_step, save_every, end), _next(run.next_step, eval_every, end))
        before = run.next_step
        window = run.window(min(size, reach - before))
        for record in window.records:
            lines.append(record.to_json())
        refuse_nonfinite(run.config, window.records)
        last = window.records[-1]
        losses = [*losses, *(record.loss for record in window.records)][-2 * LAST :]
        size = processes.broadcast(max(1, min(MAX_STEPS, int(WINDOW_S / last.step_time_s))))
        observe(run.next_step - before, step_line(run, last))
        if save_every and run.next_step % save_every == 0:
            checkpoints.save(run.next_step, run.state, _metadata(run.config, prepared, run, last.loss))
        if eval_every and run.next_step % eval_every == 0 and run.next_step < end:
            heldout = run.evaluate(stop)
            _record_evaluation(evaluations, run, heldout)
            observe(0, "" if heldout is None else f"held-out loss {heldout:.4f}")
    return losses


def _record_evaluation(evaluations: JsonLines | NoLines, run: Run, loss: float | None) -> None:
    """The held-out loss after so many steps; None where a stop cut the evaluation short."""
    if loss is not None:
        tokens = run.next_step * units_per_batch(run.config)
        evaluations.append({"step": run.next_step, "tokens": tokens, "eval_loss": loss})


def _first_loss(folder: RunFolder) -> float | None:
    """The run's first loss, whoever trained that step."""
    with folder.file("steps.jsonl").open(encoding="utf-8") as lines:
        first = lines.readline()
    return from_json(first.encode())["loss"] if first.endswith("\n") else None


def _refuse_other_run(config: Config, prepared: Prepared, resume: Resume) -> None:
    directory = prepared.folder.file("checkpoints")
    if resume != "never" and (found := manifest.peek(directory, resume)):
        manifest.refuse_other(found[1].metadata, _identity(config, prepared), directory)
        if before := earlier(prepared.folder.path):
            refuse_other_split(before, config, prepared.folder.path)


def _refuse_unshared(folder: Path) -> None:
    """Refuses a folder that the other hosts don't see: each would keep its part of a checkpoint to itself."""
    if processes.count() == 1:
        return
    token = processes.broadcast(str(time.time_ns()))
    mark = folder / f".seen-by-all-{token}"
    processes.on_first(mark.touch)
    deadline = time.monotonic() + SEEN_WITHIN_S
    while not (seen := mark.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    blind = [index for index, sees in enumerate(processes.gather(seen)) if not sees]
    processes.on_first(mark.unlink)
    if blind:
        raise BadInput(
            f"--run-dir {folder}: process {', '.join(map(str, blind))} doesn't see what process 0 writes there; "
            "checkpoints need a folder on a file system that all hosts share"
        )


def step_line(run: Run, record: StepRecord) -> str:
    """The line that users of training loops expect."""
    rate = units_per_batch(run.config) / record.step_time_s
    wait = 100 * record.data_wait_s / record.step_time_s
    return (
        f"loss {record.loss:.4f}, grad norm {record.grad_norm:.3f}, {seconds_text(record.step_time_s)}, "
        f"{rate:,.0f} {unit(run.config)}/s ({rate / len(run.devices):,.0f} per device), data wait {wait:.1f} %"
    )


def _next(step: int, every: int, end: int) -> int:
    return (step // every + 1) * every if every else end


def _identity(config: Config, prepared: Prepared) -> dict[str, Any]:
    """What a checkpoint must share with the run that continues it: what is trained, and the order of the data."""
    trained = {"task": config.task.model_dump()} if config.task else {"model": config.model.model_dump()}
    return {
        **trained,
        "optim": {"name": config.optim.name},
        "data": {"sha256": prepared.data.describe()["sha256"]},
        "train": {"global_batch": config.train.global_batch, "seed": config.train.seed},
    }


def _metadata(config: Config, prepared: Prepared, run: Run, loss: float | None) -> dict[str, Any]:
    return {
        **_identity(config, prepared),
        "strategy": config.strategy.name,
        "devices": len(run.devices),
        "step": run.next_step,
        "tokens": run.next_step * units_per_batch(config),
        "loss": loss,
        "server": run.snapshot(),
    }


def _record_start(prepared: Prepared, run: Run, resume: Resume, before: dict[str, Any] | None) -> None:
    folder: RunFolder = prepared.folder
    if resume != "never" and folder.writes:  # also without a checkpoint: then all steps are taken again
        keep_lines(folder.file("steps.jsonl"), lambda row: row["step"] < run.next_step)
        keep_lines(folder.file("evaluations.jsonl"), lambda row: row["step"] <= run.next_step)
    document = provenance(
        run.config, run.devices, prepared.data.describe(), prepared.reports[0].to_json(), prepared.xla_flags
    )
    folder.write_json("run.json", {**document, "segments": continued(before, document, run.next_step)})
