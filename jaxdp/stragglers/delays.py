"""How uneven workers are: the delays of a straggler SPEC together, and what the slowest of n costs (no JAX).

A SPEC is models joined by commas, `lognormal(sigma=0.2),persistent(factor=4,worker=0)`. A worker's step starts
from its base time (`pace` or `trace` set it, the last one that names the worker wins, else the caller's); what is
added comes next, and what multiplies multiplies the sum. `link` divides the worker's bandwidth, `fail` takes it
away for a while. The same SPEC means the same in a simulation, in a real run and for the adviser, and every
strategy meets the same draws.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers.draws import Draws
from jaxdp.stragglers.models import (
    Adds,
    AddsInTime,
    DividesBandwidth,
    Fails,
    Multiplies,
    MultipliesInTime,
    Replaces,
    Slows,
)
from jaxdp.stragglers.periods import NO_OUTAGE, Cycles, Outage
from jaxdp.stragglers.spec import Delay, parse_delays

MAX_RETRIES = 1000  # failures within one step before the setting is called hopeless

TIMED = AddsInTime | MultipliesInTime | Slows


class Expected(NamedTuple):
    """Means over many steps: of each worker's step, and of the slowest worker's."""

    worker_s: np.ndarray
    slowest_s: float


@dataclass(frozen=True)
class Delays:
    """The delays of all workers for one seed: every number is a function of (seed, worker, step or time)."""

    delays: tuple[Delay, ...] = ()
    seed: int = 0
    _cycles: dict[tuple[str, int], Cycles] = field(default_factory=dict, compare=False, repr=False)
    _timed: dict[int, list[tuple[Any, Draws]]] = field(default_factory=dict, compare=False, repr=False)
    _failing: dict[int, list[tuple[Any, Draws]]] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.delays)

    def check(self, workers: int) -> None:
        """Raises `BadInput` if a delay names a worker that doesn't exist or a trace has no column for one."""
        for delay in self.delays:
            if delay.worker is not None and delay.worker >= workers:
                raise BadInput(f"{delay}: there is no worker {delay.worker}, only 0 to {workers - 1}")
            columns = delay.effect.workers if isinstance(delay.effect, Replaces) else None
            last = workers - 1 if delay.worker is None else delay.worker
            if columns is not None and last >= columns:
                raise BadInput(f"{delay}: has {columns} columns and none for worker {last}")

    @cached_property
    def timed(self) -> bool:
        """Whether a step's seconds depend on when it starts, not only on its index."""
        return any(isinstance(delay.effect, TIMED) for delay in self.delays)

    @cached_property
    def failing(self) -> bool:
        return any(isinstance(delay.effect, Fails) for delay in self.delays)

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
        for delay, effect in self._by_step:
            columns = delay.columns(workers)
            if not len(workers[columns]):
                continue
            values = effect.draw(self._draws(delay), workers[columns], steps)
            if isinstance(effect, Replaces):
                sums[:, columns] = values
            elif isinstance(effect, Adds):
                sums[:, columns] += values
            else:
                factors = np.ones(shape) if factors.shape == (1, 1) else factors
                factors[:, columns] *= values
        return sums, np.broadcast_to(factors, shape)

    def at_time(self, worker: int, sum_s: float, factor: float, at_s: float) -> float:
        """Seconds of a step that starts `at_s` into the run, from its entry of `block`."""
        for effect, draws in self._own(TIMED, worker, self._timed):
            if isinstance(effect, AddsInTime):
                sum_s += effect.seconds(draws, worker, at_s, sum_s * factor)
            elif isinstance(effect, MultipliesInTime):
                factor *= effect.factor(draws, worker, at_s)
            elif at_s >= self._bad_period(effect, draws, worker, at_s).start_s:
                factor *= effect.factor
        return sum_s * factor

    def next_outage(self, worker: int, at_s: float) -> Outage:
        """The outage of `worker` at `at_s`, or else its next one."""
        own = self._own(Fails, worker, self._failing)
        return min((self._bad_period(effect, draws, worker, at_s) for effect, draws in own), default=NO_OUTAGE)

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
        own = (delay.effect for delay in self.delays if delay.worker in (None, worker))
        return math.prod(effect.factor for effect in own if isinstance(effect, DividesBandwidth))

    def expected(self, workers: int, base_s: float | np.ndarray = 0.0, samples: int | None = None) -> Expected:
        """Mean step of each worker and of the slowest, over `samples` steps that all workers start together.

        By seeded sampling, so any composition has an answer; about 2^22 draws by default.
        """
        self.check(workers)
        at_random = any(delay.model.random for delay in self.delays)
        samples = samples or (min(2**16, max(2**11, 2**22 // workers)) if at_random or self.timed else 64)
        samples = max([samples, *(delay.effect.steps for delay in self.delays if isinstance(delay.effect, Replaces))])
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

    @cached_property
    def _by_step(self) -> list[tuple[Delay, Replaces | Adds | Multiplies]]:
        """The delays that depend on the step's index, those that replace the base first."""
        own = [(d, d.effect) for d in self.delays if isinstance(d.effect, Replaces | Adds | Multiplies)]
        return sorted(own, key=lambda pair: not isinstance(pair[1], Replaces))

    def _own(self, kind: Any, worker: int, cache: dict[int, list[tuple[Any, Draws]]]) -> list[tuple[Any, Draws]]:
        """The worker's effects of a kind and their draws."""
        if worker not in cache:
            own = [delay for delay in self.delays if delay.worker in (None, worker)]
            cache[worker] = [(d.effect, self._draws(d)) for d in own if isinstance(d.effect, kind)]
        return cache[worker]

    def _draws(self, delay: Delay) -> Draws:
        return Draws(self.seed, delay.cause)

    def _bad_period(self, effect: Slows | Fails, draws: Draws, worker: int, at_s: float) -> Outage:
        """The bad period at `at_s`, or else the next one."""
        cycles = self._cycles.get((draws.cause, worker))
        if cycles is None or at_s < cycles.start_s:
            cycles = self._cycles[draws.cause, worker] = Cycles(effect.periods, draws, worker)
        return cycles.at(at_s)


def parse(spec: str, seed: int = 0, where: str = "delays") -> Delays:
    """The delays of a SPEC; raises `BadInput`, one line that names the model or key and the nearest valid one."""
    return Delays(parse_delays(spec, where), seed)
