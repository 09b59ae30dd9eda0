"""The grammar of a straggler SPEC: which models there are, their keys and ranges, and the parser."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jaxdp.errors import BadInput

BASES = ("pace", "trace")
SUMS = ("exponential", "pareto", "pause")
TIMED = ("markov", "throttle")
CONSTANT = ("pace", "trace", "persistent", "throttle", "link")


class Key(NamedTuple):
    """A number's range, `above` excluded or `least` and `most` included; `required` unless told."""

    least: float = 0.0
    most: float = 1e9
    above: float | None = None
    required: bool = True


SECONDS = Key()
POSITIVE_SECONDS = Key(above=0.0)
FACTOR = Key(above=0.0, most=1e6)

KEYS: Mapping[str, Mapping[str, Key]] = {
    "pace": {"seconds": SECONDS},
    "trace": {},
    "exponential": {"mean_s": SECONDS},
    "pareto": {"mean_s": SECONDS, "alpha": Key(above=1.0, most=1e3)},
    "pause": {
        "seconds": SECONDS,
        "every_s": Key(least=1e-3, required=False),
        "probability": Key(most=1.0, required=False),
    },
    "persistent": {"factor": FACTOR},
    "lognormal": {"sigma": Key(most=5.0)},
    "markov": {"on_s": POSITIVE_SECONDS, "off_s": POSITIVE_SECONDS, "factor": FACTOR},
    "throttle": {"after_s": SECONDS, "factor": FACTOR},
    "link": {"factor": FACTOR},
    "fail": {"mtbf_s": POSITIVE_SECONDS, "restart_s": SECONDS},
}


@dataclass(frozen=True)
class Model:
    """One model of a SPEC. `cause` keys its draws: its name, numbered if the SPEC has several of that name."""

    name: str
    value: Mapping[str, float]
    text: Mapping[str, str]
    worker: int | None
    cause: str

    def __str__(self) -> str:
        given = {**self.text, **{key: f"{value:g}" for key, value in self.value.items()}}
        if self.worker is not None:
            given["worker"] = str(self.worker)
        return f"{self.name}({','.join(f'{key}={value}' for key, value in given.items())})"

    @cached_property
    def timed(self) -> bool:
        """Whether what it does to a step depends on when the step starts."""
        return self.name in TIMED or self.periodic

    @cached_property
    def failing(self) -> bool:
        return self.name == "fail"

    @cached_property
    def periodic(self) -> bool:
        """Whether this is a pause at moments of time rather than at steps."""
        return self.name == "pause" and "every_s" in self.value

    @property
    def random(self) -> bool:
        return self.name not in CONSTANT

    def columns(self, workers: np.ndarray) -> slice:
        """The places in `workers` (distinct) that this model concerns."""
        if self.worker is None:
            return slice(None)
        place = np.flatnonzero(workers == self.worker)
        return slice(place[0], place[0] + 1) if len(place) else slice(0, 0)


def parse_models(spec: str, where: str) -> tuple[Model, ...]:
    """The models of a SPEC in order; raises `BadInput` that begins with `where`."""
    models: list[Model] = []
    for part in _split(spec, where):
        name, arguments = _call(part, where)
        count = sum(model.name == name for model in models)
        models.append(_model(name, arguments, f"{name}/{count}" if count else name, f"{where}: {part}"))
    return tuple(models)


def _split(spec: str, where: str) -> Iterator[str]:
    """The SPEC's calls, split at the commas outside parentheses."""
    if not spec.strip():
        return
    depth, start = 0, 0
    for place, letter in enumerate(f"{spec},"):
        depth += (letter == "(") - (letter == ")")
        if depth not in (0, 1):
            raise BadInput(f"{where}: {spec}: unbalanced parentheses at character {place + 1}")
        if letter == "," and depth == 0:
            yield spec[start:place].strip()
            start = place + 1
    if depth:
        raise BadInput(f"{where}: {spec}: a parenthesis is not closed")


def _call(part: str, where: str) -> tuple[str, dict[str, str]]:
    match = re.fullmatch(r"([A-Za-z_]\w*)\s*\((.*)\)", part, re.DOTALL)
    name = match[1] if match else part.partition("(")[0].strip()
    if not name:
        raise BadInput(f"{where}: an empty model; drop the spare comma")
    if name not in KEYS:
        raise BadInput(f"{where}: unknown model {name!r}{_nearest(name, KEYS)}")
    if match is None:
        raise BadInput(f"{where}: {part}: expected {_usage(name)}")
    arguments: dict[str, str] = {}
    for argument in match[2].split(",") if match[2].strip() else []:
        key, equals, value = (piece.strip() for piece in argument.partition("="))
        if not equals or not value:
            raise BadInput(f"{where}: {part}: expected key=value, not {argument.strip()!r}; {_usage(name)}")
        if key in arguments:
            raise BadInput(f"{where}: {part}: {key} is given twice")
        arguments[key] = value
    return name, arguments


def _model(name: str, arguments: Mapping[str, str], cause: str, where: str) -> Model:
    keys = _keys(name)
    for key in arguments:
        if key not in keys:
            raise BadInput(f"{where}: unknown key {key!r}{_nearest(key, keys)}")
    missing = [key for key in keys if key not in arguments and _required(name, key)]
    if missing:
        raise BadInput(f"{where}: {missing[0]} is missing; {_usage(name)}")
    worker = _worker(arguments["worker"], where) if "worker" in arguments else None
    text = {"file": arguments["file"]} if name == "trace" else {}
    value = {key: _number(arguments[key], key, limits, where) for key, limits in KEYS[name].items() if key in arguments}
    return Model(name, value, text, worker, cause)


def _number(text: str, key: str, limits: Key, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise BadInput(f"{where}: {key}: expected a number, not {text!r}") from None
    low = limits.least if limits.above is None else math.nextafter(limits.above, math.inf)
    if not low <= number <= limits.most:
        least = f"{limits.least:g}" if limits.above is None else f"more than {limits.above:g}"
        raise BadInput(f"{where}: {key}: expected {least} to {limits.most:g}, not {text}")
    return number


def _worker(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise BadInput(f"{where}: worker: expected a worker's number from 0, not {text!r}")
    return int(text)


def _keys(name: str) -> list[str]:
    return ["file", "worker"] if name == "trace" else [*KEYS[name], "worker"]


def _required(name: str, key: str) -> bool:
    return key != "worker" and (key == "file" or KEYS[name][key].required)


def _usage(name: str) -> str:
    given = [f"{key}=..." if _required(name, key) else f"[{key}=...]" for key in _keys(name)]
    return f"{name}({', '.join(given)})"


def _nearest(wrong: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
