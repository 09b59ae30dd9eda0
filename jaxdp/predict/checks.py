"""The mistakes that the fast check looks for, one function each; every finding carries its remedy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.models.shapes import parameters
from jaxdp.predict.sharding import Leaf, Shards, mesh_config, mesh_devices, workers
from jaxdp.strategies.flat_layout import flat_layout
from jaxdp.strategies.rows import shard_group
from jaxdp.strategies.rules import Cut
from jaxdp.units import bytes_text

REPLICATED_TOLERANCE = 0.02
REPLICATED_NAMED = 5
PADDING_TOLERANCE = 0.01  # of the state


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
    """A rule's mistakes."""
    axes = ", ".join(placed.axes)
    if lacking := [axis for axis in leaf.cut if axis and axis not in placed.axes]:
        problem = f"is cut over axis {lacking[0]!r}, which the mesh lacks", f"name one of the mesh's axes ({axes})"
    elif leaf.cut.params and leaf.cut.optimizer != leaf.cut.params:
        where = f"over {leaf.cut.optimizer}" if leaf.cut.optimizer else "nowhere"
        problem = f"is cut over {leaf.cut.params}, its optimizer state {where}", "cut both over the same axis"
    else:
        return
    yield Diagnostic("bad_spec", "error", f"{leaf.path} {problem[0]}", problem[1], leaf.path)


def uneven(config: Config, placed: Shards) -> Iterator[Diagnostic]:
    """Padding that counts: the vectors of a small model's layers, filled up for many devices."""
    share = placed.padding_bytes / placed.state_bytes
    if share <= PADDING_TOLERANCE:
        return
    worst = max(placed.leaves, key=lambda leaf: leaf.padding_bytes)
    held = worst.params if worst.params.padding else worst.optimizer
    yield Diagnostic(
        "uneven",
        "warning",
        f"{share:.1%} of the state per device is padding: {worst.path} has {held.layer_size} elements"
        f"{' a layer' if held.layered else ''} in {held.pieces} pieces of {held.piece_size}",
        "use fewer devices, a shard group (hsdp), or raise strategy.min_shard_bytes",
        worst.path,
    )


def replicated(config: Config, placed: Shards) -> Iterator[Diagnostic]:
    """The largest leaves left whole where the strategy shards: by mistake, or too many small ones."""
    cuts = _meant_to_cut(config, placed)
    total = sum(leaf.parameter.bytes + leaf.optimizer_bytes for leaf in placed.leaves)
    whole: dict[Leaf, int] = {}
    for leaf in placed.leaves:
        held = leaf.parameter.bytes if "params" in cuts and not leaf.params.axis else 0
        held += leaf.optimizer_bytes if "optimizer" in cuts and not leaf.optimizer.axis else 0
        if held:
            whole[leaf] = held
    share = sum(whole.values()) / total
    over = share > REPLICATED_TOLERANCE
    mistaken = [leaf for leaf in whole if leaf.parameter.bytes >= config.strategy.min_shard_bytes]
    named = sorted(whole if over else mistaken, key=lambda leaf: -whole[leaf])[:REPLICATED_NAMED]
    for leaf in named:
        both = "params" in cuts and not leaf.optimizer.axis
        what = "" if both else "parameter " if "params" in cuts else "optimizer state of "
        yield Diagnostic(
            "replicated",
            "warning",
            f"{what}{leaf.path} stays whole on every device: {bytes_text(whole[leaf])} of the"
            f" {bytes_text(sum(whole.values()))} ({share:.1%} of the state) that is replicated",
            "it can be cut: name an axis in its rule" if leaf in mistaken else "lower strategy.min_shard_bytes",
            leaf.path,
        )


def _meant_to_cut(config: Config, placed: Shards) -> frozenset[str]:
    """Which of "params" and "optimizer" the strategy, or else the cuts themselves, mean to shard."""
    if placed.axes.get("data", 1) == 1:
        return frozenset()
    cut = mesh_config(config).strategy.row.cut or Cut()
    params = cut.params is not None or any(leaf.params.axis for leaf in placed.leaves)
    optimizer = params or cut.optimizer is not None or any(leaf.optimizer.axis for leaf in placed.leaves)
    return frozenset(kind for kind, meant in (("params", params), ("optimizer", optimizer)) if meant)


def data(config: Config) -> Iterator[Diagnostic]:
    """Files that the config names and this machine lacks; of a user's task only the task knows."""
    from jaxdp.data.corpora import refuse_absent

    if config.task:
        return
    try:
        refuse_absent(config)
    except BadInput as error:
        yield Diagnostic("data", "error", str(error), "correct the path, or pass --allow data if it lies elsewhere")


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
