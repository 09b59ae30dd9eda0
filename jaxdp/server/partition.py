"""Parameters cut over server shards so that each holds equally many (no JAX).

The leaves, one after the other, are one long vector cut into equal pieces. A shard knows a leaf by its
dotted name: whole in its own shape, or a stretch of it as a vector, since updates are elementwise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Leaves = dict[str, Any]  # dotted name -> array
Cut = dict[str, tuple[int, int]]  # dotted name -> first and last + 1 of the leaf's elements


def make_cuts(sizes: Mapping[str, int], shards: int) -> tuple[Cut, ...]:
    """Which elements of which leaf each shard holds; counts differ by one at most."""
    total = sum(sizes.values())
    edges = [total * shard // shards for shard in range(shards + 1)]
    cuts: tuple[Cut, ...] = tuple({} for _ in range(shards))
    start = 0
    for name, size in sizes.items():
        for cut, low, high in zip(cuts, edges, edges[1:], strict=False):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                cut[name] = (first - start, last - start)
        start += size
    return cuts


def take(leaves: Mapping[str, Any], cut: Cut) -> Leaves:
    """One shard's part of the leaves."""
    return {
        name: leaves[name] if last - first == math.prod(leaves[name].shape) else leaves[name].reshape(-1)[first:last]
        for name, (first, last) in cut.items()
    }


def join(parts: Sequence[Mapping[str, Any]], shapes: Mapping[str, tuple[int, ...]]) -> Leaves:
    """The whole leaves of all shards' parts; only a leaf that was cut is copied."""
    leaves: Leaves = {}
    for name, shape in shapes.items():
        pieces = [part[name] for part in parts if name in part]
        leaves[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces).reshape(shape)
    return leaves
