"""The strategies that a simulation compares, their options, and which of them reads which."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from jaxdp.errors import BadInput
from jaxdp.policies import (
    CORRECTION_SUMMARY,
    CORRECTIONS,
    POLICY_SUMMARY,
    SERVER_POLICIES,
    SHARDS_SUMMARY,
    Correction,
    Option,
    Policy,
    make_policy,
    option_summary,
    parse_policy,
    policy_options,
)
from jaxdp.strategies.rows import STRATEGIES, mesh_strategies
from sims import checks


def known_strategies() -> list[str]:
    """The strategies' own names, and of the variants of DDP that only a simulation has."""
    return [*mesh_strategies(), *DDP_VARIANTS, "ps"]


DDP_VARIANTS = ("ddp_small_batch", "backup", "local_sgd")

# Options of the mesh strategies that have some; those of a server policy are its own.
_MESH_OPTIONS = {
    "backup": {"backups": policy_options()["backups"]},
    "local_sgd": {"period": Option(summary="steps between averages", least=1)},
}
_SERVER_OPTIONS = ("policy", "correction", "server_shards")


def read_options(name: str, policy: str) -> dict[str, Option]:
    """The numbers that a strategy of this name and policy needs."""
    return dict(parse_policy(policy)[0].options) if name == "ps" else _MESH_OPTIONS.get(name, {})


def _option(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to train. `period` is local SGD's H; the rest is as in the parameter server's configuration.

    `ddp_small_batch` updates after every n-th of a global batch, as an asynchronous server does, but never
    on stale parameters: it tells what staleness costs from what the smaller batch does.
    """

    name: str
    policy: str = _option("async", POLICY_SUMMARY)
    bound: int | None = _option(None, option_summary("bound"))
    backups: int | None = _option(None, option_summary("backups"))
    group: int | None = _option(None, option_summary("group"))
    period: int | None = _option(None, f"local_sgd: {_MESH_OPTIONS['local_sgd']['period'].summary}.")
    correction: Correction = field(default="none", metadata={"description": CORRECTION_SUMMARY})
    server_shards: int = _option(1, SHARDS_SUMMARY)

    def __post_init__(self) -> None:
        checks.one_of("name", self.name, known_strategies())
        checks.text("policy", self.policy)
        checks.one_of("correction", self.correction, CORRECTIONS)
        checks.whole("server_shards", self.server_shards, 1)
        for key in (*policy_options(), "period"):
            if getattr(self, key, None) is not None and key not in self._options:
                raise BadInput(f"{key}: {self.label} has none; it is for {_owner(key)}")
        self.check()

    def check(self, workers: int | None = None) -> None:
        """Raises `BadInput` for an option that is missing or out of range, for so many workers where known."""
        for key, option in self._options.items():
            if self.numbers.get(key) is None:
                raise BadInput(f"{key}: {self.label} needs it")
            option.check(key, self.numbers[key], workers)
        if self.name == "ps":
            _ = self.server_policy

    @property
    def like(self) -> str:
        """The strategy of a run that computes and sends the same in a step."""
        return "ddp" if self.name in DDP_VARIANTS else self.name

    @property
    def needs_hardware(self) -> bool:
        return self.name != "ps" and not STRATEGIES[self.like].simulated

    @property
    def _options(self) -> dict[str, Option]:
        return read_options(self.name, self.policy)

    @property
    def numbers(self) -> dict[str, int | None]:
        """The values of the options that this strategy reads, as far as they are given."""
        spelled = parse_policy(self.policy)[1] if self.name == "ps" else {}
        return {key: spelled.get(key, getattr(self, key, None)) for key in self._options}

    @property
    def label(self) -> str:
        """A name that tells this strategy from its neighbours, such as `ps-ssp(3)`."""
        name = f"ps-{parse_policy(self.policy)[0].name}" if self.name == "ps" else self.name
        numbers = [str(value) for value in self.numbers.values() if value is not None]
        name += f"({','.join(numbers)})" if numbers else ""
        name += "" if self.correction == "none" else f"+{self.correction}"
        return name if self.server_shards == 1 else f"{name} x{self.server_shards}"

    @property
    def options(self) -> dict[str, Any]:
        """The options that this strategy reads."""
        server = {key: getattr(self, key) for key in _SERVER_OPTIONS} if self.name == "ps" else {}
        return {**self.numbers, **server}

    @property
    def server_policy(self) -> Policy:
        return make_policy(self.policy, **{key: getattr(self, key, None) for key in policy_options()})


def give_options(strategies: list[dict[str, Any]], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The strategies' tables with each option given to those that read it; raises `BadInput` if none does."""
    policy = options.get("policy", "async")
    completed, used = [], set()
    for strategy in strategies:
        name = strategy.get("name", "")
        reads = {*read_options(name, options.get("policy", strategy.get("policy", "async")))}
        reads |= {*_SERVER_OPTIONS} if name == "ps" else set()
        used |= reads
        completed.append(strategy | {key: value for key, value in options.items() if key in reads})
    for key in options:
        if key not in used:
            names = ", ".join(str(strategy.get("name")) for strategy in strategies)
            raise BadInput(f"{key}: nothing in {names} with policy {policy} has one; it is for {_owner(key)}")
    return completed


def _owner(key: str) -> str:
    """What reads an option."""
    policies = [row.name for row in SERVER_POLICIES.values() if key in row.options]
    meshes = [name for name, options in _MESH_OPTIONS.items() if key in options]
    if not policies:
        return ", or ".join(meshes) or "ps"
    return ", or ".join([*meshes, f"ps with policy {' or '.join(policies)}"])


def parse_strategy(values: Any, place: int) -> Strategy:
    """A strategy from a file's table."""
    if not isinstance(values, Mapping) or "name" not in values:
        raise BadInput(f"strategies[{place}]: expected a table with a name, not {values!r}")
    checks.refuse_unknown(values, [option.name for option in fields(Strategy)], f"strategies[{place}].")
    return Strategy(**values)
