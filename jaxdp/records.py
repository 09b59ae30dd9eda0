"""What a run says about itself: one record a step, one result a measurement. Plain numbers, no JAX.

Unknown is `None`, never 0 and never a guess; `how` says for a dotted key how its number was obtained.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, NamedTuple, Self

How = Literal["measured", "compiled", "predicted", "simulated"]


@dataclass(frozen=True)
class StepRecord:
    """One line of `steps.jsonl`. `tokens` counts the task's unit up to here.

    `step_time_s` is its window's mean: steps inside a window are not timed apart. The fields from `worker` on
    belong to a push to the parameter server.
    """

    step: int
    tokens: int
    loss: float
    grad_norm: float
    step_time_s: float
    data_wait_s: float
    learning_rate: float
    worker: int | None = None
    sequence: int | None = None
    version: int | None = None
    staleness: int | None = None
    applied: bool | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return values if self.worker is not None else {k: v for k, v in values.items() if k not in _PUSH_ONLY}


_PUSH_ONLY = ("worker", "sequence", "version", "staleness", "applied")


class Window(NamedTuple):
    """Consecutive steps timed together: from a wait for all earlier work to a wait for the last step's outputs.

    A mesh strategy has a record a step; a parameter server a record a push, and `seconds` spans the tokens of
    `steps` global batches. `spans` are those of a timeline, if one is kept; `arrivals_s` has, a step, each process's
    seconds until its gradients were ready to be reduced, if asked for.
    """

    records: list[StepRecord]
    seconds: float
    steps: float
    spans: Sequence[Any] = ()
    arrivals_s: Sequence[Sequence[float]] = ()


@dataclass(frozen=True)
class StepTime:
    """Seconds a step over the timed windows."""

    median: float
    p10: float
    p90: float
    n: int


@dataclass(frozen=True)
class Memory:
    """Bytes a device. State is parameters + gradients + optimizer; the device's peak covers the whole process."""

    state_bytes_per_device: int
    parameter_bytes_per_device: int
    gradient_bytes_per_device: int
    optimizer_bytes_per_device: int
    compiled_bytes_per_device: int | None
    device_peak_bytes: int | None
    host_rss_bytes: int


@dataclass(frozen=True)
class BenchResult:
    """What `jaxdp bench` found for one strategy. `tokens_*` count the task's `unit`; `tokens_per_second` is global.

    `diverged`: the loss ended above its start or above guessing, so that the figures are of no training.
    """

    strategy: str
    devices: int
    platform: str
    device_kind: str
    unit: str
    tokens_per_step: int
    tokens_per_second: float
    tokens_per_second_per_device: float
    step_time_s: StepTime
    compile_s: float
    data_wait_share: float
    mfu_percent: float | None
    mfu_causal_percent: float | None
    hfu_percent: float | None
    mfu_formula: str
    memory: Memory
    collectives: list[dict[str, Any]]
    collective_bytes_per_device: int | None
    collective_bytes_minimum: int
    loss: dict[str, float]
    diverged: bool
    settings: dict[str, Any]
    run_dir: str | None
    how: dict[str, How]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict; what only some strategies have stands beside the common keys."""
        values = asdict(self)
        return values | values.pop("extra")


Status = Literal["ok", "oom", "refused", "error", "timeout"]


@dataclass(frozen=True)
class SweepRow:
    """One line of a sweep's `table.jsonl`: one cell, measured once in a process of its own.

    `key` is unique in the table: a hash of the cell's config and of how it is started, "." and the repeat (from 0).
    `cell` maps each axis to its value: the sweep's own axes by their dotted key, or by their name where several
    keys are tied together, then `devices`, and `strategy` last. Under weak scaling `global_batch` grows with the
    devices, under strong scaling it stays. `reason` is one line for people (None when ok). `started_at` is UTC in
    ISO 8601, `seconds` are the whole process's; both are None where none was started. `result` is the document of
    `jaxdp bench` (`BenchResult.to_json`), None unless ok. `predicted` is the cost model's prediction on the sweep's
    hardware (`predict.evaluate.Row.to_json`: `step_time_s.total`, `bytes_per_device`, ...), None without hardware.
    `findings` are the pre-flight's, each `{name, severity, parameter, block, message, remedy}`. `run_dir` is the
    run's folder relative to the table's, None where no process was started.
    """

    key: str
    cell: dict[str, Any]
    repeat: int
    scaling: Literal["weak", "strong"]
    global_batch: int
    status: Status
    reason: str | None = None
    started_at: str | None = None
    seconds: float | None = None
    result: dict[str, Any] | None = None
    predicted: dict[str, Any] | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    run_dir: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Raises `ValueError` naming the keys that are missing or too many."""
        wrong = {item.name for item in fields(cls)} ^ set(values)
        if wrong:
            raise ValueError(f"not a row of a sweep: {', '.join(sorted(wrong))} missing or unknown")
        return cls(**values)


def quantile(values: list[float], share: float) -> float:
    """The linearly interpolated quantile of a non-empty list."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def step_time(seconds: list[float]) -> StepTime:
    return StepTime(quantile(seconds, 0.5), quantile(seconds, 0.1), quantile(seconds, 0.9), len(seconds))
