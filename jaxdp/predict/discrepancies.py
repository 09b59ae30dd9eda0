"""Where a compiled program leaves the plan of its collectives (no JAX)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from jaxdp.hlo.collectives import Collective
from jaxdp.strategies.collectives import Planned

SCALARS_BYTES = 64  # a collective up to this size sums scalars: loss, tokens, norm
TOLERANCE = 0.01  # of the planned elements

Problem = Literal["missing", "unplanned", "bytes", "count", "width", "unknown", "rewritten"]
Key = tuple[str, frozenset[frozenset[int]] | int]  # kind, and the groups or, if unreadable, their size
Either = TypeVar("Either", Planned, Collective)


@dataclass(frozen=True)
class Discrepancy:
    """One way in which a program leaves its plan.

    `missing`: planned but not there. `unplanned`: there but not planned. `bytes`: another volume than planned.
    `count`: more, smaller collectives than planned. `width`: the planned elements, each wider or narrower.
    `unknown`: runs in a loop of unknown length. `rewritten`: the program asks for a scatter, and the compiler sums
    whole arrays for it. Bytes are those of whole arrays in a step.
    """

    problem: Problem
    kind: str
    leaves: tuple[str, ...]
    where: str
    planned_bytes: int
    found_bytes: int
    message: str


def compare(planned: Sequence[Planned], found: Sequence[Collective], tolerance: float = TOLERANCE) -> list[Discrepancy]:
    """The discrepancies of a program, the unplanned first; none if it does what was planned.

    Collectives of one kind and the same groups are compared by their sums, since XLA combines them: fewer,
    larger ones are no discrepancy. Scalar sums are left out. A volume is compared in elements, so that a
    backend which widens bfloat16 (the CPU) shows as `width` alone.
    """
    wanted, there = _by_key(planned), _by_key(one for one in found if _matters(one))
    problems = _rewritten(wanted, there, tolerance)
    for key, collectives in there.items():
        if any(one.count is None for one in collectives):
            problems.append(_unknown(key[0], collectives))
        elif key not in wanted:
            problems += _unplanned(key, collectives, wanted)
    for key, plans in wanted.items():
        collectives = there.get(key, [])
        if not collectives:
            problems.append(_missing(key[0], plans))
        elif all(one.count is not None for one in collectives):
            problems += _differences(key[0], plans, collectives, tolerance)
    return problems


def _matters(found: Collective) -> bool:
    """Neither a sum of scalars, nor one that stays on its device or never runs."""
    return found.bytes > SCALARS_BYTES and found.group_size > 1 and found.count != 0


def _by_key(collectives: Iterable[Either]) -> dict[Key, list[Either]]:
    grouped: dict[Key, list[Either]] = defaultdict(list)
    for one in collectives:
        groups = frozenset(map(frozenset, one.groups)) if one.groups else one.group_size
        grouped[one.kind, groups].append(one)
    return dict(grouped)


def _rewritten(
    wanted: dict[Key, list[Planned]], there: dict[Key, list[Collective]], tolerance: float
) -> list[Discrepancy]:
    """Takes out the groups whose scatters the compiler made whole sums of, if these explain all that they sum."""
    problems = []
    for groups in [groups for (kind, groups), sums in there.items() if any(one.scattered for one in sums)]:
        scatters, sums = ("reduce-scatter", groups), ("all-reduce", groups)
        size = _explained(wanted, there, scatters, sums, tolerance)
        if not size:
            continue
        where = _places(one for one in there[sums] if one.scattered)
        leaves = _leaves(wanted[scatters])
        message = f"the compiler sums whole arrays where reduce-scatter was planned: {size:,} bytes a step"
        problems.append(Discrepancy("rewritten", "all-reduce", leaves, where, 0, size, message))
        for key in (scatters, sums):
            wanted.pop(key, None)
            there.pop(key, None)
    return problems


def _explained(
    wanted: dict[Key, list[Planned]], there: dict[Key, list[Collective]], scatters: Key, sums: Key, tolerance: float
) -> int:
    """The bytes summed in place of scatters, 0 if a sum may be the program's own.

    A sum that was combined with others may have lost its origin, but most of the bytes must have kept theirs.
    """
    found, planned = there[sums], wanted.get(sums, [])
    if any(one.count is None for one in (*found, *there.get(scatters, []))):
        return 0
    missing = _volume(wanted.get(scatters, [])) - _volume(there.get(scatters, []))
    surplus = _volume(found) - _volume(planned)
    kept = _volume(one for one in found if one.scattered)
    own = _volume(one for one in found if not one.scattered and one.operands == 1)
    slack = tolerance * missing
    if missing <= 0 or abs(surplus - missing) > slack or own > _volume(planned) + slack or 2 * kept < missing:
        return 0
    return surplus


def _elements(one: Planned | Collective) -> float:
    return one.bytes / one.dtype_bytes


def _least(one: Planned) -> int:
    return one.count if one.least is None else one.least


def _moved(collectives: Iterable[Planned | Collective]) -> float:
    """Elements in a step."""
    return sum((one.count or 0) * _elements(one) for one in collectives)


def _volume(collectives: Iterable[Planned | Collective]) -> int:
    return sum((one.count or 0) * one.bytes for one in collectives)


def _leaves(plans: Iterable[Planned]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(leaf for one in plans for leaf in one.leaves))


def _places(collectives: Iterable[Collective]) -> str:
    """Where they are in the model and the step, at most three named."""
    places = list(dict.fromkeys(one.where for one in collectives))
    return "; ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _names(leaves: Sequence[str]) -> str:
    return ", ".join(leaves[:4]) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "")


def _unknown(kind: str, collectives: Sequence[Collective]) -> Discrepancy:
    endless = [one for one in collectives if one.count is None]
    where = _places(endless)
    message = f"{kind} at {where}: in a loop whose length the program doesn't fix, so it cannot be counted"
    return Discrepancy("unknown", kind, (), where, 0, 0, message)


def _unplanned(key: Key, collectives: Sequence[Collective], wanted: dict[Key, list[Planned]]) -> list[Discrepancy]:
    """One finding a place in the model, with the planned collective that it stands for, where that can be told."""
    by_place: dict[str, list[Collective]] = defaultdict(list)
    for one in collectives:
        by_place[one.where].append(one)
    problems = []
    for where, here in by_place.items():
        sizes = {_elements(one) for one in here}
        kind, cause, leaves = key[0], " that the strategy does not need", ()
        for other, sign in (("all-gather", "all_gather"), ("reduce-scatter", "reduce_scatter")):
            same = [one for one in wanted.get((other, key[1]), []) if _elements(one) in sizes]
            if other != kind and (same or where.endswith(sign)):
                cause, leaves = f" where {other} was planned", _leaves(same)
            if where.endswith(sign):
                break
        size = _volume(here)
        message = f"{kind} of {size:,} bytes a step at {where}{cause}{f' ({_names(leaves)})' if leaves else ''}"
        problems.append(Discrepancy("unplanned", kind, leaves, where, 0, size, message))
    return problems


def _missing(kind: str, plans: Sequence[Planned]) -> Discrepancy:
    leaves = _leaves(plans)
    size = _volume(plans)
    axes = ", ".join(plans[0].axes)
    message = f"no {kind} over {axes}: planned {size:,} bytes a step for {_names(leaves)} ({plans[0].purpose})"
    return Discrepancy("missing", kind, leaves, "", size, 0, message)


def _differences(
    kind: str, plans: Sequence[Planned], collectives: Sequence[Collective], tolerance: float
) -> list[Discrepancy]:
    planned_bytes, found_bytes = _volume(plans), _volume(collectives)
    most = _moved(plans)
    least = sum(_least(one) * _elements(one) for one in plans)
    moved = _moved(collectives)
    slack = max(tolerance * most, SCALARS_BYTES)
    axes = ", ".join(plans[0].axes)
    amounts = f"{found_bytes:,} bytes a step, planned {planned_bytes:,}"

    def found(problem: Problem, leaves: tuple[str, ...], cause: str) -> list[Discrepancy]:
        where = _places(collectives)
        message = f"{kind} over {axes}: {amounts}{cause}"
        return [Discrepancy(problem, kind, leaves, where, planned_bytes, found_bytes, message)]

    if not least - slack <= moved <= most + slack:
        leaves = _off(plans, collectives) or _leaves(plans)
        return found("bytes", leaves, f" ({_names(leaves)}){_cause(kind, plans, collectives, moved < least)}")
    times, planned_times = sum(one.count or 0 for one in collectives), sum(one.count for one in plans)
    if times > planned_times:
        return found("count", _leaves(plans), f", in {times} pieces instead of {planned_times}")
    if abs(found_bytes / moved - planned_bytes / most) > tolerance * planned_bytes / most:
        width, planned_width = found_bytes / moved, planned_bytes / most
        return found("width", _leaves(plans), f": {width:g} bytes an element instead of {planned_width:g}")
    return []


def _off(plans: Sequence[Planned], collectives: Sequence[Collective]) -> tuple[str, ...]:
    """The leaves whose size of array is moved more or less often than planned."""
    by_size: dict[float, list[Planned]] = defaultdict(list)
    for one in plans:
        by_size[_elements(one)].append(one)
    off: list[Planned] = []
    for size, same in by_size.items():
        times = sum(one.count or 0 for one in collectives if _elements(one) == size)
        if not sum(map(_least, same)) <= times <= sum(one.count for one in same):
            off += same
    return _leaves(off)


def _cause(kind: str, plans: Sequence[Planned], collectives: Sequence[Collective], too_little: bool) -> str:
    backward = [one for one in collectives if "transpose(" in one.op_name]
    if kind == "all-gather" and too_little and not backward and any(one.repeated for one in plans):
        return "; the backward pass does not gather again, so gathered parameters are kept"
    largest = max(collectives, key=lambda one: one.bytes)
    if kind == "all-reduce" and not too_little and largest.bytes > max(one.bytes for one in plans):
        return f"; whole arrays instead of shards at {largest.where}"
    return ""
