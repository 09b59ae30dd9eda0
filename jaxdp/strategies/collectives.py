"""What a train step should move between devices, from its rule's cuts alone, against what a program moves (no JAX).

`plan` lists the collectives of `mesh.step` for any rule (`predict.discrepancies` holds them against those that
`hlo.collectives` finds in a compiled program).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jaxdp.hlo.collectives import Collective
from jaxdp.hlo.replica_groups import Groups, axis_groups
from jaxdp.parameter import GRADIENT_BYTES, PARAMETER_BYTES, Parameter
from jaxdp.strategies.placement import Placement, place
from jaxdp.strategies.rules import Cut

FETCH, SCATTER, SUM = "gather of parameters", "scatter of gradients", "sum of gradients"
RENEW = "gather of new parameters"


@dataclass(frozen=True)
class Planned:
    """One kind of collective of one purpose: it runs `count` times a step on arrays of `bytes` (the whole array's).

    `padding_bytes` of them are zeros that fill a vector up. `least` is how often it must at least run, where
    a compiler may take it out of the loop over microbatches.
    """

    kind: str
    purpose: str
    leaves: tuple[str, ...]
    axes: tuple[str, ...]
    groups: Groups
    dtype_bytes: int
    bytes: int
    count: int
    least: int | None = None
    padding_bytes: int = 0

    @property
    def repeated(self) -> bool:
        """Whether a block's parameters are gathered by it, and so once more in the backward pass."""
        return self.kind == "all-gather" and self.purpose == FETCH and self.least is None

    @property
    def group_size(self) -> int:
        return len(self.groups[0])


def moved_bytes(collective: Collective | Planned) -> float:
    """Bytes that one device sends in one run of the collective.

    With M the whole array and n the group: 2(n-1)/n M for an all-reduce, (n-1)/n M for an all-gather,
    reduce-scatter or all-to-all, M for a permutation or broadcast (what ring algorithms need).
    """
    if collective.kind == "collective-permute":
        pairs = collective.groups or ((0, 1),)
        return float(collective.bytes) if any(source != target for source, target in pairs) else 0.0
    if collective.kind == "collective-broadcast":
        return float(collective.bytes) if collective.group_size > 1 else 0.0
    share = (collective.group_size - 1) / collective.group_size
    return (2 if collective.kind == "all-reduce" else 1) * share * collective.bytes


def summarise(collectives: Iterable[Collective]) -> tuple[list[dict[str, Any]], int | None]:
    """(rows of kind, count and bytes moved by a device in a step; their sum). Null where a loop's length is unknown."""
    rows: dict[str, dict[str, Any]] = {}
    for found in collectives:
        row = rows.setdefault(found.kind, {"kind": found.kind, "count": 0, "bytes": 0.0})
        if found.count is None or row["count"] is None:
            row["count"] = row["bytes"] = None
        else:
            row["count"] += found.count
            row["bytes"] += found.count * moved_bytes(found)
    for row in rows.values():
        row["bytes"] = None if row["bytes"] is None else round(row["bytes"])
    total = None if any(row["bytes"] is None for row in rows.values()) else sum(row["bytes"] for row in rows.values())
    return list(rows.values()), total


def plan(
    parameters: Sequence[Parameter],
    cuts: Mapping[str, Cut],
    axis_sizes: Mapping[str, int],
    accumulation: int = 1,
    compute_dtype_bytes: int = PARAMETER_BYTES,
    by_block: bool = False,
) -> list[Planned]:
    """The collectives of one train step, scalar sums left out, from each parameter's cut.

    - A leaf whose parameters are cut is gathered in the compute dtype each microbatch: in the blocks once
      forward and once backward a layer, outside once; its gradient is reduce-scattered once each.
    - Over the axes that don't cut the parameters, gradients are reduced once a step: scattered where the
      optimizer's state is cut, summed whole elsewhere, all such leaves of the same axes together.
    - `by_block` sums gradients of blocks that are not scattered leaf by leaf, one layer at a time.
    - New parameters are gathered in float32 where only the optimizer's state is cut.
    """
    planned: list[Planned] = []
    whole: dict[tuple[str, ...], list[tuple[str, Placement]]] = defaultdict(list)
    for parameter in parameters:
        placed = place(parameter, cuts[parameter.path], axis_sizes)
        if placed.params.axis:
            planned += _fetches(parameter, placed.params, axis_sizes, accumulation, compute_dtype_bytes)
        elif placed.optimizer.axis:
            planned += _updates(parameter, placed.optimizer, axis_sizes)
        if summed := tuple(axis for axis, size in axis_sizes.items() if size > 1 and axis != placed.optimizer.axis):
            if by_block and parameter.in_blocks and placed.params.axis == placed.optimizer.axis:
                planned.append(_layer_sum(parameter, placed.params, summed, axis_sizes))
            else:
                whole[summed].append((parameter.path, placed.optimizer))
    for axes, leaves in whole.items():
        size = GRADIENT_BYTES * sum(math.prod(leaf.shard_shape) for _, leaf in leaves)
        padding = GRADIENT_BYTES * sum(leaf.padding * leaf.layers // leaf.pieces for _, leaf in leaves)
        groups = _groups(tuple(axis_sizes.items()), axes)
        paths = tuple(path for path, _ in leaves)
        planned.append(
            Planned("all-reduce", SUM, paths, axes, groups, GRADIENT_BYTES, size, count=1, padding_bytes=padding)
        )
    return planned


def _layer_sum(
    parameter: Parameter, placement: Placement, axes: tuple[str, ...], axis_sizes: Mapping[str, int]
) -> Planned:
    """The sums of one leaf's gradients, a layer at a time."""
    layer = placement.layer
    return Planned(
        kind="all-reduce",
        purpose=SUM,
        leaves=(parameter.path,),
        axes=axes,
        groups=_groups(tuple(axis_sizes.items()), axes),
        dtype_bytes=GRADIENT_BYTES,
        bytes=math.prod(layer.shard_shape) * GRADIENT_BYTES,
        count=parameter.shape[0],
        padding_bytes=layer.padding * GRADIENT_BYTES // layer.pieces,
    )


def _fetches(
    parameter: Parameter, placement: Placement, axis_sizes: Mapping[str, int], accumulation: int, compute_bytes: int
) -> list[Planned]:
    """A gather of one layer at a time, and a scatter of its gradient."""
    times = placement.layers * accumulation
    gathers = (2 if parameter.in_blocks else 1) * times
    least = None if parameter.in_blocks else 1
    return [
        _vector("all-gather", FETCH, parameter, placement.layer, axis_sizes, compute_bytes, gathers, least),
        _vector("reduce-scatter", SCATTER, parameter, placement.layer, axis_sizes, GRADIENT_BYTES, times),
    ]


def _updates(parameter: Parameter, placement: Placement, axis_sizes: Mapping[str, int]) -> list[Planned]:
    """Gradients scattered to the optimizer's shards and new parameters gathered from them, whole leaves once a step."""
    return [
        _vector("reduce-scatter", SCATTER, parameter, placement, axis_sizes, GRADIENT_BYTES),
        _vector("all-gather", RENEW, parameter, placement, axis_sizes, PARAMETER_BYTES),
    ]


def _vector(
    kind: str,
    purpose: str,
    parameter: Parameter,
    placement: Placement,
    axis_sizes: Mapping[str, int],
    dtype_bytes: int,
    count: int = 1,
    least: int | None = None,
) -> Planned:
    """A collective of the vector that one cut placement is stored as."""
    assert placement.axis is not None
    axes = (placement.axis,)
    return Planned(
        kind=kind,
        purpose=purpose,
        leaves=(parameter.path,),
        axes=axes,
        groups=_groups(tuple(axis_sizes.items()), axes),
        dtype_bytes=dtype_bytes,
        bytes=math.prod(placement.stored_shape) * dtype_bytes,
        count=count,
        least=least,
        padding_bytes=placement.padding * dtype_bytes,
    )


@lru_cache
def _groups(axis_sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> Groups:
    names = [name for name, _ in axis_sizes]
    return axis_groups([size for _, size in axis_sizes], sorted(names.index(axis) for axis in axes))
