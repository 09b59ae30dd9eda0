"""One strategy on one cluster: whether it fits, what a step costs, and what binds it."""

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxdp.config import Config
from jaxdp.models.shapes import train_flops_per_token
from jaxdp.predict.calibrated.rates import OWN_STACK
from jaxdp.predict.compute import compute_dtype
from jaxdp.predict.cost import StepCost, mesh_cost
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.memory import Memory, memory
from jaxdp.predict.server_cost import server, server_cost
from jaxdp.predict.sharding import mesh_devices, workers
from jaxdp.predict.stack import STACK_STRATEGIES, stack_memory
from jaxdp.strategies.rows import STRATEGIES, Strategy
from jaxdp.units import bytes_text
from jaxdp.workload import units_per_batch

if TYPE_CHECKING:
    from jaxdp.stragglers.delays import Delays

PROPORTIONAL = "ddp, work by speed"


@dataclass(frozen=True)
class Row:
    """A strategy's prediction. `runs`: jaxdp can run it as it stands; else it is there for comparison only."""

    strategy: str
    runs: bool
    fits: bool
    memory: Memory
    usable_bytes: int
    accumulation: int
    global_batch: int
    cost: StepCost
    tokens_per_second: float
    bottleneck: str
    mfu_percent: float | None  # None where the devices' peak is not known

    def to_json(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "runs": self.runs,
            "fits": self.fits,
            "bytes_per_device": self.memory.total,
            "usable_bytes_per_device": self.usable_bytes,
            "memory": asdict(self.memory),
            "accumulation": self.accumulation,
            "global_batch": self.global_batch,
            "step_time_s": {
                "compute": self.cost.compute_s,
                "exposed_communication": self.cost.exposed_communication_s,
                "waiting": self.cost.waiting_s,
                "total": self.cost.total_s,
            },
            "step_parts_s": dict(self.cost.parts),
            "tokens_per_second": self.tokens_per_second,
            "mfu_percent": self.mfu_percent,
            "bytes_sent_per_device": self.cost.moved_bytes,
            "bottleneck": self.bottleneck,
        }


def with_strategy(config: Config, name: str) -> Config:
    return config.model_copy(update={"strategy": config.strategy.model_copy(update={"name": name})})


def possible(config: Config, hardware: Hardware) -> list[str]:
    """The strategies that these devices allow, from the simplest on; exhibits only where the config names them."""
    candidates = [row for row in STRATEGIES.values() if not row.exhibit or row.name == config.strategy.name]
    if hardware.stack != OWN_STACK:
        candidates = [row for row in candidates if row.name in STACK_STRATEGIES]
    return [row.name for row in candidates if _possible(row, config, hardware)]


def _possible(row: Strategy, config: Config, hardware: Hardware) -> bool:
    """On a mesh of several axes each must have more than one device: with fewer it is a simpler strategy."""
    if row.cut is None:
        enough = workers(with_strategy(config, row.name), hardware.devices) * config.server.devices_per_worker
        return 1 < enough <= hardware.devices
    sizes = row.axis_sizes(config.strategy.options, hardware.devices, hardware.hosts).values()
    return math.prod(sizes) == hardware.devices and (len(sizes) == 1 or min(sizes) > 1)


def evaluate(
    config: Config, hardware: Hardware, name: str, delays: "Delays | None" = None, proportional: bool = False
) -> Row:
    """Predicts a strategy as it would be run (`as_run`)."""
    config, needed = as_run(config, hardware, name)
    usable = hardware.usable_bytes
    mesh = name != "ps"
    cost = mesh_cost(config, hardware, delays, proportional) if mesh else server_cost(config, hardware, delays)
    fits = needed.total <= usable
    return Row(
        strategy=PROPORTIONAL if proportional else name,
        runs=not proportional,
        fits=fits,
        memory=needed,
        usable_bytes=usable,
        accumulation=config.train.accumulation,
        global_batch=config.train.global_batch,
        cost=cost,
        tokens_per_second=units_per_batch(config) / cost.total_s,
        bottleneck=_bottleneck(config, hardware, cost) if fits else _too_large(needed, usable),
        mfu_percent=_mfu_percent(config, hardware, units_per_batch(config) / cost.total_s),
    )


def _mfu_percent(config: Config, hardware: Hardware, tokens_per_second: float) -> float | None:
    """Of the bfloat16 peaks, causal attention counted whole, as `jaxdp bench` has it; None without a data sheet."""
    if not hardware.calibrated:
        return None
    peak = sum(group.flops * group.total_devices for group in hardware.groups)
    return 100 * train_flops_per_token(config.model) * tokens_per_second / peak


def as_run(config: Config, hardware: Hardware, name: str) -> tuple[Config, Memory]:
    """The config under a strategy with as many microbatches as make it fit, at least its own number, and its memory.

    A global batch that the devices don't divide is rounded up to one that they do.
    """
    return _fitting(_whole_batch(with_strategy(config, name), hardware.devices), hardware, hardware.usable_bytes)


def _whole_batch(config: Config, devices: int) -> Config:
    whole = workers(config, devices) * mesh_devices(config, devices) * config.train.accumulation
    batch = -(-config.train.global_batch // whole) * whole
    return config.model_copy(update={"train": config.train.model_copy(update={"global_batch": batch})})


def _fitting(config: Config, hardware: Hardware, usable: int) -> tuple[Config, Memory]:
    """The fewest microbatches, from the configured number on, whose memory is usable; else the most there can be."""
    sharers = workers(config, hardware.devices) * mesh_devices(config, hardware.devices)
    each, first = config.train.global_batch // sharers, config.train.accumulation
    needed = None
    for parts in (k for k in range(first, each + 1) if each % k == 0 and k % first == 0):
        train = config.train.model_copy(update={"accumulation": parts})
        config = config.model_copy(update={"train": train})
        needed = hardware_memory(config, hardware)
        if needed.total <= usable:
            break
    assert needed is not None
    return config, needed


def hardware_memory(config: Config, hardware: Hardware) -> Memory:
    """What the step needs on each device of a cluster."""
    group = hardware.groups[0]
    if hardware.stack != OWN_STACK:
        return stack_memory(config, hardware, units_per_batch(config) / hardware.devices)
    return memory(config, hardware.devices, hardware.hosts, compute_dtype(config, group), group.platform)


def _too_large(needed: Memory, usable: int) -> str:
    parts = {"state": needed.state, "activations and gathered parameters": needed.activations}
    largest = max(parts, key=lambda part: parts[part])
    return (
        f"memory: needs {bytes_text(needed.total)} per device of {bytes_text(usable)} usable,"
        f" {bytes_text(parts[largest])} of it {largest}"
    )


def _bottleneck(config: Config, hardware: Hardware, cost: StepCost) -> str:
    network = "the network between hosts" if hardware.domains > 1 else "the links inside the host"
    if config.strategy.name == "ps":
        shared = server(config, hardware)
        sending = shared.message_bytes / shared.bandwidth
        what = "network" if sending > shared.apply_s else "applying of updates"
        waiting = f"the server: its {what} holds the workers up for"
    else:
        waiting = "the slowest device: the others wait for it for"
    shares = {
        "computing: it takes": cost.compute_s,
        f"communication over {network}: it shows for": cost.exposed_communication_s,
        waiting: cost.waiting_s,
    }
    largest = max(shares, key=lambda part: shares[part])
    return f"{largest} {shares[largest] / cost.total_s:.0%} of the step"


def scaled_links(hardware: Hardware, factor: float) -> Hardware:
    """The same devices with every link faster or slower."""
    groups = (
        replace(group.with_faster_nic(factor), intra_bandwidth=group.intra_bandwidth * factor)
        for group in hardware.groups
    )
    return replace(hardware, groups=tuple(groups))
