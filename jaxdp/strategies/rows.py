"""The whole difference between DDP, ZeRO-1, FSDP, HSDP and the others: a row each (no JAX, no config).

A module outside the package adds its own with `register`. Everything else is derived from the rows: config choices,
help, layouts, train steps, plans of collectives, memory, checks, advice, the simulator's names and the order of
reports. Rows stand from the simplest strategy to the least simple: the adviser takes a later one only for its gain.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxdp.registry import Registry
from jaxdp.strategies.rules import DATA_AXIS, HOST_AXIS, Cut, RuleOptions, ShardRule, cut_by
from jaxdp.strategies.volume import Step, ddp_bytes, fsdp_bytes, server_bytes, zero1_bytes


def one_axis(devices: int, group: int) -> dict[str, int]:
    return {DATA_AXIS: devices}


def host_and_data_axes(devices: int, group: int) -> dict[str, int]:
    return {HOST_AXIS: devices // group, DATA_AXIS: group}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to share the work.

    `cut` is what it means to shard, over which axis; None where the devices make no mesh (the parameter server).
    `axes` gives the mesh's axes, outermost first, for (devices, devices in a shard group). `least_bytes` is its own
    closed formula for what a device sends in a step, derived neither from the rule nor from the plan. `rule` may cut
    single leaves otherwise. `options` are the keys of `[strategy]` that it reads.

    `in_worker`: a parameter server's worker may train so inside itself. `simulated`: `jaxdp sim` knows it, by what
    it must send. `flat`: its blocks are one vector. `exhibit`: it is there to be shown, so that neither advice nor
    "all" takes it unasked.
    """

    name: str
    summary: str
    cut: Cut | None
    least_bytes: Callable[[Step], float]
    axes: Callable[[int, int], Mapping[str, int]] = one_axis
    rule: Callable[[Cut, RuleOptions], ShardRule] = cut_by
    options: tuple[str, ...] = ()
    in_worker: bool = False
    simulated: bool = False
    flat: bool = False
    exhibit: bool = False

    def shard_rule(self, options: RuleOptions) -> ShardRule:
        assert self.cut is not None, f"{self.name} makes no mesh"
        return self.rule(self.cut, options)

    def axis_sizes(self, options: RuleOptions, devices: int, hosts: int = 1) -> dict[str, int]:
        """The mesh's axes and their sizes, outermost first."""
        return dict(self.axes(devices, shard_group(options, devices, hosts)))

    def makes_mesh(self, options: RuleOptions, devices: int, hosts: int = 1) -> bool:
        """Whether its axes come out on so many devices."""
        return math.prod(self.axis_sizes(options, devices, hosts).values()) == devices

    @property
    def shards_parameters(self) -> bool:
        return self.cut is not None and self.cut.params is not None


def shard_group(options: RuleOptions, devices: int, hosts: int = 1) -> int:
    """Devices in a shard group: as set, else a host's, else half of a single host's."""
    if options.shard_devices is not None:
        return options.shard_devices
    return max(1, devices // hosts if hosts > 1 else devices // 2)


_EVERYTHING = Cut(params=DATA_AXIS, optimizer=DATA_AXIS)

STRATEGIES: Registry[Strategy] = Registry(
    "strategy",
    (
        Strategy(
            name="ddp",
            summary="a full copy on every device",
            cut=Cut(),
            options=("reduce",),
            least_bytes=ddp_bytes,
            in_worker=True,
            simulated=True,
        ),
        Strategy(
            name="zero1",
            summary="full parameters, sharded optimizer state",
            cut=Cut(optimizer=DATA_AXIS),
            least_bytes=zero1_bytes,
            options=("min_shard_bytes",),
            in_worker=True,
            simulated=True,
        ),
        Strategy(
            name="fsdp",
            summary="everything sharded within each block",
            cut=_EVERYTHING,
            least_bytes=fsdp_bytes,
            options=("min_shard_bytes", "round_latency_s"),
            in_worker=True,
            simulated=True,
        ),
        Strategy(
            name="hsdp",
            summary="sharded inside a group of devices, replicated across groups",
            cut=_EVERYTHING,
            least_bytes=fsdp_bytes,
            axes=host_and_data_axes,
            options=("min_shard_bytes", "shard_devices", "round_latency_s", "reduce"),
        ),
        Strategy(
            name="fsdp_flat",
            summary="all blocks as one vector, cut wherever the cuts fall: shows what a boundary inside a block costs",
            cut=_EVERYTHING,
            least_bytes=fsdp_bytes,
            options=("min_shard_bytes", "round_latency_s"),
            flat=True,
            exhibit=True,
        ),
        Strategy(
            name="ps",
            summary="a parameter server: workers pull parameters and push gradients",
            cut=None,
            least_bytes=server_bytes,
        ),
    ),
)
register = STRATEGIES.register


def mesh_strategies() -> list[str]:
    """The names of those that make a mesh of the devices."""
    return [row.name for row in STRATEGIES.values() if row.cut is not None]


def all_strategies() -> list[str]:
    """What "all" means: every one but the exhibits."""
    return [row.name for row in STRATEGIES.values() if not row.exhibit]


def worker_strategies() -> list[str]:
    return [row.name for row in STRATEGIES.values() if row.in_worker]


def canonical(name: str, unit: str | None) -> str:
    """The flat unit by its own name, where it is spelled as a unit of FSDP."""
    return "fsdp_flat" if (name, unit) == ("fsdp", "flat") else name
