"""The strategies that a simulation compares, their options, and which of them reads which."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from jaxdp.config import Count, Natural, Section
from jaxdp.errors import BadInput
from jaxdp.server.policy import Correction, Policy, PolicyName, make_policy

StrategyName = Literal["ddp", "ddp_small_batch", "zero1", "fsdp", "backup", "local_sgd", "ps"]

# option -> what reads it
_OWNERS = {
    "bound": "ps with policy ssp",
    "backups": "backup, or ps with policy backup",
    "group": "ps with policy softsync",
    "period": "local_sgd",
    "policy": "ps",
    "correction": "ps",
    "server_shards": "ps",
}
_COUNTS = ("bound", "backups", "group", "period")


def reads_option(name: str, policy: str, option: str) -> bool:
    """Whether a strategy of this name and policy has a use for the option."""
    ps = name == "ps"
    return {
        "bound": ps and policy == "ssp",
        "backups": name == "backup" or (ps and policy == "backup"),
        "group": ps and policy == "softsync",
        "period": name == "local_sgd",
    }.get(option, ps)


class Strategy(Section):
    """One way to train. `period` is local SGD's H; the rest is as in the parameter server's configuration.

    `ddp_small_batch` updates after every n-th of a global batch, as an asynchronous server does, but never
    on stale parameters: it tells what staleness costs from what the smaller batch does.
    """

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
        for option in _COUNTS:
            needed, given = self.reads(option), getattr(self, option) is not None
            if given and not needed:
                raise ValueError(f"{option}: {self.label} has none; it is for {_OWNERS[option]}")
            if needed and not given:
                raise ValueError(f"{option}: {self.label} needs it")
        return self

    def reads(self, option: str) -> bool:
        return reads_option(self.name, self.policy, option)

    @property
    def label(self) -> str:
        """A name that tells this strategy from its neighbours, such as `ps-ssp(3)`."""
        name = f"ps-{self.policy}" if self.name == "ps" else self.name
        option = next((getattr(self, o) for o in _COUNTS if self.reads(o) and getattr(self, o) is not None), None)
        name += "" if option is None else f"({option})"
        return name if self.correction == "none" else f"{name}+{self.correction}"

    @property
    def options(self) -> dict[str, Any]:
        """The options that this strategy reads."""
        return {option: getattr(self, option) for option in _OWNERS if self.reads(option)}

    @property
    def server_policy(self) -> Policy:
        given = {key: getattr(self, key) for key in ("bound", "backups", "group")}
        return make_policy(self.policy, **{key: value for key, value in given.items() if value is not None})


def give_options(strategies: list[dict[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    given, used = [], set()
    for strategy in strategies:
        policy = options.get("policy", strategy.get("policy", "async"))
        reads = {option for option in options if reads_option(strategy.get("name", ""), policy, option)}
        used |= reads
        given.append(strategy | {option: options[option] for option in reads})
    for option in options:
        if option not in used:
            names = ", ".join(str(strategy.get("name")) for strategy in strategies)
            policy = options.get("policy", "async")
            raise BadInput(f"{option}: nothing in {names} with policy {policy} has one; it is for {_OWNERS[option]}")
    return given
