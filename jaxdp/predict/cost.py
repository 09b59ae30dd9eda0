"""Seconds of a training step under every strategy: computing, communication that shows, and waiting for others.

The overlap is that of the program as built (`mesh.step`): reductions after the last microbatch overlap
nothing; a block's gather overlaps the block before it, where the hardware runs both at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxdp.config import Config
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.calibrated.rates import OWN_STACK
from jaxdp.predict.compute import (
    COMPUTE_BYTES,
    block_forward_flops,
    block_work,
    compute_dtype,
    head_work,
    rates,
    update_bytes,
)
from jaxdp.predict.hardware import Hardware, HostGroup
from jaxdp.predict.network import COLLECTIVES
from jaxdp.predict.sharding import optimizer_slots, shards
from jaxdp.predict.stack import device_work, run_of, stack_step
from jaxdp.predict.traffic import Phases, phases
from jaxdp.workload import units_per_batch

if TYPE_CHECKING:
    from jaxdp.stragglers.delays import Delays


ADDED = 3  # of gradients with several microbatches: the new one and the sum read, the sum written


@dataclass(frozen=True)
class Computing:
    """Seconds of one device's parts of a step; `layers` blocks a microbatch.

    `split` has those of the whole step by what they are spent on.
    """

    block_forward_s: float
    block_backward_s: float
    head_s: float
    update_s: float
    layers: int
    microbatches: int
    split: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        blocks = self.layers * (self.block_forward_s + self.block_backward_s)
        return self.microbatches * (blocks + self.head_s) + self.update_s

    def slower(self, factor: float) -> "Computing":
        return replace(
            self,
            block_forward_s=self.block_forward_s * factor,
            block_backward_s=self.block_backward_s * factor,
            head_s=self.head_s * factor,
            update_s=self.update_s * factor,
            split={name: seconds * factor for name, seconds in self.split.items()},
        )


@dataclass(frozen=True)
class StepCost:
    """Mean seconds of a step (one global batch of tokens, whatever the strategy), and what a device sends in it.

    `parts` are the same seconds by what they are spent on: kinds of computing, of communication that shows, waiting.
    """

    compute_s: float
    exposed_communication_s: float
    waiting_s: float
    moved_bytes: float
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_communication_s + self.waiting_s


def computing(config: Config, group: HostGroup, hardware: Hardware, tokens_per_device: float) -> Computing:
    """One device's computing when it takes `tokens_per_device` of the global batch.

    At calibrated rates on a preset, else by a roofline of what was measured.
    """
    layers, times = config.model.layers, config.train.accumulation
    if group.device:
        done = device_work(run_of(config, group, hardware, tokens_per_device), group, hardware)
        own = hardware.stack == OWN_STACK
        update_s = _update_s(config, _memory_rate(group), hardware) if own else done.update
        made = Computing(done.forward, done.backward, done.head, update_s, layers, times, done.split)
        made = replace(made, split={**done.split, "update": update_s})
        return made.slower(1 / group.efficiency)
    return _roofline(config, group, hardware, tokens_per_device)


def _roofline(config: Config, group: HostGroup, hardware: Hardware, tokens_per_device: float) -> Computing:
    dtype = compute_dtype(config, group)
    device, value_bytes = rates(group, dtype), COMPUTE_BYTES[dtype]
    model, train = config.model, config.train
    tokens, layers, times = tokens_per_device / train.accumulation, model.layers, train.accumulation
    passes = device.activation_passes
    forward, backward = block_work(model, tokens, train.remat, value_bytes, passes)
    once, twice = block_work(model, tokens, "none", value_bytes, passes)
    head_s = head_work(model, tokens, value_bytes, passes).seconds(device)
    update_s = _update_s(config, device.memory_bandwidth, hardware)
    products, attention = (
        3 * flops / device.matmul_flops for flops in block_forward_flops(model, tokens)
    )  # forward and twice backward
    split = {
        "products": times * layers * products,
        "attention": times * layers * attention,
        "traffic": times * layers * (once.seconds(device) + twice.seconds(device) - products - attention),
        "head": times * head_s,
        "recomputation": times * layers * (backward.seconds(device) - twice.seconds(device)),
        "update": update_s,
    }
    return Computing(forward.seconds(device), backward.seconds(device), head_s, update_s, layers, times, split)


def _memory_rate(group: HostGroup) -> float:
    return group.memory_bandwidth * group.rates.memory


def _update_s(config: Config, memory_bandwidth: float, hardware: Hardware) -> float:
    """The optimizer's pass over what the device holds of its state, and adding up the microbatches' gradients.

    A server's worker has no optimizer.
    """
    placed, times = shards(config, hardware.devices, hardware.hosts), config.train.accumulation
    summed = sum(leaf.shard_bytes for leaf in placed.leaves) * ADDED if times > 1 else 0
    held = sum(leaf.gradient_shard_bytes for leaf in placed.leaves) / PARAMETER_BYTES
    update = 0.0 if config.strategy.name == "ps" else update_bytes(held, optimizer_slots(config.optim))
    return (update + times * summed) / memory_bandwidth


def exposed_seconds(work: Computing, comm: Phases, overlaps: bool) -> float:
    """Communication that no computing hides."""
    return sum(exposed_parts(work, comm, overlaps).values())


def exposed_parts(work: Computing, comm: Phases, overlaps: bool) -> dict[str, float]:
    """What shows of each kind of communication.

    Forward: the first gather, then for each next block what its gather takes longer than the block before.
    Backward: the same with a scatter beside every gather, and the last scatter. Gathers and scatters outside
    the blocks, and everything after the last microbatch, show whole.
    """
    gather, scatter, blocks, times = comm.block_gather_s, comm.block_scatter_s, work.layers, work.microbatches
    if overlaps:
        forward = gather + (blocks - 1) * max(0.0, gather - work.block_forward_s)
        late = (blocks - 1) * max(0.0, gather + scatter - work.block_backward_s)
        share = gather / (gather + scatter) if gather + scatter else 0.0
        backward_gather, backward_scatter = gather + share * late, scatter + (1 - share) * late
    else:
        forward, backward_gather, backward_scatter = blocks * gather, blocks * gather, blocks * scatter
    shown = {
        "all-gather": times * (forward + backward_gather + comm.outer_gather_s),
        "reduce-scatter": times * (backward_scatter + comm.outer_scatter_s),
    }
    end = comm.end_by_kind or {"all-reduce": comm.end_s}
    return {kind: shown.get(kind, 0.0) + end.get(kind, 0.0) for kind in COLLECTIVES}


def mesh_cost(
    config: Config, hardware: Hardware, delays: "Delays | None" = None, proportional: bool = False
) -> StepCost:
    """A step of a mesh strategy, at whose end all wait for the slowest.

    `proportional` gives every device work in proportion to its mean speed, so that only chance makes them wait.
    """
    mean_s, slowest_s = barrier_seconds(device_seconds(config, hardware), delays, proportional)
    comm = communication(config, hardware, slowest_s, delays)
    waiting_s = comm.waiting_s + max(0.0, slowest_s - mean_s)
    reference = computing(config, hardware.groups[0], hardware, _tokens_per_device(config, hardware))
    split = reference.slower(mean_s / reference.total_s).split
    parts = {**split, **comm.shown, "waiting": waiting_s}
    return StepCost(mean_s, comm.exposed_s, waiting_s, comm.moved_bytes, parts)


class Communication(NamedTuple):
    """What a device sends in a step, the seconds of each kind of it that no computing hides, and of jitter with it."""

    shown: Mapping[str, float]
    waiting_s: float
    moved_bytes: float

    @property
    def exposed_s(self) -> float:
        return sum(self.shown.values())


def communication(
    config: Config, hardware: Hardware, slowest_s: float, delays: "Delays | None" = None
) -> Communication:
    """A mesh strategy's, in a step whose slowest device computes for `slowest_s`.

    It decides, and hides more of its communication behind its longer computing.
    """
    tokens = _tokens_per_device(config, hardware)
    reference = computing(config, hardware.groups[0], hardware, tokens)
    slower = slowest_s / reference.total_s
    divisor = max(map(delays.bandwidth_divisor, range(hardware.devices))) if delays else 1.0
    comm = phases(config, hardware, compute_dtype(config, hardware.groups[0]), divisor)
    if hardware.stack != OWN_STACK:
        step = stack_step(config, hardware, tokens, slower, divisor)
        shown = {"all-gather": step.gather, "reduce-scatter": step.scatter, "all-reduce": step.reduce}
        return Communication(shown, step.waiting, comm.moved_bytes)
    overlaps = all(group.overlaps for group in hardware.groups)
    return Communication(exposed_parts(reference.slower(slower), comm, overlaps), 0.0, comm.moved_bytes)


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
