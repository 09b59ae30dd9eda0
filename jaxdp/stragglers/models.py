"""Delay models: a row each, with its keys and what it does to a worker; modules outside the package add theirs.

A row's `effect` turns the keys' values into one of the effects below, which say how the model composes with
others. All randomness comes from the `Draws` they are handed, so that a draw depends on seed, worker and step alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.registry import Registry
from jaxdp.stragglers.draws import Draws
from jaxdp.stragglers.trace import read_trace

Values = Mapping[str, Any]  # a SPEC's values by key: floats, or text


class Number(NamedTuple):
    """A key's number from `least` (or above `above`) to `most`."""

    least: float = 0.0
    most: float = 1e9
    above: float | None = None
    required: bool = True

    def read(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise BadInput(f"expected a number, not {text!r}") from None
        low = self.least if self.above is None else math.nextafter(self.above, math.inf)
        if not low <= number <= self.most:
            least = f"{self.least:g}" if self.above is None else f"more than {self.above:g}"
            raise BadInput(f"expected {least} to {self.most:g}, not {text}")
        return number


class Text(NamedTuple):
    """A key's text, such as a file's name."""

    required: bool = True

    def read(self, text: str) -> str:
        return text


SECONDS = Number()
POSITIVE_SECONDS = Number(above=0.0)
FACTOR = Number(above=0.0, most=1e6)

StepDraw = Callable[[Draws, np.ndarray, np.ndarray], float | np.ndarray]
"""(draws, workers, steps) -> an array [steps, workers], or a constant."""

Periods = Callable[[Draws, int, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(draws, worker, cycle numbers) -> seconds of each cycle's good part, and of the bad one that follows it."""


class Replaces(NamedTuple):
    """Sets the step's base time; it repeats after `steps`, and is known for `workers` (None: for any)."""

    draw: StepDraw
    steps: int = 1
    workers: int | None = None


class Adds(NamedTuple):
    """Adds seconds to the step."""

    draw: StepDraw


class Multiplies(NamedTuple):
    """Multiplies the sum of seconds."""

    draw: StepDraw


class AddsInTime(NamedTuple):
    """Adds `seconds(draws, worker, at_s, step_s)` to a step of `step_s` that starts `at_s` into the run."""

    seconds: Callable[[Draws, int, float, float], float]


class MultipliesInTime(NamedTuple):
    """Multiplies a step that starts `at_s` into the run by `factor(draws, worker, at_s)`."""

    factor: Callable[[Draws, int, float], float]


class Slows(NamedTuple):
    """Multiplies a step that starts in a bad period."""

    periods: Periods
    factor: float


class Fails(NamedTuple):
    """Takes the worker down during bad periods; the step in progress is lost."""

    periods: Periods


class DividesBandwidth(NamedTuple):
    """Slows the worker's link."""

    factor: float


Effect = Replaces | Adds | Multiplies | AddsInTime | MultipliesInTime | Slows | Fails | DividesBandwidth


@dataclass(frozen=True, kw_only=True)
class DelayModel:
    """A model of the SPEC. `random` is false if it gives the same at every step, so that one sample tells all."""

    name: str
    summary: str
    keys: Mapping[str, Number | Text]
    effect: Callable[[Values], Effect]
    random: bool = True


def _trace(values: Values) -> Effect:
    table = read_trace(values["file"])
    return Replaces(lambda _, workers, steps: table[steps % len(table)][:, workers], *table.shape)


def _exponential(values: Values) -> Effect:
    return Adds(lambda draws, workers, steps: draws.exponential(workers, steps) * values["mean_s"])


def _pareto(values: Values) -> Effect:
    alpha = values["alpha"]
    smallest_s = values["mean_s"] * (alpha - 1) / alpha
    return Adds(lambda draws, workers, steps: smallest_s * draws.uniform(workers, steps) ** (-1 / alpha))


def _pause(values: Values) -> Effect:
    seconds, probability = values["seconds"], values.get("probability", 1.0)
    if "every_s" not in values:
        return Adds(lambda draws, workers, steps: (draws.uniform(workers, steps) < probability) * seconds)
    every_s = values["every_s"]

    def within_step(draws: Draws, worker: int, at_s: float, step_s: float) -> float:
        """The pauses whose moments fall within the step; each worker has its own phase."""
        phase = _phase(draws, worker)
        first = math.ceil(at_s / every_s - phase)
        last = math.ceil((at_s + step_s) / every_s - phase)
        if probability == 1.0 or last <= first:
            return (last - first) * seconds
        moments = np.arange(first, last) + 1  # the first moment may lie before zero
        return int((draws.uniform(worker, moments) < probability).sum()) * seconds

    return AddsInTime(within_step)


@cache
def _phase(draws: Draws, worker: int) -> float:
    """Where in its period a worker's periodic pause stands at the start."""
    return float(draws.of("phase").uniform(worker, 0)[0, 0])


def _lognormal(values: Values) -> Effect:
    sigma = values["sigma"]

    def draw(draws: Draws, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
        factors = draws.normal(workers, steps)
        factors *= sigma
        factors -= sigma * sigma / 2  # mean 1
        return np.exp(factors, out=factors)

    return Multiplies(draw)


def _markov(values: Values) -> Effect:
    on_s, off_s = values["on_s"], values["off_s"]

    def periods(draws: Draws, worker: int, cycles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        good_s = draws.of("good").exponential(worker, cycles)[:, 0] * off_s
        bad_s = draws.of("bad").exponential(worker, cycles)[:, 0] * on_s
        # Stationary from the start: the first cycle may begin with its bad part.
        if cycles[0] == 0 and draws.of("first").uniform(worker, 0)[0, 0] < on_s / (on_s + off_s):
            good_s[0] = 0.0
        return good_s, bad_s

    return Slows(periods, values["factor"])


def _fail(values: Values) -> Effect:
    def periods(draws: Draws, worker: int, cycles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        good_s = draws.of("good").exponential(worker, cycles)[:, 0] * values["mtbf_s"]
        return good_s, np.full(len(cycles), values["restart_s"])

    return Fails(periods)


def _throttle(values: Values) -> Effect:
    return MultipliesInTime(lambda draws, worker, at_s: values["factor"] if at_s >= values["after_s"] else 1.0)


DELAY_MODELS = Registry(
    "delay model",
    [
        DelayModel(
            name="pace",
            summary="a step takes these seconds",
            keys={"seconds": SECONDS},
            effect=lambda values: Replaces(lambda draws, workers, steps: values["seconds"]),
            random=False,
        ),
        DelayModel(
            name="trace",
            summary="a step takes what a CSV file says (header step,0,1,...)",
            keys={"file": Text()},
            effect=_trace,
            random=False,
        ),
        DelayModel(
            name="exponential",
            summary="a step takes longer, by exponential seconds",
            keys={"mean_s": SECONDS},
            effect=_exponential,
        ),
        DelayModel(
            name="pareto",
            summary="a step takes longer, by heavy-tailed seconds",
            keys={"mean_s": SECONDS, "alpha": Number(above=1.0, most=1e3)},
            effect=_pareto,
        ),
        DelayModel(
            name="pause",
            summary="a step takes longer, each with a probability or once in a period of time",
            keys={
                "seconds": SECONDS,
                "every_s": Number(least=1e-3, required=False),
                "probability": Number(most=1.0, required=False),
            },
            effect=_pause,
        ),
        DelayModel(
            name="persistent",
            summary="every step is multiplied",
            keys={"factor": FACTOR},
            effect=lambda values: Multiplies(lambda draws, workers, steps: values["factor"]),
            random=False,
        ),
        DelayModel(
            name="lognormal",
            summary="a step is multiplied by a log-normal factor of mean 1",
            keys={"sigma": Number(most=5.0)},
            effect=_lognormal,
        ),
        DelayModel(
            name="markov",
            summary="steps are multiplied in slow periods",
            keys={"on_s": POSITIVE_SECONDS, "off_s": POSITIVE_SECONDS, "factor": FACTOR},
            effect=_markov,
        ),
        DelayModel(
            name="throttle",
            summary="steps are multiplied from a moment on",
            keys={"after_s": SECONDS, "factor": FACTOR},
            effect=_throttle,
            random=False,
        ),
        DelayModel(
            name="link",
            summary="the worker's bandwidth is divided",
            keys={"factor": FACTOR},
            effect=lambda values: DividesBandwidth(values["factor"]),
            random=False,
        ),
        DelayModel(
            name="fail",
            summary="the worker fails and returns after a while; its step is lost",
            keys={"mtbf_s": POSITIVE_SECONDS, "restart_s": SECONDS},
            effect=_fail,
        ),
    ],
)
