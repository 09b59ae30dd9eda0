"""What every device holds of every parameter: the rule's cuts turned into placements and bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxdp.config import Config, OptimConfig
from jaxdp.errors import BadInput
from jaxdp.parameter import PARAMETER_BYTES, Parameter
from jaxdp.strategies.flat_layout import flat_layout
from jaxdp.strategies.placement import Placement, place
from jaxdp.strategies.rules import DATA_AXIS, Cut, ShardRule
from jaxdp.workload import parameters


@dataclass(frozen=True)
class Leaf:
    """One parameter as a rule cuts it. `optimizer_slots` arrays lie as `optimizer` says."""

    parameter: Parameter
    cut: Cut
    params: Placement
    optimizer: Placement
    optimizer_slots: int

    @property
    def path(self) -> str:
        return self.parameter.path

    @property
    def shard_bytes(self) -> int:
        return math.prod(self.params.shard_shape) * PARAMETER_BYTES

    @property
    def gradient_shard_bytes(self) -> int:
        """A reduced gradient lies as the optimizer's state does."""
        return math.prod(self.optimizer.shard_shape) * PARAMETER_BYTES

    @property
    def padding_bytes(self) -> float:
        """A device's mean share of the zeros that fill its state up: parameter, gradient and optimizer."""
        arrays = ((self.params, 2), (self.optimizer, self.optimizer_slots))
        return PARAMETER_BYTES * sum(n * leaf.layers * leaf.padding / leaf.pieces for leaf, n in arrays)

    @property
    def optimizer_bytes(self) -> int:
        return self.optimizer_slots * self.parameter.bytes

    @property
    def optimizer_shard_bytes(self) -> int:
        return self.optimizer_slots * self.gradient_shard_bytes


class Shards(NamedTuple):
    """A mesh's axes and every leaf on it."""

    axes: Mapping[str, int]
    leaves: tuple[Leaf, ...]

    @property
    def state_bytes(self) -> int:
        """Of a device: parameters, gradients in their layout, and optimizer state."""
        return sum(2 * leaf.shard_bytes + leaf.optimizer_shard_bytes for leaf in self.leaves)

    @property
    def padding_bytes(self) -> int:
        """Of `state_bytes`, a device's mean share of padding, rounded up."""
        return math.ceil(sum(leaf.padding_bytes for leaf in self.leaves))


def optimizer_slots(optim: OptimConfig) -> int:
    """Optimizer arrays of a parameter's shape: two for AdamW, one for SGD with momentum, else none."""
    return 2 if optim.name == "adamw" else int(optim.momentum > 0)


def workers(config: Config, devices: int) -> int:
    """The independent trainers: one under a mesh strategy, else the parameter server's workers."""
    if config.strategy.name != "ps":
        return 1
    return config.server.workers or max(1, devices // config.server.devices_per_worker)


def mesh_config(config: Config) -> Config:
    """The config of one mesh: a parameter server's worker trains by `server.worker_strategy`."""
    if config.strategy.name != "ps":
        return config
    strategy = config.strategy.model_copy(update={"name": config.server.worker_strategy})
    return config.model_copy(update={"strategy": strategy})


def mesh_devices(config: Config, devices: int) -> int:
    return config.server.devices_per_worker if config.strategy.name == "ps" else devices


def shards(config: Config, devices: int, hosts: int = 1, rule: ShardRule | None = None) -> Shards:
    """Every leaf on the mesh of `devices`, by the strategy's rule or another.

    Under a parameter server it is one worker's mesh, whose optimizer state is the server's.
    """
    if devices < 1 or hosts < 1:
        raise BadInput(f"devices {devices}, hosts {hosts}: at least 1 of each is needed")
    held = 0 if config.strategy.name == "ps" else optimizer_slots(config.optim)
    devices, config = mesh_devices(config, devices), mesh_config(config)
    axes = config.strategy.axis_sizes(devices, hosts)
    rule = rule or config.strategy.rule
    if config.strategy.row.flat:
        outside = [parameter for parameter in parameters(config) if not parameter.in_blocks]
        flat = flat_layout(parameters(config), devices)
        blocks = Parameter("blocks", (flat.size,))
        return Shards(
            axes,
            (
                _leaf(blocks, lambda parameter, axis_sizes: Cut(DATA_AXIS, DATA_AXIS), axes, held),
                *(_leaf(parameter, rule, axes, held) for parameter in outside),
            ),
        )
    return Shards(axes, tuple(_leaf(parameter, rule, axes, held) for parameter in parameters(config)))


def _leaf(parameter: Parameter, rule: ShardRule, axes: Mapping[str, int], slots: int) -> Leaf:
    cut = rule(parameter, axes)
    return Leaf(parameter, cut, *place(parameter, cut, axes), slots)
