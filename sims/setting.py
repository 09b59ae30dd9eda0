"""What is simulated: workers, their compute times and delays, the network, and the strategies to compare."""

import difflib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from jaxdp.config import SHIPPED, Count, Natural, Section, parse_override, read_toml
from jaxdp.delays import Delays, parse
from jaxdp.errors import BadInput
from sims.strategy import Strategy, give_options

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Bandwidth = Annotated[float, Field(gt=0)]
LearningRate = Annotated[float, Field(gt=0, lt=1e6)]


class Setting(Section):
    """A simulation. Times are 0 and bandwidths infinite unless given; gigabits and bytes are decimal.

    A step is one global batch: n workers' gradients, whatever the strategy. Compute times and
    the network can come from the cost model (`hardware`: a preset or file, for the config `train`) or from the
    folder of a measured `run`; what is given beside wins. `learning_rates` (a grid, by default the config's
    rate) and `until_loss` belong to real gradients.
    """

    workers: Count = 8
    steps: Count = 1000
    seed: Natural = 0
    seeds: Count = 1
    compute_s: Seconds | tuple[Seconds, ...] = 0.0
    delays: str = ""
    nic_gbps: Bandwidth = math.inf
    server_nic_gbps: Bandwidth = math.inf
    latency_s: Seconds = 0.0
    apply_s: Seconds = 0.0
    apply_distribution: Literal["constant", "exponential"] = "constant"
    message_bytes: Natural = 0
    queue: Literal["fifo", "shared"] = "fifo"
    tokens_per_step: Count = 1024
    hardware: str | None = None
    hosts: Count | None = None
    run: str | None = None
    train: str = "nano"
    learning_rates: tuple[LearningRate, ...] = ()
    until_loss: Seconds | None = None
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)] = (
        Strategy(name="ddp"),
        Strategy(name="ps"),
    )

    @model_validator(mode="after")
    def _workers_suffice(self) -> Self:
        if isinstance(self.compute_s, tuple) and len(self.compute_s) != self.workers:
            raise ValueError(f"compute_s: {len(self.compute_s)} times for {self.workers} workers")
        for strategy in self.strategies:
            if (strategy.backups or 0) >= self.workers:
                raise ValueError(
                    f"backups: {strategy.backups} of {self.workers} workers leave none to wait for; "
                    f"at most {self.workers - 1}"
                )
            if (strategy.group or 1) > self.workers:
                raise ValueError(f"group: {strategy.group} pushes of {self.workers} workers; at most {self.workers}")
        self.delays_of(self.seed).check(self.workers)
        if not (self.delays or np.any(self.compute_s)):
            raise ValueError("compute_s: nothing takes any time; give compute_s, or delays such as pace(seconds=1)")
        return self

    def delays_of(self, seed: int) -> Delays:
        return parse(self.delays, seed, where="delays")

    @property
    def base_s(self) -> np.ndarray:
        """Each worker's compute time before delays."""
        return np.broadcast_to(np.asarray(self.compute_s, np.float64), self.workers)


def load(
    source: str | None,
    flags: Mapping[str, Any],
    options: Mapping[str, Any],
    names: list[str] | None = None,
    overrides: Iterable[str] = (),
) -> Setting:
    """The setting of a file or shipped name; `overrides` (`key=value`), then `flags` (keys) win over it.

    `names` replace its strategies; `options` (policy, bound, ...) go to the strategies that read them, and
    one that none reads is refused. Raises `BadInput`.
    """
    values = read_toml(find(source)) if source else {}
    for override in overrides:
        values |= parse_override(override)
    values |= flags
    values = _derived(values) | values
    if names:
        values["strategies"] = [{"name": name} for name in names]
    if options:
        strategies = values.get("strategies", [{"name": "ddp"}, {"name": "ps"}])
        values["strategies"] = give_options(strategies, options)
    return build(values)


def _derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """What the cost model or a measured run has to say."""
    hardware, run = values.get("hardware"), values.get("run")
    if hardware and run:
        raise BadInput("run: compute times come from hardware too; give only one of them")
    if values.get("hosts") and not hardware:
        raise BadInput("hosts: is a count of the hardware's hosts; give hardware too")
    if not hardware and not run:
        return {}
    from sims import sources  # here, since a start that needs no cost model should not wait for it

    if run:
        return sources.from_run(str(run))
    found = sources.from_hardware(str(hardware), values.get("hosts"), str(values.get("train", "nano")))
    if values.get("workers", found["workers"]) != found["workers"]:
        raise BadInput(f"workers: {hardware} has {found['workers']} devices, not {values['workers']}; leave it out")
    return found


def build(values: Mapping[str, Any]) -> Setting:
    """Validates plain values; `BadInput` has the key on one line."""
    _refuse_unknown(values, Setting, "")
    for index, strategy in enumerate(values.get("strategies", ())):
        if isinstance(strategy, Mapping):
            _refuse_unknown(strategy, Strategy, f"strategies[{index}].")
    try:
        return Setting.model_validate(values)
    except ValidationError as error:
        raise BadInput("; ".join(_one_line(e) for e in error.errors())) from None


def find(source: str) -> Path:
    """The file of a path or of a shipped simulation's name."""
    path, shipped = Path(source), SHIPPED / "sims" / f"{source}.toml"
    if path.suffix == ".toml" or path.is_file():
        return path
    if not shipped.is_file():
        refuse_name(source, shipped_names())
    return shipped


def refuse_name(name: str, known: list[str]) -> NoReturn:
    raise BadInput(f"{name}: neither a file nor a simulation that is shipped{_nearest(name, known)}")


def headline(path: Path) -> str:
    """The first comment of a simulation's file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def shipped_names() -> list[str]:
    return sorted(path.stem for path in (SHIPPED / "sims").glob("*.toml"))


def _refuse_unknown(values: Mapping[str, Any], section: type[BaseModel], prefix: str) -> None:
    for key in values:
        if key not in section.model_fields:
            raise BadInput(f"{prefix}{key}: unknown key{_nearest(key, list(section.model_fields))}")


def _nearest(wrong: str, known: list[str]) -> str:
    near = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"


def _one_line(error: Any) -> str:
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    where = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("float", "tuple", "function")))
    return f"{where}: {message[0].lower()}{message[1:]}, not {error['input']!r}"


def to_toml(setting: Setting) -> str:
    """The setting as TOML that `load` reads back."""
    values = setting.model_dump(exclude_none=True)
    strategies = values.pop("strategies")
    lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
    for strategy in strategies:
        lines += ["", "[[strategies]]", *(f"{key} = {_toml(value)}" for key, value in strategy.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
