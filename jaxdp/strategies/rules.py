"""What a rule is and the one that all built-in strategies share: which mesh axis cuts which dim (no JAX, no config).

A rule says, for every parameter, which mesh axis cuts which dim of the parameter and of its optimizer
state. The collectives, the memory, the cost and the checks are all derived from these `Specs`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxdp.parameter import PARAMETER_BYTES, Parameter

Spec = tuple[str | None, ...]  # an axis name, or None, for every dim

DATA_AXIS = "data"
HOST_AXIS = "host"


class Specs(NamedTuple):
    params: Spec
    optimizer: Spec


class ShardRule(Protocol):
    def __call__(self, parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs: ...


@dataclass(frozen=True, kw_only=True)
class RuleOptions:
    """What a user may set of a rule: leaves below `min_shard_bytes` stay whole; `shard_devices` make a shard group."""

    min_shard_bytes: int = 2**14
    shard_devices: int | None = None


class Cut(NamedTuple):
    """The mesh axis over which parameters are cut, and that for their optimizer state; None leaves them whole."""

    params: str | None = None
    optimizer: str | None = None


def cut_by(cut: Cut, options: RuleOptions) -> ShardRule:
    """The rule that cuts one dim of every leaf that is large enough."""

    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs:
        def spec(axis: str | None) -> Spec:
            if axis is None:
                return replicated(parameter.shape)
            return sharded(parameter, axis, axis_sizes[axis], options.min_shard_bytes)

        return Specs(spec(cut.params), spec(cut.optimizer))

    return rule


def replicated(shape: tuple[int, ...]) -> Spec:
    return (None,) * len(shape)


def sharded(parameter: Parameter, axis: str, size: int, min_shard_bytes: int) -> Spec:
    """Cuts the largest dim that `size` divides; a block's leaf never along its layers, so each block is cut evenly.

    A leaf that is too small or has no such dim stays replicated (the pre-flight check names the latter).
    """
    shape = parameter.shape
    if size == 1 or parameter.size * PARAMETER_BYTES < min_shard_bytes:
        return replicated(shape)
    first = 1 if parameter.in_blocks else 0
    dims = [dim for dim in range(first, len(shape)) if shape[dim] % size == 0]
    if not dims:
        return replicated(shape)
    cut = max(dims, key=lambda dim: (shape[dim], dim))
    return tuple(axis if dim == cut else None for dim in range(len(shape)))
