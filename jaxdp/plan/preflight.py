"""The fast check: what will go wrong with a config on a number of devices, found before JAX starts.

`preflight` returns every finding; `require` stops a run that has an error nobody allowed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from jaxdp.config import Config
from jaxdp.errors import BadInput, Refused
from jaxdp.mesh.flat_layout import flat_layout, is_flat
from jaxdp.mesh.rules import ShardRule, Spec, shard_group
from jaxdp.plan.memory import memory
from jaxdp.plan.sharding import Leaf, Shards, mesh_config, mesh_devices, shards, workers
from jaxdp.units import bytes_text

REPLICATED_TOLERANCE = 0.02
REPLICATED_NAMED = 5
ERRORS = ("block_split", "batch_undivided", "group_undivided", "bad_spec", "memory", "unplanned_collective")
WARNINGS = ("replicated", "uneven", "undivided_dim")


@dataclass(frozen=True)
class Finding:
    name: str
    severity: Literal["error", "warning"]
    message: str
    remedy: str
    parameter: str | None = None
    block: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.message}; {self.remedy}"


@dataclass(frozen=True)
class Report:
    """`ok` when no finding is an error. `parameters` has a row for each leaf; bytes are a device's.

    `compiled` is the program's collectives and memory, where it was compiled.
    """

    devices: int
    findings: tuple[Finding, ...]
    parameters: tuple[dict[str, Any], ...]
    memory_bytes: int | None
    compiled: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return all(finding.severity != "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "devices": self.devices,
            "findings": [asdict(finding) for finding in self.findings],
            "parameters": list(self.parameters),
            "memory_bytes": self.memory_bytes,
            "compiled": self.compiled,
            "how": {"memory_bytes": "compiled" if self.compiled else "predicted"},
        }


def preflight(
    config: Config,
    devices: int,
    hosts: int = 1,
    memory_bytes: int | None = None,
    rule: ShardRule | None = None,
) -> Report:
    """Checks the config's strategy, or another `rule`, on `devices` that have `memory_bytes` each (None: unknown)."""
    if devices < 1 or hosts < 1:
        raise BadInput(f"devices {devices}, hosts {hosts}: at least 1 of each is needed")
    if group := _group_undivided(config, devices, hosts):
        return Report(devices, (group,), (), None)
    placed = shards(config, devices, hosts, rule)
    needed = memory(config, devices, hosts).total
    findings = (
        *_batch(config, devices),
        *_blocks(config, devices),
        *(finding for leaf in placed.leaves for finding in _specs(leaf, placed)),
        *_undivided(config, placed),
        *_replicated(config, placed),
        *_memory(config, needed, memory_bytes),
    )
    rows = tuple(_row(leaf) for leaf in placed.leaves)
    return Report(devices, findings, rows, needed)


def require(report: Report, allow: Iterable[str] = ()) -> None:
    """Raises `Refused`, in one line, for the first error that is not allowed by name."""
    allow = check_allowed(allow)
    refused = [f for f in report.findings if f.severity == "error" and f.name not in allow]
    if refused:
        more = f" (and {len(refused) - 1} more: see jaxdp check)" if len(refused) > 1 else ""
        raise Refused(f"{refused[0]}, or pass --allow {refused[0].name}{more}")


def check_allowed(names: Iterable[str]) -> frozenset[str]:
    """The names, if each is a finding's; else `BadInput`."""
    names = frozenset(names)
    if unknown := sorted(names - {*ERRORS, *WARNINGS}):
        raise BadInput(f"--allow {unknown[0]}: no such finding; known: {', '.join((*ERRORS, *WARNINGS))}")
    return names


def _group_undivided(config: Config, devices: int, hosts: int) -> Finding | None:
    """Sizes that make no mesh at all: then nothing else can be checked."""
    if config.strategy.name == "ps":
        held, sharers = workers(config, devices) * mesh_devices(config, devices), "workers x devices_per_worker"
        if held <= devices and devices >= 1:
            return None
        return Finding(
            "group_undivided",
            "error",
            f"{sharers} = {held} devices, but there are {devices}",
            f"set server.workers to at most {devices // mesh_devices(config, devices)} or raise --devices",
        )
    if config.strategy.name != "hsdp":
        return None
    group = shard_group(config.strategy, devices, hosts)
    if devices % group == 0:
        return None
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    return Finding(
        "group_undivided",
        "error",
        f"a shard group of {group} does not divide {devices} devices",
        f"set strategy.shard_devices to {min(divisors, key=lambda d: (abs(d - group), d))}",
    )


def _batch(config: Config, devices: int) -> Iterator[Finding]:
    sharers = workers(config, devices) * mesh_devices(config, devices)
    accumulation, batch = config.train.accumulation, config.train.global_batch
    whole = sharers * accumulation
    if batch % whole:
        microbatches = f" x {accumulation} microbatches" if accumulation > 1 else ""
        yield Finding(
            "batch_undivided",
            "error",
            f"global_batch {batch} is not a multiple of {sharers} devices{microbatches}",
            f"set train.global_batch to {max(1, round(batch / whole)) * whole}",
        )


def _blocks(config: Config, devices: int) -> Iterator[Finding]:
    if not is_flat(config.strategy):
        return
    flat = flat_layout(config.model, devices)
    fewest = min(flat.rounds(layer) for layer in range(flat.layers))
    safe = [n for n in range(1, flat.layers + 1) if not flat_layout(config.model, n).split_blocks()]
    nearest = min(safe, key=lambda n: (abs(n - devices), n))
    for layer in flat.split_blocks():
        owners = " and ".join(str(part.owner) for part in flat.parts(layer))
        yield Finding(
            "block_split",
            "error",
            f"a shard boundary splits block {layer}: its fetch needs {flat.rounds(layer)} owners"
            f" (devices {owners}) and as many rounds, other blocks {fewest}",
            f"use --devices {nearest} or strategy.unit=block",
            "blocks",
            layer,
        )


def _specs(leaf: Leaf, placed: Shards) -> Iterator[Finding]:
    """A rule's mistakes, and cuts that leave shards of different sizes."""
    for kind, spec in (("", leaf.params), ("optimizer state of ", leaf.optimizer)):
        if kind and spec == leaf.params:
            continue
        if problem := _spec_problem(leaf, spec, placed):
            yield Finding(
                "bad_spec",
                "error",
                f"{kind}{leaf.path}: its spec {_spec_text(spec)} {problem}",
                f"name each of the mesh's axes ({', '.join(placed.axes)}) at most once, one entry a dim",
                leaf.path,
            )
            continue
        for dim, axis in enumerate(spec):
            if axis and leaf.parameter.shape[dim] % placed.axes[axis]:
                size, cuts = leaf.parameter.shape[dim], placed.axes[axis]
                yield Finding(
                    "uneven",
                    "warning",
                    f"{kind}{leaf.path}: dim {dim} of {size} in {cuts} gives uneven shards (up to {-(-size // cuts)})",
                    f"make it a multiple of {cuts}, or cut another dim",
                    leaf.path,
                )


def _spec_problem(leaf: Leaf, spec: Spec, placed: Shards) -> str | None:
    named = [axis for axis in spec if axis]
    if len(spec) != len(leaf.parameter.shape):
        return f"has {len(spec)} entries for {len(leaf.parameter.shape)} dims"
    if lacking := [axis for axis in named if axis not in placed.axes]:
        return f"names axis {lacking[0]!r}, which the mesh lacks"
    if twice := [axis for axis in named if named.count(axis) > 1]:
        return f"names axis {twice[0]!r} twice"
    if leaf.parameter.in_blocks and spec[0]:
        return "cuts the layers, so that whole blocks lie on single devices"
    return None


def _undivided(config: Config, placed: Shards) -> Iterator[Finding]:
    """Leaves that the strategy means to shard and no dim of which the mesh divides."""
    cuts = _meant_to_cut(config, placed)
    for leaf in placed.leaves:
        spec = leaf.params if "params" in cuts else leaf.optimizer
        if not cuts or any(spec) or not _worth_cutting(config, leaf) or _divisible(leaf, placed):
            continue
        size = max(placed.axes.values()) if len(placed.axes) == 1 else placed.axes["data"]
        yield Finding(
            "undivided_dim",
            "warning",
            f"{leaf.path}: no dim of {leaf.parameter.shape} is a multiple of {size}, so it stays replicated",
            f"make one a multiple of {size}",
            leaf.path,
        )


def _replicated(config: Config, placed: Shards) -> Iterator[Finding]:
    """The largest leaves left whole where the strategy shards: by mistake, or too many small ones."""
    cuts = _meant_to_cut(config, placed)
    total = sum(leaf.parameter.bytes + leaf.optimizer_bytes for leaf in placed.leaves)
    whole: dict[Leaf, int] = {}
    for leaf in placed.leaves:
        held = leaf.parameter.bytes if "params" in cuts and not any(leaf.params) else 0
        held += leaf.optimizer_bytes if "optimizer" in cuts and not any(leaf.optimizer) else 0
        if held:
            whole[leaf] = held
    share = sum(whole.values()) / total
    over = share > REPLICATED_TOLERANCE
    mistaken = [leaf for leaf in whole if _worth_cutting(config, leaf) and _divisible(leaf, placed)]
    named = sorted(whole if over else mistaken, key=lambda leaf: -whole[leaf])[:REPLICATED_NAMED]
    for leaf in named:
        both = "params" in cuts and not any(leaf.params) and not any(leaf.optimizer)
        what = "" if both else "optimizer state of " if any(leaf.params) or "params" not in cuts else "parameter "
        yield Finding(
            "replicated",
            "warning",
            f"{what}{leaf.path} stays whole on every device: {bytes_text(whole[leaf])} of the"
            f" {bytes_text(sum(whole.values()))} ({share:.1%} of the state) that is replicated",
            "it can be cut: name an axis in its rule"
            if leaf in mistaken
            else "lower strategy.min_shard_bytes, or use dims that the devices divide",
            leaf.path,
        )


def _meant_to_cut(config: Config, placed: Shards) -> frozenset[str]:
    """Which of "params" and "optimizer" the strategy, or else the specs themselves, mean to shard."""
    if placed.axes.get("data", 1) == 1:
        return frozenset()
    name = mesh_config(config).strategy.name
    params = name in ("fsdp", "hsdp") or any(any(leaf.params) for leaf in placed.leaves)
    optimizer = params or name == "zero1" or any(any(leaf.optimizer) for leaf in placed.leaves)
    return frozenset(kind for kind, meant in (("params", params), ("optimizer", optimizer)) if meant)


def _worth_cutting(config: Config, leaf: Leaf) -> bool:
    return leaf.parameter.bytes >= config.strategy.min_shard_bytes


def _divisible(leaf: Leaf, placed: Shards) -> bool:
    dims = leaf.parameter.shape[1 if leaf.parameter.in_blocks else 0 :]
    return any(dim % placed.axes["data"] == 0 for dim in dims)


def _memory(config: Config, needed: int, memory_bytes: int | None) -> Iterator[Finding]:
    if memory_bytes is not None and needed > memory_bytes:
        yield Finding(
            "memory",
            "error",
            f"a step needs about {bytes_text(needed)} a device, which has {bytes_text(memory_bytes)}",
            _memory_remedy(config),
        )


def _memory_remedy(config: Config) -> str:
    if config.train.remat != "block":
        return "set train.remat=block"
    if config.strategy.name in ("ddp", "zero1"):
        return "use --strategy fsdp, or more microbatches (train.accumulation)"
    return "use more devices or more microbatches (train.accumulation)"


def _row(leaf: Leaf) -> dict[str, Any]:
    return {
        "parameter": leaf.path,
        "shape": list(leaf.parameter.shape),
        "bytes": leaf.parameter.bytes,
        "spec": list(leaf.params),
        "shard_shape": list(leaf.shard_shape),
        "shard_bytes": leaf.shard_bytes,
        "optimizer_spec": list(leaf.optimizer),
        "optimizer_shard_bytes": leaf.optimizer_shard_bytes,
    }


def _spec_text(spec: Spec) -> str:
    return "(" + ", ".join(axis or "-" for axis in spec) + ")"
