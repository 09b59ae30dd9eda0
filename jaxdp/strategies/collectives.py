"""What a train step should move between devices, from its `Specs` alone, against what a program moves (no JAX).

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
from jaxdp.strategies.rules import Spec, Specs

FETCH, SCATTER, SUM = "gather of parameters", "scatter of gradients", "sum of gradients"
RENEW = "gather of new parameters"


@dataclass(frozen=True)
class Planned:
    """One kind of collective of one purpose: it runs `count` times a step on arrays of `bytes` (the whole array's).

    `least` is how often it must at least run, where a compiler may take it out of the loop over microbatches.
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
    specs: Mapping[str, Specs],
    axis_sizes: Mapping[str, int],
    accumulation: int = 1,
    compute_dtype_bytes: int = PARAMETER_BYTES,
) -> list[Planned]:
    """The collectives of one train step, scalar sums left out, from each parameter's specs.

    - A leaf whose parameters are cut is gathered in the compute dtype each microbatch: in the blocks once
      forward and once backward a layer, outside once; its gradient is reduce-scattered once each.
    - Over the axes that don't cut the parameters, gradients are reduced once a step: scattered where the
      optimizer's spec cuts, summed whole elsewhere, all such leaves of the same axes together.
    - New parameters are gathered in float32 where only the optimizer's spec cuts.
    """
    planned: list[Planned] = []
    whole: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for parameter in parameters:
        cuts = _cuts(specs[parameter.path].params, axis_sizes)
        planned += _fetches(parameter, cuts, axis_sizes, accumulation, compute_dtype_bytes)
        others = [axis for axis, size in axis_sizes.items() if size > 1 and axis not in cuts]
        scattered = [axis for axis in _cuts(specs[parameter.path].optimizer, axis_sizes) if axis in others]
        elements = parameter.size // _product(axis_sizes, cuts)
        planned += _updates(parameter, scattered, elements, axis_sizes)
        if summed := tuple(axis for axis in others if axis not in scattered):
            whole[summed].append((parameter.path, elements // _product(axis_sizes, scattered)))
    for axes, leaves in whole.items():
        size = GRADIENT_BYTES * sum(elements for _, elements in leaves)
        paths = tuple(path for path, _ in leaves)
        planned.append(_planned("all-reduce", SUM, paths, axes, axis_sizes, GRADIENT_BYTES, size))
    return planned


def _fetches(
    parameter: Parameter, cuts: Sequence[str], axis_sizes: Mapping[str, int], accumulation: int, compute_bytes: int
) -> list[Planned]:
    """One gather and one scatter a dim that is cut, in the order of the dims, of one layer at a time."""
    layers = parameter.shape[0] if parameter.in_blocks else 1
    passes = 2 if parameter.in_blocks else 1
    elements = parameter.size // layers
    planned = []
    for place, axis in enumerate(cuts):
        gathered = elements // _product(axis_sizes, cuts[place + 1 :])
        scattered = elements // _product(axis_sizes, cuts[:place])
        for kind, purpose, size, width, times in (
            ("all-gather", FETCH, gathered, compute_bytes, passes),
            ("reduce-scatter", SCATTER, scattered, GRADIENT_BYTES, 1),
        ):
            count = times * layers * accumulation
            least = 1 if purpose == FETCH and not parameter.in_blocks else None
            leaf = (parameter.path,)
            planned.append(_planned(kind, purpose, leaf, (axis,), axis_sizes, width, size * width, count, least))
    return planned


def _updates(
    parameter: Parameter, scattered: Sequence[str], elements: int, axis_sizes: Mapping[str, int]
) -> list[Planned]:
    """Gradients scattered to the optimizer's shards and new parameters gathered from them, whole leaves once a step."""
    planned = []
    for place, axis in enumerate(scattered):
        size = elements // _product(axis_sizes, scattered[:place])
        for kind, purpose, width in (
            ("reduce-scatter", SCATTER, GRADIENT_BYTES),
            ("all-gather", RENEW, PARAMETER_BYTES),
        ):
            leaf = (parameter.path,)
            planned.append(_planned(kind, purpose, leaf, (axis,), axis_sizes, width, size * width))
    return planned


def _planned(
    kind: str,
    purpose: str,
    leaves: tuple[str, ...],
    axes: tuple[str, ...],
    axis_sizes: Mapping[str, int],
    dtype_bytes: int,
    size: int,
    count: int = 1,
    least: int | None = None,
) -> Planned:
    groups = _groups(tuple(axis_sizes.items()), axes)
    return Planned(kind, purpose, leaves, axes, groups, dtype_bytes, size, count, least)


@lru_cache
def _groups(axis_sizes: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> Groups:
    names = [name for name, _ in axis_sizes]
    return axis_groups([size for _, size in axis_sizes], sorted(names.index(axis) for axis in axes))


def _cuts(spec: Spec, axis_sizes: Mapping[str, int]) -> list[str]:
    return [axis for axis in spec if axis is not None and axis_sizes[axis] > 1]


def _product(axis_sizes: Mapping[str, int], axes: Iterable[str]) -> int:
    return math.prod(axis_sizes[axis] for axis in axes)
