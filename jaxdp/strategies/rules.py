"""What a rule is and the one that all built-in strategies share: which mesh axis cuts a leaf (no JAX, no config).

A rule says, for every parameter, which mesh axis cuts it and which cuts its optimizer state. How a leaf is then
stored, the collectives, the memory, the cost and the checks are all derived from these `Cut`s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxdp.parameter import Parameter

DATA_AXIS = "data"
HOST_AXIS = "host"


class Cut(NamedTuple):
    """The mesh axis over which parameters are cut, and that for their optimizer state; None leaves them whole.

    The optimizer state of a parameter that is cut lies beside its shards: both axes are then the same.
    """

    params: str | None = None
    optimizer: str | None = None


class ShardRule(Protocol):
    def __call__(self, parameter: Parameter, axis_sizes: Mapping[str, int]) -> Cut: ...


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """What a user may set of a rule: leaves below `min_shard_bytes` stay whole; `shard_devices` make a shard group."""

    min_shard_bytes: int = 2**14
    shard_devices: int | None = None


def cut_by(cut: Cut, options: RuleOptions) -> ShardRule:
    """The rule that cuts every leaf that is large enough, whatever its shape and the number of devices."""

    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Cut:
        return Cut() if parameter.bytes < options.min_shard_bytes else cut

    return rule
