"""The mistakes that the fast check looks for, one function each; every finding carries its remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxdp.config import Config
from jaxdp.models.shapes import parameters
from jaxdp.predict.sharding import Leaf, Shards, mesh_config, mesh_devices, workers
from jaxdp.strategies.flat_layout import flat_layout
from jaxdp.strategies.rows import shard_group
from jaxdp.strategies.rules import Cut, Spec
from jaxdp.units import bytes_text

REPLICATED_TOLERANCE = 0.02
REPLICATED_NAMED = 5


@dataclass(frozen=True)
class Diagnostic:
    name: str
    severity: Literal["error", "warning"]
    message: str
    remedy: str
    parameter: str | None = None
    block: int | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.message}; {self.remedy}"


def group_undivided(config: Config, devices: int, hosts: int) -> Diagnostic | None:
    """Sizes that make no mesh at all: then nothing else can be checked."""
    if config.strategy.name == "ps":
        held, sharers = workers(config, devices) * mesh_devices(config, devices), "workers x devices_per_worker"
        if held <= devices and devices >= 1:
            return None
        return Diagnostic(
            "group_undivided",
            "error",
            f"{sharers} = {held} devices, but there are {devices}",
            f"set server.workers to at most {devices // mesh_devices(config, devices)} or raise --devices",
        )
    strategy = config.strategy
    if strategy.row.makes_mesh(strategy.options, devices, hosts):
        return None
    group = shard_group(strategy.options, devices, hosts)
    divisors = [d for d in range(1, devices + 1) if devices % d == 0]
    return Diagnostic(
        "group_undivided",
        "error",
        f"a shard group of {group} does not divide {devices} devices",
        f"set strategy.shard_devices to {min(divisors, key=lambda d: (abs(d - group), d))}",
    )


def batch(config: Config, devices: int) -> Iterator[Diagnostic]:
    sharers = workers(config, devices) * mesh_devices(config, devices)
    accumulation, batch = config.train.accumulation, config.train.global_batch
    whole = sharers * accumulation
    if batch % whole:
        microbatches = f" x {accumulation} microbatches" if accumulation > 1 else ""
        yield Diagnostic(
            "batch_undivided",
            "error",
            f"global_batch {batch} is not a multiple of {sharers} devices{microbatches}",
            f"set train.global_batch to {max(1, round(batch / whole)) * whole}",
        )


def blocks(config: Config, devices: int) -> Iterator[Diagnostic]:
    if not config.strategy.row.flat:
        return
    listed = parameters(config.model)
    flat = flat_layout(listed, devices)
    fewest = min(flat.rounds(layer) for layer in range(flat.layers))
    safe = [n for n in range(1, flat.layers + 1) if not flat_layout(listed, n).split_blocks()]
    nearest = min(safe, key=lambda n: (abs(n - devices), n))
    for layer in flat.split_blocks():
        owners = " and ".join(str(part.owner) for part in flat.parts(layer))
        yield Diagnostic(
            "block_split",
            "error",
            f"a shard boundary splits block {layer}: its fetch needs {flat.rounds(layer)} owners"
            f" (devices {owners}) and as many rounds, other blocks {fewest}",
            f"use --devices {nearest} or --strategy fsdp",
            "blocks",
            layer,
        )


def specs(leaf: Leaf, placed: Shards) -> Iterator[Diagnostic]:
    """A rule's mistakes, and cuts that leave shards of different sizes."""
    for kind, spec in (("", leaf.params), ("optimizer state of ", leaf.optimizer)):
        if kind and spec == leaf.params:
            continue
        if problem := _spec_problem(leaf, spec, placed):
            yield Diagnostic(
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
                yield Diagnostic(
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


def undivided(config: Config, placed: Shards) -> Iterator[Diagnostic]:
    """Leaves that the strategy means to shard and no dim of which the mesh divides."""
    cuts = _meant_to_cut(config, placed)
    for leaf in placed.leaves:
        spec = leaf.params if "params" in cuts else leaf.optimizer
        if not cuts or any(spec) or not _worth_cutting(config, leaf) or _divisible(leaf, placed):
            continue
        size = max(placed.axes.values()) if len(placed.axes) == 1 else placed.axes["data"]
        yield Diagnostic(
            "undivided_dim",
            "warning",
            f"{leaf.path}: no dim of {leaf.parameter.shape} is a multiple of {size}, so it stays replicated",
            f"make one a multiple of {size}",
            leaf.path,
        )


def replicated(config: Config, placed: Shards) -> Iterator[Diagnostic]:
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
        yield Diagnostic(
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
    cut = mesh_config(config).strategy.row.cut or Cut()
    params = cut.params is not None or any(any(leaf.params) for leaf in placed.leaves)
    optimizer = params or cut.optimizer is not None or any(any(leaf.optimizer) for leaf in placed.leaves)
    return frozenset(kind for kind, meant in (("params", params), ("optimizer", optimizer)) if meant)


def _worth_cutting(config: Config, leaf: Leaf) -> bool:
    return leaf.parameter.bytes >= config.strategy.min_shard_bytes


def _divisible(leaf: Leaf, placed: Shards) -> bool:
    dims = leaf.parameter.shape[1 if leaf.parameter.in_blocks else 0 :]
    return any(dim % placed.axes["data"] == 0 for dim in dims)


def memory(config: Config, needed: int, memory_bytes: int | None) -> Iterator[Diagnostic]:
    if memory_bytes is not None and needed > memory_bytes:
        yield Diagnostic(
            "memory",
            "error",
            f"a step needs about {bytes_text(needed)} per device, which has {bytes_text(memory_bytes)}",
            _memory_remedy(config),
        )


def _memory_remedy(config: Config) -> str:
    if config.train.remat != "block":
        return "set train.remat=block"
    if not config.strategy.row.shards_parameters and config.strategy.name != "ps":
        return "use --strategy fsdp, or more microbatches (train.accumulation)"
    return "use more devices or more microbatches (train.accumulation)"


def _spec_text(spec: Spec) -> str:
    return "(" + ", ".join(axis or "-" for axis in spec) + ")"
