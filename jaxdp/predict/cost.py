"""Seconds of a training step under every strategy: computing, communication that shows, and waiting for others.

The overlap is that of the program as built (`mesh.step`): reductions after the last microbatch overlap
nothing; a block's gather overlaps the block before it, where the hardware runs both at once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxdp.config import Config
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.compute import (
    COMPUTE_BYTES,
    Rates,
    block_seconds,
    block_work,
    compute_dtype,
    head_work,
    rates,
    update_bytes,
)
from jaxdp.predict.hardware import Hardware, HostGroup
from jaxdp.predict.sharding import optimizer_slots, shards
from jaxdp.predict.traffic import Phases, phases
from jaxdp.workload import units_per_batch

if TYPE_CHECKING:
    from jaxdp.stragglers.delays import Delays


@dataclass(frozen=True)
class Computing:
    """Seconds of one device's parts of a step; `layers` blocks a microbatch."""

    block_forward_s: float
    block_backward_s: float
    head_s: float
    update_s: float
    layers: int
    microbatches: int

    @property
    def total_s(self) -> float:
        blocks = self.layers * (self.block_forward_s + self.block_backward_s)
        return self.microbatches * (blocks + self.head_s) + self.update_s

    def slower(self, factor: float) -> "Computing":
        return Computing(
            self.block_forward_s * factor,
            self.block_backward_s * factor,
            self.head_s * factor,
            self.update_s * factor,
            self.layers,
            self.microbatches,
        )


@dataclass(frozen=True)
class StepCost:
    """Mean seconds of a step (one global batch of tokens, whatever the strategy), and what a device sends in it."""

    compute_s: float
    exposed_communication_s: float
    waiting_s: float
    moved_bytes: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_communication_s + self.waiting_s


def computing(config: Config, group: HostGroup, hardware: Hardware, tokens_per_device: float) -> Computing:
    """One device's computing when it takes `tokens_per_device` of the global batch."""
    dtype = compute_dtype(config, group)
    device, value_bytes = rates(group, dtype), COMPUTE_BYTES[dtype]
    model, train = config.model, config.train
    tokens = tokens_per_device / train.accumulation
    forward, backward = block_work(model, tokens, train.remat, value_bytes, device.activation_passes)
    floor = {"none": 2, "dots": 2.5, "block": 3}[train.remat]
    return Computing(
        block_forward_s=block_seconds(forward, device, 1 / 3),
        block_backward_s=block_seconds(backward, device, floor / 3),
        head_s=head_work(model, tokens, value_bytes, device.activation_passes).seconds(device),
        update_s=_update_s(config, device, hardware),
        layers=model.layers,
        microbatches=train.accumulation,
    )


def _update_s(config: Config, device: Rates, hardware: Hardware) -> float:
    """The optimizer's pass over what the device holds of its state; a server's worker has none."""
    if config.strategy.name == "ps":
        return 0.0
    placed = shards(config, hardware.devices, hardware.hosts)
    held = sum(leaf.gradient_shard_bytes for leaf in placed.leaves) / PARAMETER_BYTES
    return update_bytes(held, optimizer_slots(config.optim)) / device.memory_bandwidth


def exposed_seconds(work: Computing, comm: Phases, overlaps: bool) -> float:
    """Communication that no computing hides.

    Forward: the first gather, then for each next block what its gather takes longer than the block before.
    Backward: the same with a scatter beside every gather, and the last scatter. Gathers and scatters outside
    the blocks, and everything after the last microbatch, show whole.
    """
    gather, scatter, blocks = comm.block_gather_s, comm.block_scatter_s, work.layers
    if overlaps:
        forward = gather + (blocks - 1) * max(0.0, gather - work.block_forward_s)
        backward = gather + (blocks - 1) * max(0.0, gather + scatter - work.block_backward_s) + scatter
    else:
        forward, backward = blocks * gather, blocks * (gather + scatter)
    outside = comm.outer_gather_s + comm.outer_scatter_s
    return work.microbatches * (forward + backward + outside) + comm.end_s


def mesh_cost(
    config: Config, hardware: Hardware, delays: "Delays | None" = None, proportional: bool = False
) -> StepCost:
    """A step of a mesh strategy, at whose end all wait for the slowest.

    `proportional` gives every device work in proportion to its mean speed, so that only chance makes them wait.
    """
    mean_s, slowest_s = barrier_seconds(device_seconds(config, hardware), delays, proportional)
    comm = communication(config, hardware, slowest_s, delays)
    return StepCost(mean_s, comm.exposed_s, max(0.0, slowest_s - mean_s), comm.moved_bytes)


class Communication(NamedTuple):
    """What a device sends in a step, and the seconds of it that no computing hides."""

    exposed_s: float
    moved_bytes: float


def communication(
    config: Config, hardware: Hardware, slowest_s: float, delays: "Delays | None" = None
) -> Communication:
    """A mesh strategy's, in a step whose slowest device computes for `slowest_s`.

    It decides, and hides more of its communication behind its longer computing.
    """
    reference = computing(config, hardware.groups[0], hardware, _tokens_per_device(config, hardware))
    stretched = reference.slower(slowest_s / reference.total_s)
    divisor = max(map(delays.bandwidth_divisor, range(hardware.devices))) if delays else 1.0
    comm = phases(config, hardware, compute_dtype(config, hardware.groups[0]), divisor)
    exposed = exposed_seconds(stretched, comm, all(group.overlaps for group in hardware.groups))
    return Communication(exposed, comm.moved_bytes)


def device_seconds(config: Config, hardware: Hardware) -> list[float]:
    """Seconds that each device computes in a step, when all take the same number of tokens."""
    tokens = _tokens_per_device(config, hardware)
    seconds: list[float] = []
    for group in hardware.groups:
        alone = computing(config, group, hardware, tokens).total_s
        seconds += [alone / speed for speed in group.speeds or (1.0,) * group.devices] * group.count
    return seconds


def barrier_seconds(
    alone: list[float], delays: "Delays | None" = None, proportional: bool = False
) -> tuple[float, float]:
    """(mean over devices, the slowest's) seconds of a step's computing that all begin together."""
    if proportional:
        means = alone if not delays else [float(s) for s in delays.expected(len(alone), _array(alone)).worker_s]
        equal = len(means) / sum(1 / mean for mean in means)
        alone = [own * equal / mean for own, mean in zip(alone, means, strict=True)]
    if not delays:
        return sum(alone) / len(alone), max(alone)
    found = delays.expected(len(alone), _array(alone))
    return float(found.worker_s.mean()), found.slowest_s


def _array(values: list[float]) -> Any:
    import numpy as np

    return np.array(values)


def _tokens_per_device(config: Config, hardware: Hardware) -> float:
    return units_per_batch(config) / hardware.devices
