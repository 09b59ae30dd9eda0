"""How uneven workers are: the straggler SPEC, its seeded draws, and what the slowest of n costs (no JAX).

A SPEC is models joined by commas, `lognormal(sigma=0.2),persistent(factor=4,worker=0)`. A worker's step starts
from its base time (`pace` or `trace` set it, the last one that names the worker wins, else the caller's);
`exponential`, `pareto` and `pause` add to it; `persistent`, `lognormal`, `markov` and `throttle` multiply the
sum. `link` divides the worker's bandwidth, `fail` takes it away for a while. The same SPEC means the same in a
simulation, in a real run and for the adviser, and every strategy meets the same draws.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers import draws
from jaxdp.stragglers.spec import BASES, SUMS, Model, parse_models

MAX_RETRIES = 1000  # failures within one step before the setting is called hopeless


class Expected(NamedTuple):
    """Means over many steps: of each worker's step, and of the slowest worker's."""

    worker_s: np.ndarray
    slowest_s: float


class Outage(NamedTuple):
    """A worker is down from `start_s` to `end_s`; its computation in progress is lost."""

    start_s: float
    end_s: float


NO_OUTAGE = Outage(math.inf, math.inf)


@dataclass(frozen=True)
class Delays:
    """The delays of all workers for one seed: every number is a function of (seed, worker, step or time)."""

    models: tuple[Model, ...] = ()
    seed: int = 0
    _cycles: dict[tuple[int, int], "_Cycles"] = field(default_factory=dict, compare=False, repr=False)
    _places: dict[tuple[str, int], list[tuple[int, Model]]] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.models)

    def with_seed(self, seed: int) -> "Delays":
        return Delays(self.models, seed)

    def check(self, workers: int) -> None:
        """Raises `BadInput` if a model names a worker that doesn't exist or a trace has no column for one."""
        for model in self.models:
            if model.worker is not None and model.worker >= workers:
                raise BadInput(f"{model}: there is no worker {model.worker}, only 0 to {workers - 1}")
            if model.name == "trace":
                columns = read_trace(model.text["file"]).shape[1]
                last = workers - 1 if model.worker is None else model.worker
                if last >= columns:
                    raise BadInput(f"{model}: has {columns} columns and none for worker {last}")

    @cached_property
    def timed(self) -> bool:
        """Whether a step's seconds depend on when it starts, not only on its index."""
        return any(model.timed for model in self.models)

    @cached_property
    def failing(self) -> bool:
        return any(model.failing for model in self.models)

    def step_seconds(self, worker: int, step: int, base_s: float, at_s: float) -> float:
        """Seconds that `step` takes on `worker` when it starts `at_s` seconds into the run."""
        sums, factors = self.block(np.array([worker]), np.array([step]), base_s)
        return self.at_time(worker, float(sums[0, 0]), float(factors[0, 0]), at_s)

    def block(
        self, workers: np.ndarray, steps: np.ndarray, base_s: float | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What doesn't depend on time, [steps, workers]: summed seconds, and the factor to multiply them by."""
        shape = (len(steps), len(workers))
        sums, factors = np.broadcast_to(np.asarray(base_s, np.float64), shape).copy(), np.ones((1, 1))
        for model in sorted(self.models, key=lambda model: model.name in SUMS):  # bases first
            mine = model.columns(workers)
            if not len(workers[mine]) or model.periodic or model.name not in _STEP_VALUES:
                continue
            values = _STEP_VALUES[model.name](model, self.seed, workers[mine], steps)
            if model.name in BASES:
                sums[:, mine] = values
            elif model.name in SUMS:
                sums[:, mine] += values
            else:
                factors = np.ones(shape) if factors.shape == (1, 1) else factors
                factors[:, mine] *= values
        return sums, np.broadcast_to(factors, shape)

    def at_time(self, worker: int, sum_s: float, factor: float, at_s: float) -> float:
        """Seconds of a step that starts `at_s` into the run, from its entry of `block`."""
        for index, model in self._own("timed", worker):
            if model.periodic:
                sum_s += self._pauses(model, worker, at_s, sum_s * factor) * model.value["seconds"]
            elif model.name == "throttle":
                factor *= model.value["factor"] if at_s >= model.value["after_s"] else 1.0
            elif at_s >= self._outage(index, worker, at_s).start_s:
                factor *= model.value["factor"]
        return sum_s * factor

    def next_outage(self, worker: int, at_s: float) -> Outage:
        """The outage of `worker` at `at_s`, or else its next one."""
        own = [self._outage(index, worker, at_s) for index, _ in self._own("failing", worker)]
        return min(own) if own else NO_OUTAGE

    def survive(self, worker: int, start_s: float, seconds: float) -> tuple[float, float]:
        """When work of `seconds`, begun at `start_s` and again after every outage, is done; the computing lost."""
        lost_s = 0.0
        for _ in range(MAX_RETRIES):
            outage = self.next_outage(worker, start_s)
            if start_s + seconds <= outage.start_s:
                return start_s + seconds, lost_s
            lost_s += max(0.0, outage.start_s - start_s)
            start_s = outage.end_s
        raise BadInput(f"fail: worker {worker} never survives a step of {seconds:.3g} s; raise mtbf_s")

    def bandwidth_divisor(self, worker: int) -> float:
        """What the worker's bandwidth is divided by."""
        own = (m.value["factor"] for m in self.models if m.name == "link" and m.worker in (None, worker))
        return math.prod(own)

    def expected(self, workers: int, base_s: float | np.ndarray = 0.0, samples: int | None = None) -> Expected:
        """Mean step of each worker and of the slowest, over `samples` steps that all workers start together.

        By seeded sampling, so any composition has an answer; about 2^22 draws unless told otherwise.
        """
        self.check(workers)
        at_random = any(model.random for model in self.models)
        samples = samples or (min(2**16, max(2**11, 2**22 // workers)) if at_random or self.timed else 64)
        samples = max([samples, *(len(read_trace(m.text["file"])) for m in self.models if m.name == "trace")])
        everyone, at_s = np.arange(workers), 0.0
        worker_s, slowest_s = np.zeros(workers), 0.0
        for first in range(0, samples, 1024):
            steps = np.arange(first, min(first + 1024, samples))
            sums, factors = self.block(everyone, steps, base_s)
            if not self.timed and not self.failing:
                sums *= factors
                worker_s += sums.sum(axis=0)
                slowest_s += float(sums.max(axis=1).sum())
                continue
            for sum_row, factor_row in zip(sums.tolist(), factors.tolist(), strict=True):
                row = [self.at_time(w, sum_row[w], factor_row[w], at_s) for w in range(workers)]
                row = [self.survive(w, at_s, seconds)[0] - at_s for w, seconds in enumerate(row)]
                worker_s += row
                slowest_s += max(row)
                at_s += max(row)
        return Expected(worker_s / samples, slowest_s / samples)

    def _pauses(self, model: Model, worker: int, at_s: float, seconds: float) -> int:
        """How many of a periodic pause's moments fall within the step; each worker has its own phase."""
        every_s, phase = model.value["every_s"], _phase(self.seed, model.cause, worker)
        first = math.ceil(at_s / every_s - phase)
        last = math.ceil((at_s + seconds) / every_s - phase)
        probability = model.value.get("probability", 1.0)
        if probability == 1.0 or last <= first:
            return last - first
        moments = np.arange(first, last) + 1  # the first moment may lie before zero
        return int((draws.uniform(self.seed, model.cause, worker, moments) < probability).sum())

    def _outage(self, index: int, worker: int, at_s: float) -> Outage:
        """The slow period (`markov`) or outage (`fail`) of one model at `at_s`, or else the next one."""
        cycles = self._cycles.get((index, worker))
        if cycles is None or at_s < cycles.start_s:
            cycles = self._cycles[index, worker] = _Cycles(self.models[index], self.seed, worker)
        return cycles.find(at_s)

    def _own(self, kind: Literal["timed", "failing"], worker: int) -> list[tuple[int, Model]]:
        """The worker's models of a kind and their places."""
        own = self._places.get((kind, worker))
        if own is None:
            all_ = [(index, model) for index, model in enumerate(self.models) if model.worker in (None, worker)]
            own = [(index, model) for index, model in all_ if (model.timed if kind == "timed" else model.failing)]
            self._places[kind, worker] = own
        return own


@cache
def _phase(seed: int, cause: str, worker: int) -> float:
    """Where in its period a worker's periodic pause stands at the start."""
    return float(draws.uniform(seed, f"{cause}/phase", worker, 0)[0, 0])


class _Cycles:
    """A worker's good and bad periods one after the other, found by time, in constant memory.

    Good periods are exponential; bad ones too (`markov`, stationary from the start) or constant (`fail`).
    Time only moves forward: to look back, start a new one.
    """

    def __init__(self, model: Model, seed: int, worker: int) -> None:
        self.model, self.seed, self.worker = model, seed, worker
        self.first, self.start_s, self.next_s = 0, 0.0, 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self._extend()
        self.since_s, self.now = 0.0, Outage(0.0, 0.0)  # what `find` returned last, and since when it holds

    def find(self, at_s: float) -> Outage:
        if self.now.end_s <= at_s or at_s < self.since_s:
            while self.ends[-1] <= at_s:
                self._extend()
            index = bisect_right(self.ends, at_s)
            self.now = Outage(self.starts[index], self.ends[index])
            self.since_s = self.ends[index - 1] if index else self.start_s
        return self.now

    def _extend(self) -> None:
        """Replaces the cycles held by the next 64."""
        model, cycles = self.model, np.arange(self.first, self.first + 64)
        good = draws.exponential(self.seed, f"{model.cause}/good", self.worker, cycles)[:, 0]
        if model.name == "fail":
            good *= model.value["mtbf_s"]
            bad = np.full(64, model.value["restart_s"])
        else:
            good *= model.value["off_s"]
            bad = draws.exponential(self.seed, f"{model.cause}/bad", self.worker, cycles)[:, 0]
            bad *= model.value["on_s"]
            share = model.value["on_s"] / (model.value["on_s"] + model.value["off_s"])
            if self.first == 0 and draws.uniform(self.seed, f"{model.cause}/first", self.worker, 0)[0, 0] < share:
                good[0] = 0.0
        ends = self.next_s + np.cumsum(good + bad)
        self.starts, self.ends = (ends - bad).tolist(), ends.tolist()
        self.first, self.start_s, self.next_s = self.first + 64, self.next_s, self.ends[-1]


def _constant(key: str) -> Callable[[Model, int, np.ndarray, np.ndarray], float]:
    return lambda model, seed, workers, steps: model.value[key]


def _trace(model: Model, seed: int, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    table = read_trace(model.text["file"])
    return table[steps % len(table)][:, workers]


def _exponential(model: Model, seed: int, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return draws.exponential(seed, model.cause, workers, steps) * model.value["mean_s"]


def _pareto(model: Model, seed: int, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    alpha = model.value["alpha"]
    smallest_s = model.value["mean_s"] * (alpha - 1) / alpha
    return smallest_s * draws.uniform(seed, model.cause, workers, steps) ** (-1 / alpha)


def _pause(model: Model, seed: int, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    paused = draws.uniform(seed, model.cause, workers, steps) < model.value.get("probability", 1.0)
    return paused * model.value["seconds"]


def _lognormal(model: Model, seed: int, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
    sigma = model.value["sigma"]
    values = draws.normal(seed, model.cause, workers, steps)
    values *= sigma
    values -= sigma * sigma / 2  # mean 1
    return np.exp(values, out=values)


_STEP_VALUES: dict[str, Callable[[Model, int, np.ndarray, np.ndarray], float | np.ndarray]] = {
    "pace": _constant("seconds"),
    "trace": _trace,
    "exponential": _exponential,
    "pareto": _pareto,
    "pause": _pause,
    "persistent": _constant("factor"),
    "lognormal": _lognormal,
}


def parse(spec: str, seed: int = 0, where: str = "delays") -> Delays:
    """The delays of a SPEC; raises `BadInput`, one line that names the model or key and the nearest valid one."""
    delays = Delays(parse_models(spec, where), seed)
    for model in delays.models:
        if model.name == "trace":
            read_trace(model.text["file"])
    return delays


@cache
def read_trace(path: str) -> np.ndarray:
    """A trace's seconds a step, [steps, workers]: CSV with header `step,0,1,...`; raises `BadInput` naming the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(f"{path}: cannot be read ({reason})") from None
    while lines and not lines[-1].strip():
        lines.pop()
    header = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if len(header) < 2 or header != ["step", *map(str, range(len(header) - 1))]:
        raise BadInput(f"{path}: line 1: expected the header step,0,1,... with a column a worker")
    if len(lines) < 2:
        raise BadInput(f"{path}: has a header and no steps")
    return np.array([_trace_row(path, number, line, header) for number, line in enumerate(lines[1:], 2)])


def _trace_row(path: str, number: int, line: str, header: list[str]) -> list[float]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(header):
        raise BadInput(f"{path}: line {number}: {len(cells)} columns where the header has {len(header)}")
    row = []
    for worker, cell in enumerate(cells[1:]):
        try:
            seconds = float(cell)
        except ValueError:
            found = f"{cell!r} is not a number" if cell else "a hole"
            raise BadInput(f"{path}: line {number}: {found} for worker {worker}; give seconds") from None
        if not 0 <= seconds <= 1e9:
            raise BadInput(f"{path}: line {number}: {cell} seconds for worker {worker}; expected 0 to 1e9")
        row.append(seconds)
    return row
