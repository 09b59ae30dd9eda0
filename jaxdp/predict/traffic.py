"""When a step communicates: the planned collectives grouped by where they stand in the program, and their times."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxdp.config import Config
from jaxdp.predict.compute import COMPUTE_BYTES
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.network import Link, two_level_all_reduce, two_level_pass
from jaxdp.predict.sharding import Shards, mesh_config, shards
from jaxdp.strategies.collectives import SUM, Planned, moved_bytes, plan
from jaxdp.strategies.flat_layout import flat_layout
from jaxdp.strategies.flat_plan import FETCH, RETURN, plan_flat
from jaxdp.strategies.rules import DATA_AXIS
from jaxdp.workload import parameters, reduces_by_block

FLAT_PURPOSES = {FETCH: "block_gather", RETURN: "block_scatter"}


@dataclass(frozen=True)
class Phases:
    """Seconds of communication in each part of a step, if nothing overlapped it.

    `block_gather` and `block_scatter` are one block's in one pass, `outer_*` embedding's and head's in one
    microbatch, `end` what follows the last microbatch, in all and by kind. `moved_bytes` is what a device sends in a
    whole step.
    """

    block_gather_s: float = 0.0
    block_scatter_s: float = 0.0
    outer_gather_s: float = 0.0
    outer_scatter_s: float = 0.0
    end_s: float = 0.0
    moved_bytes: float = 0.0
    end_by_kind: Mapping[str, float] = field(default_factory=dict)


def phases(config: Config, hardware: Hardware, dtype: str, bandwidth_divisor: float = 1.0) -> Phases:
    """A mesh strategy's communication; where the compiler combines them, those of one part and kind travel together.

    The flat unit's rounds follow one another: a block's mean time is the sum over its owners.
    """
    config = mesh_config(config)
    placed = shards(config, hardware.devices, hardware.hosts)
    planned = planned_collectives(config, placed, dtype)
    together: dict[tuple[str, ...], list[Planned]] = defaultdict(list)
    for index, each in enumerate(planned):
        alone = (str(index),) if each.purpose in FLAT_PURPOSES else ()
        together[(_part(each, placed), each.kind, *each.axes, *alone)].append(each)
    seconds: dict[str, float] = defaultdict(float)
    end: dict[str, float] = defaultdict(float)
    for (part, kind, *_), members in together.items():
        sizes = _message_sizes(members, config, hardware)
        spent = sum(_seconds(members[0], size, hardware, bandwidth_divisor) for size in sizes)
        seconds[f"{part}_s"] += spent / (config.model.layers if members[0].purpose in FLAT_PURPOSES else 1)
        if part == "end":
            end[kind] += spent
    return Phases(**seconds, end_by_kind=end, moved_bytes=sum(each.count * moved_bytes(each) for each in planned))


def _message_sizes(members: Sequence[Planned], config: Config, hardware: Hardware) -> list[float]:
    """Bytes of the messages in which collectives travel: one for all of them, or one a leaf."""
    if all(group.combines for group in hardware.groups):
        return [sum(each.bytes for each in members)]
    elements = {parameter.path: parameter.size for parameter in parameters(config)}
    sizes: list[float] = []
    for each in members:
        leaves = [elements.get(path, 1) for path in each.leaves]  # the flat unit's vector is a leaf of its own
        sizes += [each.bytes * leaf / sum(leaves) for leaf in leaves]
    return sizes


def planned_collectives(config: Config, placed: Shards, dtype: str) -> list[Planned]:
    """The plan of a mesh strategy's step."""
    known = {leaf.path: leaf.cut for leaf in placed.leaves}
    listed = [parameter for parameter in parameters(config) if parameter.path in known]
    times, width = config.train.accumulation, COMPUTE_BYTES[dtype]
    planned = plan(listed, known, placed.axes, times, width, reduces_by_block(config))
    if config.strategy.row.flat:
        planned += plan_flat(flat_layout(parameters(config), placed.axes[DATA_AXIS]), times, width)
    return planned


def _part(planned: Planned, placed: Shards) -> str:
    """The field of `Phases` that a collective belongs to, without its `_s`."""
    if planned.purpose in FLAT_PURPOSES:
        return FLAT_PURPOSES[planned.purpose]
    cut = {leaf.path: leaf.params.axis for leaf in placed.leaves}
    inside = all(planned.axes[0] == cut[path] for path in planned.leaves)
    if not inside:
        return "block_scatter" if planned.purpose == SUM and planned.count > 1 else "end"
    where = "block" if planned.leaves[0].startswith("blocks.") else "outer"
    return f"{where}_{'gather' if planned.kind == 'all-gather' else 'scatter'}"


def _seconds(planned: Planned, size: float, hardware: Hardware, divisor: float) -> float:
    g, m = levels(planned.groups[0], hardware)
    if network := hardware.network:
        network = network.slower(divisor)
        if planned.kind == "all-reduce":
            return network.all_reduce(size, g, m)
        return network.one_pass(planned.kind, size, g, m)
    inside, across = links(hardware, planned.kind, divisor)
    timed = two_level_all_reduce if planned.kind == "all-reduce" else two_level_pass
    return timed(size, g, m, inside, across)


def levels(members: tuple[int, ...], hardware: Hardware) -> tuple[int, int]:
    """(devices on the fullest host, hosts) of a group of devices, numbered host by host.

    Hosts that share the links inside (`domain_hosts`) count as one.
    """
    hosts: dict[int, int] = defaultdict(int)
    bounds, first = [], 0
    for group in hardware.groups:
        for host in range(group.count):
            bounds += [first + host // group.domain_hosts] * group.devices
        first = bounds[-1] + 1
    for member in members:
        hosts[bounds[member]] += 1
    return max(hosts.values()), len(hosts)


def links(hardware: Hardware, kind: str, divisor: float = 1.0) -> tuple[Link, Link]:
    """(inside a host, between hosts): a collective goes at its slowest member's pace."""
    groups = hardware.groups
    inside = Link(min(group.intra_bandwidth for group in groups), max(group.intra_latency_s for group in groups))
    slowest = min(groups, key=lambda group: group.nic_bandwidth).nic(kind)
    across = slowest._replace(latency_s=max(group.nic_latency_s for group in groups))
    return inside.faster(1 / divisor), across.faster(1 / divisor)


def tokens_for_balance(value_bytes: int, flops: float, bandwidth: float) -> float:
    """Tokens a device below which data parallelism is bound by communication: (b/2) C/B.

    Source: "How to Scale Your Model" (training chapter); for DDP and FSDP alike.
    """
    return value_bytes / 2 * flops / bandwidth if bandwidth else math.inf
