"""Server policies: when a parameter server applies pushes and whom it lets go on; and the corrections (no JAX).

A policy is a row: its options, and the `Policy` that the state machine (`server/core.py`) asks. n counts the workers
present, so a death lowers it. Modules outside the package register their own rows. A policy is spelled by its name,
its options beside it, or all in one: `ssp(bound=3)`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from jaxdp.errors import BadInput
from jaxdp.registry import Registry

Correction = Literal["none", "lr_over_staleness", "delay_compensation"]
CORRECTIONS: tuple[Correction, ...] = get_args(Correction)


def one_push(workers: int) -> int:
    return 1


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy reduced to what the state machine asks of it.

    `lockstep`: a push counts for one version only, and a worker computes each version at most once.
    `bound`: how many steps ahead of the slowest worker present a step may start; None is no limit.
    `needed(n)`: pushes in one update when n workers are present.
    """

    lockstep: bool = False
    bound: int | None = None
    needed: Callable[[int], int] = one_push

    @property
    def immediate(self) -> bool:
        """Whether each push is an update of its own."""
        return not self.lockstep and self.needed is one_push


@dataclass(frozen=True, kw_only=True)
class Option:
    """A whole number that a policy needs, from `least` to `most(workers)`."""

    summary: str
    least: int = 0
    most: Callable[[int], int] | None = None

    def check(self, key: str, value: object, workers: int | None = None) -> None:
        """Raises `BadInput` for a value out of range; without `workers` only the least is known."""
        if type(value) is not int or value < self.least:
            raise BadInput(f"{key}: expected a whole number from {self.least}, not {value}")
        if workers is not None and self.most is not None and value > self.most(workers):
            raise BadInput(f"{key}: {value} is too many for {workers} workers; at most {self.most(workers)}")


@dataclass(frozen=True, kw_only=True)
class ServerPolicy:
    name: str
    summary: str
    make: Callable[[Mapping[str, int]], Policy]
    options: Mapping[str, Option] = field(default_factory=dict)


def _sync(options: Mapping[str, int]) -> Policy:
    return Policy(lockstep=True, needed=lambda workers: workers)


def _ssp(options: Mapping[str, int]) -> Policy:
    return Policy(bound=options["bound"]) if options["bound"] else _sync(options)


def _backup(options: Mapping[str, int]) -> Policy:
    return Policy(lockstep=True, needed=lambda workers: max(1, workers - options["backups"]))


def _softsync(options: Mapping[str, int]) -> Policy:
    group = options["group"]
    return Policy() if group == 1 else Policy(needed=lambda workers: group)


SERVER_POLICIES = Registry(
    "server policy",
    [
        ServerPolicy(
            name="async",
            summary="every push is an update, and its worker goes on at once",
            make=lambda options: Policy(),
        ),
        ServerPolicy(
            name="ssp",
            summary="every push is an update; a worker waits when it is too far ahead (bound 0 is sync)",
            make=_ssp,
            options={"bound": Option(summary="steps that a worker may be ahead of the slowest")},
        ),
        ServerPolicy(
            name="sync",
            summary="an update is made of the pushes of all workers present, which wait for it",
            make=_sync,
        ),
        ServerPolicy(
            name="backup",
            summary="an update is made of the first n - backups pushes of a version; later ones are dropped",
            make=_backup,
            options={
                "backups": Option(
                    summary="late workers that a step does not wait for", most=lambda workers: workers - 1
                )
            },
        ),
        ServerPolicy(
            name="softsync",
            summary="an update is made of `group` pushes, whoever sent them; workers go on at once",
            make=_softsync,
            options={"group": Option(summary="pushes per update", least=1, most=lambda workers: workers)},
        ),
    ],
)


# The server's keys that a run's config and a simulation share.
POLICY_SUMMARY = f"When pushes are applied: {', '.join(SERVER_POLICIES)}."
CORRECTION_SUMMARY = "What is done about stale gradients."
SHARDS_SUMMARY = "Parts that the server is split into."


def policy_options() -> dict[str, Option]:
    """The options of all policies by name; policies may share one."""
    return {key: option for row in SERVER_POLICIES.values() for key, option in row.options.items()}


def option_summary(key: str) -> str:
    """An option's help: the policies that have it, and what it is."""
    return f"{', '.join(_owners(key))}: {policy_options()[key].summary}."


def parse_policy(text: str) -> tuple[ServerPolicy, dict[str, int]]:
    """The row of `name` or `name(option=value,...)`, and the values it spells; raises `BadInput`."""
    match = re.fullmatch(r"(\w+)(?:\(((?:\w+=-?\d+)(?:,\w+=-?\d+)*)?\))?", text.replace(" ", ""))
    try:
        row = SERVER_POLICIES[match[1] if match else text.partition("(")[0]]
    except BadInput as error:
        raise BadInput(f"policy: {error}") from None
    if match is None:
        usage = ",".join(f"{key}=..." for key in row.options)
        raise BadInput(f"policy: {text}: expected {row.name}{f'({usage})' if usage else ''}")
    pairs = (pair.split("=") for pair in (match[2] or "").split(",") if pair)
    return row, {key: int(value) for key, value in pairs}


def make_policy(text: str, *, workers: int | None = None, **options: int | None) -> Policy:
    """The policy of a spelling and of options given beside it (None: not given).

    Raises `BadInput` for an option that is missing, not the policy's, or out of range (for `workers`, where known).
    """
    row, spelled = parse_policy(text)
    beside = {key: value for key, value in options.items() if value is not None}
    for key in beside.keys() & spelled.keys():
        raise BadInput(f"{key}: policy {text!r} says it already; leave one of them out")
    values = {**spelled, **beside}
    for key in values.keys() - row.options.keys():
        owners = _owners(key)
        remedy = f"use policy={owners[0]}" if owners else f"known: {', '.join(row.options) or 'none'}"
        raise BadInput(f"{key}: policy {row.name!r} has none; {remedy}")
    for key, option in row.options.items():
        if key not in values:
            raise BadInput(f"{key}: policy {row.name!r} needs it")
        option.check(key, values[key], workers)
    return row.make(values)


def learning_rate_scale(correction: Correction, staleness: float) -> float:
    """The factor on the learning rate of an update of this mean staleness.

    `lr_over_staleness` divides by the mean staleness once it exceeds one (Zhang et al., arXiv 1511.05950).
    """
    return 1.0 / staleness if correction == "lr_over_staleness" and staleness > 1 else 1.0


def _owners(key: str) -> list[str]:
    return [row.name for row in SERVER_POLICIES.values() if key in row.options]
