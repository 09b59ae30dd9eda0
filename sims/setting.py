"""What is simulated: workers, their compute times and delays, the network, and the strategies to compare."""

import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from jaxdp.config import SHIPPED, Count, Natural, Section, parse_override, read_toml
from jaxdp.delays import Delays, parse
from jaxdp.errors import BadInput
from jaxdp.server.policy import Correction, Policy, PolicyName, make_policy

StrategyName = Literal["ddp", "zero1", "fsdp", "backup", "local_sgd", "ps"]
STRATEGY_NAMES: tuple[StrategyName, ...] = ("ddp", "zero1", "fsdp", "backup", "local_sgd", "ps")

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Bandwidth = Annotated[float, Field(gt=0)]

# option -> what reads it
_OWNERS = {
    "bound": "ps with policy ssp",
    "backups": "backup, or ps with policy backup",
    "group": "ps with policy softsync",
    "period": "local_sgd",
}


class Strategy(Section):
    """One way to train. `period` is local SGD's H; the rest is as in the parameter server's configuration."""

    name: StrategyName
    policy: PolicyName = "async"
    bound: Natural | None = None
    backups: Natural | None = None
    group: Count | None = None
    period: Count | None = None
    correction: Correction = "none"
    server_shards: Count = 1

    @model_validator(mode="after")
    def _options_belong(self) -> Self:
        for option, owner in _OWNERS.items():
            needed, given = self.reads(option), getattr(self, option) is not None
            if given and not needed:
                raise ValueError(f"{option}: {self.label} has none; it belongs to {owner}")
            if needed and not given:
                raise ValueError(f"{option}: {self.name} needs it ({owner})")
        return self

    def reads(self, option: str) -> bool:
        ps = self.name == "ps"
        return {
            "bound": ps and self.policy == "ssp",
            "backups": self.name == "backup" or (ps and self.policy == "backup"),
            "group": ps and self.policy == "softsync",
            "period": self.name == "local_sgd",
        }[option]

    @property
    def label(self) -> str:
        """A name that tells this strategy from its neighbours, such as `ps-ssp(3)`."""
        name = f"ps-{self.policy}" if self.name == "ps" else self.name
        option = next((getattr(self, o) for o in _OWNERS if self.reads(o) and getattr(self, o) is not None), None)
        name += "" if option is None else f"({option})"
        return name if self.correction == "none" else f"{name}+{self.correction}"

    @property
    def server_policy(self) -> Policy:
        given = {key: getattr(self, key) for key in ("bound", "backups", "group")}
        return make_policy(self.policy, **{key: value for key, value in given.items() if value is not None})


class Setting(Section):
    """A simulation. Times are 0 and bandwidths infinite unless given; gigabits and bytes are decimal.

    A step is one global batch: n workers' gradients, whatever the strategy.
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
    message_bytes: Natural = 0
    queue: Literal["fifo", "shared"] = "fifo"
    tokens_per_step: Count = 1024
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


def load(source: str | None, flags: Mapping[str, Any], overrides: tuple[str, ...] = ()) -> Setting:
    """The setting of a file or shipped name with flags (named as the keys) on top; raises `BadInput`."""
    values = read_toml(find(source)) if source else {}
    for override in overrides:
        values |= parse_override(override)
    return build(values | dict(flags))


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
        raise BadInput(f"{source}: neither a file nor a shipped simulation{_nearest(source, shipped_names())}")
    return shipped


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
