"""Which devices take part together in a collective: every spelling of XLA's `replica_groups` (no JAX).

Written out `{{0,1},{2,3}}`; empty `{}` for everyone; iota `[4,2]<=[2,4]T(1,0)`: the devices 0..7 shaped
`[2,4]`, transposed, and cut into 4 groups of 2; and by mesh axes `mesh['a'=2,'b'=4] {'b'}`, where `'b':(2)2`
is a part of an axis (after a major part of size 2, one of size 2) and `device_ids=([2,4]T(1,0))` orders the mesh.
"""

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from jaxdp.hlo.text import Instruction

Groups = tuple[tuple[int, ...], ...]

_LISTED = re.compile(r"\{(\{.*\})\}$")
_IOTA = re.compile(r"\[(\d+),(\d+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?)?$")
_MESH = re.compile(r"(?:maximal_)?mesh\[(.*?)\](?:, ?device_ids=\(([^{]*)\))? ?\{(.*)\}$")
_ORDER = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_CROSSES_PARTITIONS = ("all-reduce", "all-gather", "reduce-scatter")


def device_groups(instruction: Instruction, kind: str, replicas: int, partitions: int) -> Groups | None:
    """The groups of a collective as device ids (replica * partitions + partition); None if they can't be read.

    The ids in the text count devices, replicas or partitions, as the instruction's channel says (XLA's
    `CollectiveOpGroupMode`). For a permutation the groups are its (source, target) pairs.
    """
    if kind == "collective-permute":
        pairs = re.findall(r"\{(\d+),(\d+)\}", instruction.attribute("source_target_pairs") or "")
        groups: Groups | None = tuple((int(source), int(target)) for source, target in pairs)
    else:
        groups = parse_groups(_spelling(instruction))
    if groups is None:
        return None
    devices = range(replicas * partitions)
    has_channel = instruction.attribute("channel_id") is not None
    if instruction.attribute("use_global_device_ids") == "true":
        return groups or (tuple(devices),)
    if has_channel and kind in _CROSSES_PARTITIONS:
        members = groups or (tuple(range(replicas)),)
        return tuple(tuple(r * partitions + p for r in group for p in range(partitions)) for group in members)
    if has_channel:
        members = groups or (tuple(range(partitions)),)
        return tuple(tuple(r * partitions + p for p in group) for group in members for r in range(replicas))
    members = groups or (tuple(range(replicas)),)
    return tuple(tuple(r * partitions + p for r in group) for group in members for p in range(partitions))


def parse_groups(spelling: str) -> Groups | None:
    """The groups of one `replica_groups` value; () means everyone, None that the spelling is unknown."""
    spelling = spelling.strip()
    if spelling in ("", "{}"):
        return ()
    if listed := _LISTED.match(spelling):
        return tuple(_integers(group) for group in re.findall(r"\{([\d, ]*)\}", listed[1]))
    if iota := _IOTA.match(spelling):
        groups, size = int(iota[1]), int(iota[2])
        ids = _iota(_integers(iota[3] or str(groups * size)), _integers(iota[4]))
        return _cut(ids, size) if len(ids) == groups * size else None
    if mesh := _MESH.match(spelling):
        return _mesh_groups(mesh[1], mesh[2], mesh[3])
    return None


def axis_groups(sizes: Sequence[int], axes: Iterable[int]) -> Groups:
    """The groups along some axes of a mesh of these sizes, devices numbered in the mesh's order."""
    along = list(axes)
    across = [axis for axis in range(len(sizes)) if axis not in along]
    ids = _iota(tuple(sizes), tuple(across + along))
    return _cut(ids, math.prod(sizes[axis] for axis in along))


def _spelling(instruction: Instruction) -> str:
    """The value of `replica_groups`, with the mesh's device order if that follows behind a comma."""
    groups, order = instruction.attribute("replica_groups"), instruction.attribute("device_ids")
    return f"{groups or ''}, device_ids={order}" if order else groups or ""


def _mesh_groups(axes_text: str, order: str | None, chosen_text: str) -> Groups | None:
    """Cuts each axis into its sub-axes, so that the chosen ones can be moved last like whole axes."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", axes_text)}
    chosen = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen_text)
    pieces: list[tuple[str, int, int]] = []  # (axis, size of what is major to it, own size)
    for name, size in sizes.items():
        edges = {1, size}
        for axis, before, own in chosen:
            if axis == name and own:
                edges |= {int(before), int(before) * int(own)}
        ordered = sorted(edges)
        if any(high % low for low, high in itertools.pairwise(ordered)):
            return None
        pieces += [(name, low, high // low) for low, high in itertools.pairwise(ordered)]
    along = []
    for axis, before, own in chosen:
        low, high = (int(before), int(before) * int(own)) if own else (1, sizes.get(axis, 0))
        along += [i for i, (name, at, _) in enumerate(pieces) if name == axis and low <= at < high]
    groups = axis_groups([own for _, _, own in pieces], along)
    devices = _device_order(order, math.prod(sizes.values()))
    return None if devices is None else tuple(tuple(devices[place] for place in group) for group in groups)


def _device_order(text: str | None, count: int) -> tuple[int, ...] | None:
    if not text:
        return tuple(range(count))
    iota = _ORDER.match(text.strip())
    ids = _iota(_integers(iota[1]), _integers(iota[2])) if iota else _integers(text)
    return ids if sorted(ids) == list(range(count)) else None


def _iota(dims: tuple[int, ...], permutation: tuple[int, ...]) -> tuple[int, ...]:
    """0, 1, 2... shaped `dims`, transposed and flattened."""
    strides = [math.prod(dims[dim + 1 :]) for dim in range(len(dims))]
    order = permutation or range(len(dims))
    ranges = [range(0, dims[dim] * strides[dim], strides[dim]) for dim in order]
    return tuple(sum(place) for place in itertools.product(*ranges))


def _cut(ids: tuple[int, ...], size: int) -> Groups:
    return tuple(ids[start : start + size] for start in range(0, len(ids), size))


def _integers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text or ""))
