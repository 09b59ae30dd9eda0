"""The grammar of a straggler SPEC: models joined by commas, each `name(key=value,...)`, for all workers or one."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers.models import DELAY_MODELS, DelayModel, Effect
from jaxdp.suggest import suggest


@dataclass(frozen=True)
class Delay:
    """One model of a SPEC. `cause` keys its draws: its name, numbered if the SPEC has several of that name."""

    model: DelayModel
    values: Mapping[str, Any]
    worker: int | None
    cause: str
    effect: Effect = field(compare=False, repr=False)

    def __str__(self) -> str:
        worker = {} if self.worker is None else {"worker": self.worker}
        arguments = [f"{key}={value if isinstance(value, str) else f'{value:g}'}" for key, value in self.values.items()]
        arguments += [f"{key}={value}" for key, value in worker.items()]
        return f"{self.model.name}({','.join(arguments)})"

    def columns(self, workers: np.ndarray) -> slice:
        """The places in `workers` (distinct) that this delay concerns."""
        if self.worker is None:
            return slice(None)
        place = np.flatnonzero(workers == self.worker)
        return slice(place[0], place[0] + 1) if len(place) else slice(0, 0)


def make_delay(name: str, values: Mapping[str, Any], worker: int | None = None, cause: str | None = None) -> Delay:
    model = DELAY_MODELS[name]
    return Delay(model, values, worker, cause or name, model.effect(values))


def parse_delays(spec: str, where: str) -> tuple[Delay, ...]:
    """The delays of a SPEC in order; raises `BadInput` that begins with `where`, or with the trace's file."""
    delays: list[Delay] = []
    for part in _split(spec, where):
        name, arguments = _call(part, where)
        count = sum(delay.model.name == name for delay in delays)
        values, worker = _values(DELAY_MODELS[name], arguments, f"{where}: {part}")
        delays.append(make_delay(name, values, worker, f"{name}/{count}" if count else name))
    return tuple(delays)


def usage(model: DelayModel) -> str:
    """How the model is called, optional keys in brackets."""
    keys = [f"{key}=..." if kind.required else f"[{key}=...]" for key, kind in model.keys.items()]
    return f"{model.name}({', '.join([*keys, '[worker=...]'])})"


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
    if name not in DELAY_MODELS:
        raise BadInput(f"{where}: unknown model {name!r}{suggest(name, DELAY_MODELS)}")
    expected = usage(DELAY_MODELS[name])
    if match is None:
        raise BadInput(f"{where}: {part}: expected {expected}")
    arguments: dict[str, str] = {}
    for argument in match[2].split(",") if match[2].strip() else []:
        key, equals, value = (piece.strip() for piece in argument.partition("="))
        if not equals or not value:
            raise BadInput(f"{where}: {part}: expected key=value, not {argument.strip()!r}; {expected}")
        if key in arguments:
            raise BadInput(f"{where}: {part}: {key} is given twice")
        arguments[key] = value
    return name, arguments


def _values(model: DelayModel, arguments: dict[str, str], where: str) -> tuple[dict[str, Any], int | None]:
    """The keys' values, and the worker if one is named."""
    known = [*model.keys, "worker"]
    for key in arguments:
        if key not in known:
            raise BadInput(f"{where}: unknown key {key!r}{suggest(key, known)}")
    missing = [key for key, kind in model.keys.items() if kind.required and key not in arguments]
    if missing:
        raise BadInput(f"{where}: {missing[0]} is missing; {usage(model)}")
    values: dict[str, Any] = {}
    for key, kind in model.keys.items():
        if key in arguments:
            try:
                values[key] = kind.read(arguments[key])
            except BadInput as error:
                raise BadInput(f"{where}: {key}: {error}") from None
    return values, _worker(arguments["worker"], where) if "worker" in arguments else None


def _worker(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise BadInput(f"{where}: worker: expected a worker's number from 0, not {text!r}")
    return int(text)
