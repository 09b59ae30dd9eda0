"""The machines a plan is made for, from a preset's name or a `hardware.toml`: groups of equal hosts.

Units: FLOP/s, bytes, bytes/s one way a device, seconds.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxdp.config import read_toml
from jaxdp.device_memory import memory_share
from jaxdp.errors import BadInput
from jaxdp.predict.calibrated.rates import OWN_STACK, Network, Rates, Stack, shipped, usable_bytes
from jaxdp.predict.network import COLLECTIVES, Link
from jaxdp.predict.presets import PRESETS, Sheet, sheet

Rounds = tuple[tuple[float, float], ...]  # (bytes, seconds) of a round, by size

MAX_DEVICES = 2**15
USABLE = 0.9  # of a device's memory; the rest is left to the runtime and to fragmentation
HOST_BANDWIDTH = 31e9  # PCIe 4.0 x16, one way
HOST_MEMORY_BANDWIDTH = 200e9  # assumed: eight channels of DDR4-3200


@dataclass(frozen=True)
class HostGroup:
    """`count` equal hosts of `devices` equal devices. `speeds` are relative rates of a host's devices, 1 as a rule.

    `nic_bandwidth` is a device's share of its host's network, `host_bandwidth` its link to the host's memory.
    `overlaps`: collectives run beside computing; `combines`: those of one kind and place travel as one message.
    `efficiency`: the rate of a train step over that of its products and passes alone. `rounds`: for collectives
    between hosts that were measured, their (bytes, seconds) of one round of the ring.

    `device` names the preset whose calibrated rates hold: `reachable` is then the share of the peak that products reach
    in a step, and the other rates are shares of these numbers too. Without it all numbers are what was measured.
    `domain_hosts` hosts in a row share the links inside (a TPU's slice, NVL72).
    """

    name: str
    count: int
    devices: int
    flops: float
    memory_bytes: int
    memory_bandwidth: float
    intra_bandwidth: float
    nic_bandwidth: float
    intra_latency_s: float
    nic_latency_s: float
    reachable: float = 1.0
    compute_dtype: str = "bfloat16"
    speeds: tuple[float, ...] = ()  # none: all 1
    overlaps: bool = True
    combines: bool = True
    efficiency: float = 1.0
    rounds: tuple[tuple[str, Rounds], ...] = ()
    host_bandwidth: float = HOST_BANDWIDTH
    host_memory_bandwidth: float = HOST_MEMORY_BANDWIDTH
    device: str = ""
    domain_hosts: int = 1
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def nic(self, kind: str = "") -> Link:
        """The network as a kind of collective between hosts finds it."""
        return Link(self.nic_bandwidth, self.nic_latency_s, dict(self.rounds).get(kind, ()))

    def with_faster_nic(self, factor: float) -> "HostGroup":
        """`factor` times the network's bandwidth; latencies stay."""
        rounds = tuple((kind, self.nic(kind).faster(factor).rounds) for kind, _ in self.rounds)
        return replace(self, nic_bandwidth=self.nic_bandwidth * factor, rounds=rounds)

    @property
    def total_devices(self) -> int:
        return self.count * self.devices

    @property
    def platform(self) -> str:
        """As JAX names it, by which the memory model picks its coefficients."""
        if self.name.lower().startswith("tpu"):
            return "tpu"
        return "cpu" if self.compute_dtype == "float32" else "gpu"

    def matmul_flops(self, dtype: str) -> float:
        """FLOP/s that a large matrix product reaches: a GPU's tensor cores do float32 (TF32) at half the rate."""
        narrow = self.compute_dtype == "bfloat16" and dtype == "float32"
        return self.flops * self.reachable * (0.5 if narrow else 1.0)

    @property
    def sheet(self) -> Sheet:
        """The numbers as the calibrated rates, which are shares of them, read them."""
        return sheet(self.device)._replace(
            bfloat16=self.flops,
            memory_bytes=self.memory_bytes,
            memory_bandwidth=self.memory_bandwidth,
            link_bandwidth=self.intra_bandwidth,
            nic_bandwidth=self.nic_bandwidth,
            domain=self.domain_hosts * self.devices,
            per_host=self.devices,
        )

    @property
    def rates(self) -> Rates:
        return replace(shipped().rates(self.device), products=self.reachable)


@dataclass(frozen=True)
class Hardware:
    """Groups of hosts, which may differ, and the stack that trains on them: jaxdp's own or another's."""

    groups: tuple[HostGroup, ...]
    stack: str = OWN_STACK

    @property
    def devices(self) -> int:
        return sum(group.total_devices for group in self.groups)

    @property
    def hosts(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def memory_bytes(self) -> int:
        """What the smallest device holds: equal shards must fit everywhere."""
        return min(group.memory_bytes for group in self.groups)

    @property
    def usable_bytes(self) -> int:
        """What a step may take of a device: the stack's share of it, or what jaxdp has JAX take."""
        if self.stack != OWN_STACK:
            return int(usable_bytes(self.memory_bytes, self.profile))
        gpu = any(group.platform == "gpu" for group in self.groups)
        return int((memory_share() if gpu else USABLE) * self.memory_bytes)

    @property
    def profile(self) -> Stack:
        return shipped().stack(self.stack)

    @property
    def calibrated(self) -> bool:
        return all(group.device for group in self.groups)

    @property
    def network(self) -> Network | None:
        """The calibrated links of the slowest host; None where links were measured, or given without a preset."""
        if not self.calibrated or any(group.rounds for group in self.groups):
            return None
        slowest = [group.sheet for group in self.groups]
        worst = slowest[0]._replace(
            link_bandwidth=min(one.link_bandwidth for one in slowest),
            nic_bandwidth=min(one.nic_bandwidth for one in slowest),
        )
        return replace(
            shipped().network_of(worst),
            link_step_s=max(group.intra_latency_s for group in self.groups),
            step_s=max(group.nic_latency_s for group in self.groups),
        )

    @property
    def domains(self) -> int:
        """Groups of hosts that only the network joins."""
        return sum(math.ceil(group.count / group.domain_hosts) for group in self.groups)

    @property
    def devices_per_host(self) -> int:
        return min(group.devices for group in self.groups)


def preset(name: str) -> HostGroup:
    """One host of a preset, `h100` or with its devices `h100x8`; raises `BadInput` with the known names."""
    base, devices = name, 1
    if name not in PRESETS and (match := re.fullmatch(r"(.+)x([1-9][0-9]*)", name)):
        base, devices = match[1], int(match[2])
    if base not in PRESETS:
        raise BadInput(f"hardware {name!r}: no such preset; known: {', '.join(PRESETS)}, each with xN (h100x8)")
    known = PRESETS[base]
    reachable, why_reachable = shipped().entry(f"devices.{base}.products")
    intra_latency_s, why_intra = shipped().entry("networks.default.link_step_s")
    nic_latency_s, why_nic = shipped().entry("networks.default.step_s")
    sources = {"reachable": why_reachable, "intra_latency_s": why_intra, "nic_latency_s": why_nic}
    sourced = ("flops", "memory_bytes", "memory_bandwidth", "intra_bandwidth", "nic_bandwidth")
    return HostGroup(
        name=base,
        count=1,
        devices=devices,
        flops=known.flops.value,
        memory_bytes=int(known.memory_bytes.value),
        memory_bandwidth=known.memory_bandwidth.value,
        intra_bandwidth=known.intra_bandwidth.value,
        nic_bandwidth=known.nic_bandwidth.value,
        intra_latency_s=intra_latency_s,
        nic_latency_s=nic_latency_s,
        reachable=reachable,
        device=base,
        domain_hosts=max(1, int(known.domain.value) // devices) if known.domain.value > known.per_host.value else 1,
        sources={key: getattr(known, key).source for key in sourced} | sources,
    )


def load_hardware(
    source: str, hosts: int | None = None, nic_gbps: float | None = None, stack: str = OWN_STACK
) -> Hardware:
    """A preset's name or a `hardware.toml`; `hosts` overrides the count of a single group, `nic_gbps` the network."""
    if stack not in shipped().stacks():
        raise BadInput(f"--stack {stack}: known: {', '.join(shipped().stacks())}")
    path = Path(source)
    groups: tuple[HostGroup, ...] = _read(path) if path.suffix == ".toml" or path.is_file() else (preset(source),)
    if hosts is not None:
        if hosts < 1:
            raise BadInput(f"--hosts {hosts}: at least 1")
        if len(groups) > 1:
            raise BadInput(f"--hosts {hosts}: {source} has {len(groups)} groups; set count in each [[hosts]]")
        groups = tuple(replace(group, count=hosts) for group in groups)
    if nic_gbps is not None:
        if not nic_gbps > 0 or math.isinf(nic_gbps):
            raise BadInput(f"--nic-gbps {nic_gbps}: must be above 0")
        groups = tuple(group.with_faster_nic(nic_gbps * 1e9 / 8 / group.nic_bandwidth) for group in groups)
    hardware = Hardware(groups, stack)
    if stack != OWN_STACK and not hardware.calibrated:
        raise BadInput(f"--stack {stack}: needs a preset, whose rates were fitted to published runs")
    if hardware.devices > MAX_DEVICES:
        raise BadInput(f"--hardware {source}: {hardware.devices} devices; at most {MAX_DEVICES}")
    return hardware


# Keys of a [[hosts]] table besides `preset`, with the field and the factor to its unit.
_NUMBERS: dict[str, tuple[str, float]] = {
    "flops": ("flops", 1.0),
    "reachable": ("reachable", 1.0),
    "memory_bytes": ("memory_bytes", 1),
    "memory_bandwidth": ("memory_bandwidth", 1.0),
    "intra_gbytes_per_s": ("intra_bandwidth", 1e9),
    "nic_gbps": ("nic_bandwidth", 1e9 / 8),
    "latency_s": ("nic_latency_s", 1.0),
    "intra_latency_s": ("intra_latency_s", 1.0),
    "host_gbytes_per_s": ("host_bandwidth", 1e9),
    "host_memory_bandwidth": ("host_memory_bandwidth", 1.0),
    "efficiency": ("efficiency", 1.0),
}
_MEASURED = ("flops", "memory_bytes", "memory_bandwidth")
_ZERO_ALLOWED = ("latency_s", "intra_latency_s")
_SWITCHES = ("overlaps", "combines")
# Measured collectives between hosts: lists of [bytes a round, seconds a round], sizes growing.
_ROUNDS = {f"{kind.replace('-', '_')}_rounds": kind for kind in COLLECTIVES}
_KEYS = ("preset", "name", "count", "devices", "compute_dtype", "speeds", *_SWITCHES, *_NUMBERS, *_ROUNDS)


def _read(path: Path) -> tuple[HostGroup, ...]:
    if not path.is_file():
        raise BadInput(f"--hardware {path}: no such file; presets: {', '.join(PRESETS)}")
    document = read_toml(path)
    tables = document.get("hosts")
    if set(document) - {"hosts"} or not isinstance(tables, list) or not tables:
        raise BadInput(f"{path}: expected one or more [[hosts]] tables and nothing else")
    return tuple(read_group(table, f"{path}: hosts {number}") for number, table in enumerate(tables, 1))


def read_group(table: Any, where: str) -> HostGroup:
    """One [[hosts]] table; raises `BadInput` that begins with `where`."""
    if not isinstance(table, dict):
        raise BadInput(f"{where}: expected a table")
    if unknown := sorted(set(table) - set(_KEYS)):
        near = difflib.get_close_matches(unknown[0], _KEYS, 1)
        remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(_KEYS)}"
        raise BadInput(f"{where}: unknown key {unknown[0]!r}; {remedy}")
    numbers = {
        name: _number(table[key], f"{where}: {key}", key in _ZERO_ALLOWED) * factor
        for key, (name, factor) in _NUMBERS.items()
        if key in table
    }
    if "memory_bytes" in numbers:
        numbers["memory_bytes"] = int(numbers["memory_bytes"])
    if numbers.get("reachable", 0.5) > 1:
        raise BadInput(f"{where}: reachable: a share of the peak is at most 1")
    counts = {key: _count(table[key], f"{where}: {key}") for key in ("count", "devices") if key in table}
    group = preset(str(table["preset"])) if "preset" in table else _measured(table, numbers, where)
    sources = {**group.sources, **dict.fromkeys(numbers, where)}
    group = replace(group, **numbers, **counts, sources=sources)
    for key in ("name", "compute_dtype"):
        if key in table:
            group = replace(group, **{key: str(table[key])})
    if group.compute_dtype not in ("float32", "bfloat16"):
        raise BadInput(f"{where}: compute_dtype {group.compute_dtype!r}: float32 or bfloat16")
    for key in _SWITCHES:
        if not isinstance(table.get(key, True), bool):
            raise BadInput(f"{where}: {key}: expected true or false")
    group = replace(group, **{key: table[key] for key in _SWITCHES if key in table})
    rounds = tuple((kind, _rounds(table[key], f"{where}: {key}")) for key, kind in _ROUNDS.items() if key in table)
    group = replace(group, rounds=rounds)
    speeds = table.get("speeds", [])
    if not isinstance(speeds, list) or len(speeds) not in (0, group.devices):
        raise BadInput(f"{where}: speeds: a list of one relative rate for each of the {group.devices} devices")
    return replace(group, speeds=tuple(_number(speed, f"{where}: speeds") for speed in speeds))


def _measured(table: Mapping[str, Any], numbers: Mapping[str, float], where: str) -> HostGroup:
    """A host without a preset; links that it does not give are taken to be as fast as its memory."""
    if missing := [key for key in _MEASURED if key not in table]:
        raise BadInput(f"{where}: needs preset, or {', '.join(_MEASURED)} (missing: {', '.join(missing)})")
    bandwidth = numbers["memory_bandwidth"]
    return HostGroup(
        name="measured",
        count=1,
        devices=1,
        flops=numbers["flops"],
        memory_bytes=int(numbers["memory_bytes"]),
        memory_bandwidth=bandwidth,
        intra_bandwidth=numbers.get("intra_bandwidth", bandwidth),
        nic_bandwidth=numbers.get("nic_bandwidth", bandwidth),
        intra_latency_s=0.0,
        nic_latency_s=0.0,
        compute_dtype="float32",
    )


def _rounds(value: Any, where: str) -> Rounds:
    pairs = value if isinstance(value, list) else []
    if len(pairs) < 2 or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise BadInput(f"{where}: expected two or more pairs [bytes, seconds]")
    rounds = tuple((_number(size, where), _number(spent, where)) for size, spent in pairs)
    if any(size >= larger or spent > longer for (size, spent), (larger, longer) in pairwise(rounds)):
        raise BadInput(f"{where}: sizes must grow from pair to pair, and seconds not fall")
    return rounds


def _number(value: Any, where: str, zero: bool = False) -> float:
    wrong = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
    if wrong or value < 0 or (value == 0 and not zero):
        raise BadInput(f"{where}: expected a number {'of at least' if zero else 'above'} 0, not {value!r}")
    return float(value)


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadInput(f"{where}: expected a whole number of at least 1, not {value!r}")
    return value
