"""How often each instruction of a compiled program runs: loops, calls, fusions and branches followed (no JAX)."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxdp.hlo.text import Computation, Instruction, Program

_KNOWN_TRIPS = re.compile(r'known_trip_count[\\": ]+\{[\\": ]*n[\\": ]+(\d+)')
_KNOWN_COUNTER = re.compile(r'known_induction_variable[\\": ]+\{[\\": ]*tuple_index[\\": ]+(\d+)')
_CALLERS = frozenset(("fusion", "call", "async-start", "custom-call"))
_TRANSPARENT = frozenset(("copy", "bitcast", "copy-done", "copy-start", "reshape"))


class Site(NamedTuple):
    """An instruction where it runs: `count` times in one run of the program, None inside a loop of unknown length.

    `body` is the loop body, branch or entry that it belongs to once fusions and calls are looked through.
    `assumption` says what was assumed about a branch around it, "" if there is none.
    """

    instruction: Instruction
    computation: Computation
    body: str
    count: int | None
    assumption: str


@dataclass(frozen=True)
class _Run:
    """The circumstances in which a computation runs; `trips` and `counter` are those of the loop it is the body of."""

    body: str
    count: int | None = 1
    assumption: str = ""
    trips: int | None = None
    counter: int | None = None
    count_outside: int | None = 1


Wanted = Callable[[Instruction], bool]
Weight = Callable[[list[Site]], float]


def walk(program: Program, wanted: Wanted, weight: Weight) -> list[Site]:
    """All wanted instructions with their counts, in the program's order.

    Of a conditional's branches the one whose sites weigh most is taken; but if there are as many branches as
    the loop around them has trips, and the loop's counter chooses among them, each is taken once.
    """
    return list(_visit(program, program.computation(program.entry), _Run(program.entry), wanted, weight))


def _visit(program: Program, computation: Computation, run: _Run, wanted: Wanted, weight: Weight) -> Iterator[Site]:
    def inside(name: str, run: _Run) -> list[Site]:
        return list(_visit(program, program.computation(name), run, wanted, weight))

    for instruction in computation.instructions:
        if wanted(instruction):
            yield Site(instruction, computation, run.body, run.count, run.assumption)
        if instruction.opcode == "while":
            (condition,), (body,) = instruction.callees("condition"), instruction.callees("body")
            trips, counter = _loop(program, computation, instruction)
            checks = None if trips is None else trips + 1
            yield from inside(condition, _Run(condition, _times(run.count, checks), run.assumption))
            looped = _Run(body, _times(run.count, trips), run.assumption, trips, counter, run.count)
            yield from inside(body, looped)
        elif instruction.opcode == "conditional":
            yield from _branches(computation, instruction, run, inside, weight)
        elif instruction.opcode in _CALLERS:
            names = ("calls", "to_apply") if instruction.opcode == "call" else ("calls", "called_computations")
            for name in instruction.callees(*names):
                yield from inside(name, replace(run, trips=None, counter=None))


def _branches(
    computation: Computation,
    conditional: Instruction,
    run: _Run,
    inside: Callable[[str, _Run], list[Site]],
    weight: Weight,
) -> list[Site]:
    names = conditional.callees("branch_computations", "true_computation", "false_computation")
    if len(names) == run.trips and _follows_counter(computation, conditional.operands[0], run.counter):
        taken = f"each of {len(names)} branches once in {run.trips} iterations"
        return [site for name in names for site in inside(name, _Run(name, run.count_outside, taken))]
    taken = f"the largest of {len(names)} branches"
    branches = [inside(name, _Run(name, run.count, taken)) for name in names]
    return max(branches, key=weight, default=[])


def loop_trips(program: Program, computation: Computation, loop: Instruction) -> int | None:
    """How often a loop's body runs; None where the program doesn't fix it."""
    return _loop(program, computation, loop)[0]


def _times(count: int | None, trips: int | None) -> int | None:
    return None if count is None or trips is None else count * trips


def _loop(program: Program, computation: Computation, loop: Instruction) -> tuple[int | None, int | None]:
    """(trips, place of the counter in the loop's state); None for what the program doesn't fix.

    XLA for CPU and GPU notes both. XLA for TPU doesn't: there the trips follow from the counter's start, step
    and limit if all three are constants.
    """
    known, counter = _KNOWN_TRIPS.search(loop.attributes), _KNOWN_COUNTER.search(loop.attributes)
    if known:
        return int(known[1]), int(counter[1]) if counter else None
    (condition,), (body,) = loop.callees("condition"), loop.callees("body")
    return _counted(program.computation(condition), program.computation(body), computation, loop)


def _counted(
    condition: Computation, body: Computation, around: Computation, loop: Instruction
) -> tuple[int | None, int | None]:
    test = condition.by_name.get(condition.root)
    if test is None or test.opcode != "compare" or test.attribute("direction") != "LT":
        return None, None
    left, right = test.operands
    counter, limit = _place(condition, left), _constant(condition, right)
    state, result = around.by_name.get(loop.operands[0]), body.by_name.get(body.root)
    if counter is None or limit is None or state is None or result is None:
        return None, counter
    if state.opcode != "tuple" or result.opcode != "tuple":
        return None, counter
    start, step = _constant(around, state.operands[counter]), _step(body, result.operands[counter], counter)
    if start is None or step is None or step <= 0:
        return None, counter
    return max(0, math.ceil((limit - start) / step)), counter


def _step(body: Computation, name: str, counter: int) -> int | None:
    """The constant that an iteration adds to the counter."""
    added = _through(body, name)
    if added is None or added.opcode != "add":
        return None
    for one, other in (added.operands, added.operands[::-1]):
        if _place(body, one) == counter:
            return _constant(body, other)
    return None


def _place(computation: Computation, name: str) -> int | None:
    """Which member of the computation's one parameter a name is, if it is one."""
    found = _through(computation, name)
    if found is None or found.opcode != "get-tuple-element":
        return None
    whole = computation.by_name.get(found.operands[0])
    return found.integers("index")[0] if whole is not None and whole.opcode == "parameter" else None


def _constant(computation: Computation, name: str) -> int | None:
    found = _through(computation, name)
    if found is None or found.opcode != "constant" or not re.fullmatch(r"-?\d+", found.operand_text):
        return None
    return int(found.operand_text)


def _through(computation: Computation, name: str) -> Instruction | None:
    """The instruction behind any copies."""
    found = computation.by_name.get(name)
    while found is not None and found.opcode in _TRANSPARENT:
        found = computation.by_name.get(found.operands[0])
    return found


def _follows_counter(computation: Computation, name: str, counter: int | None) -> bool:
    """Whether a value is computed from the loop's counter."""
    pending, seen = [name], set()
    while pending and counter is not None:
        found = computation.by_name.get(pending.pop())
        if found is None or found.name in seen or found.opcode in ("parameter", "constant"):
            continue
        if _place(computation, found.name) == counter:
            return True
        seen.add(found.name)
        pending += found.operands
    return False
