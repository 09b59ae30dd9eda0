"""The strategies that a simulation compares, their options, and which of them reads which."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from jaxdp.errors import BadInput
from jaxdp.policies import CORRECTIONS, Correction, Policy, PolicyName, make_policy
from sims import checks

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
_MINIMUMS = {"bound": 0, "backups": 0, "group": 1, "period": 1}


def reads_option(name: str, policy: str, option: str) -> bool:
    """Whether a strategy of this name and policy has a use for the option."""
    ps = name == "ps"
    return {
        "bound": ps and policy == "ssp",
        "backups": name == "backup" or (ps and policy == "backup"),
        "group": ps and policy == "softsync",
        "period": name == "local_sgd",
    }.get(option, ps)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to train. `period` is local SGD's H; the rest is as in the parameter server's configuration.

    `ddp_small_batch` updates after every n-th of a global batch, as an asynchronous server does, but never
    on stale parameters: it tells what staleness costs from what the smaller batch does.
    """

    name: StrategyName
    policy: PolicyName = "async"
    bound: int | None = None
    backups: int | None = None
    group: int | None = None
    period: int | None = None
    correction: Correction = "none"
    server_shards: int = 1

    def __post_init__(self) -> None:
        checks.one_of("name", self.name, get_args(StrategyName))
        checks.one_of("policy", self.policy, get_args(PolicyName))
        checks.one_of("correction", self.correction, CORRECTIONS)
        checks.whole("server_shards", self.server_shards, 1)
        for option, least in _MINIMUMS.items():
            needed, given = self.reads(option), getattr(self, option)
            if given is None and needed:
                raise BadInput(f"{option}: {self.label} needs it")
            if given is not None and not needed:
                raise BadInput(f"{option}: {self.label} has none; it is for {_OWNERS[option]}")
            if given is not None:
                checks.whole(option, given, least)

    def reads(self, option: str) -> bool:
        return reads_option(self.name, self.policy, option)

    @property
    def label(self) -> str:
        """A name that tells this strategy from its neighbours, such as `ps-ssp(3)`."""
        name = f"ps-{self.policy}" if self.name == "ps" else self.name
        option = next((getattr(self, o) for o in _MINIMUMS if self.reads(o) and getattr(self, o) is not None), None)
        name += "" if option is None else f"({option})"
        name += "" if self.correction == "none" else f"+{self.correction}"
        return name if self.server_shards == 1 else f"{name} x{self.server_shards}"

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


def parse_strategy(values: Any, place: int) -> Strategy:
    """A strategy from a file's table."""
    if not isinstance(values, Mapping) or "name" not in values:
        raise BadInput(f"strategies[{place}]: expected a table with a name, not {values!r}")
    checks.refuse_unknown(values, [field.name for field in fields(Strategy)], f"strategies[{place}].")
    return Strategy(**values)
