"""The whole difference between DDP, ZeRO-1, FSDP and HSDP: one rule each (no JAX).

A rule says, for every parameter, which mesh axis cuts which dim of the parameter and of its optimizer
state. The collectives, the memory, the cost and the checks are all derived from these `Specs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from jaxdp.config import StrategyConfig
from jaxdp.parameter import PARAMETER_BYTES, Parameter

Spec = tuple[str | None, ...]  # an axis name, or None, for every dim

DATA_AXIS = "data"
HOST_AXIS = "host"


class Specs(NamedTuple):
    params: Spec
    optimizer: Spec


class ShardRule(Protocol):
    def __call__(self, parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs: ...


@dataclass(frozen=True)
class Strategy:
    """A row of the registry: the mesh axes for a number of devices, and the rule."""

    name: str
    summary: str
    axis_sizes: Callable[[int, int], dict[str, int]]  # (devices, devices in a shard group) -> sizes
    rule: Callable[[StrategyConfig], ShardRule]


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


def _ddp(config: StrategyConfig) -> ShardRule:
    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs:
        return Specs(replicated(parameter.shape), replicated(parameter.shape))

    return rule


def _zero1(config: StrategyConfig) -> ShardRule:
    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs:
        cut = sharded(parameter, DATA_AXIS, axis_sizes[DATA_AXIS], config.min_shard_bytes)
        return Specs(replicated(parameter.shape), cut)

    return rule


def _fsdp(config: StrategyConfig) -> ShardRule:
    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Specs:
        cut = sharded(parameter, DATA_AXIS, axis_sizes[DATA_AXIS], config.min_shard_bytes)
        return Specs(cut, cut)

    return rule


def _one_axis(devices: int, group: int) -> dict[str, int]:
    return {DATA_AXIS: devices}


def _two_axes(devices: int, group: int) -> dict[str, int]:
    return {HOST_AXIS: devices // group, DATA_AXIS: group}


STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        Strategy("ddp", "a full copy on every device", _one_axis, _ddp),
        Strategy("zero1", "full parameters, sharded optimizer state", _one_axis, _zero1),
        Strategy("fsdp", "everything sharded within each block", _one_axis, _fsdp),
        Strategy("hsdp", "sharded inside a group of devices, replicated across groups", _two_axes, _fsdp),
    )
}


def shard_group(config: StrategyConfig, devices: int, hosts: int) -> int:
    """HSDP's devices in a shard group: as configured, else a host's, else half of a single host's."""
    if config.shard_devices is not None:
        return config.shard_devices
    return max(1, devices // hosts if hosts > 1 else devices // 2)


def axis_sizes(config: StrategyConfig, devices: int, hosts: int = 1) -> dict[str, int]:
    """The mesh's axes and their sizes, outermost first."""
    return STRATEGIES[config.name].axis_sizes(devices, shard_group(config, devices, hosts))
