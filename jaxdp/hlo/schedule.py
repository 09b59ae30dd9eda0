"""A scheduled program in the order in which a device runs it: kernels, collectives begun and awaited, loops (no JAX).

XLA for GPUs prints a module whose instructions stand in the order of their launch (`is_scheduled=true`). `schedule`
reads it into a tree that a player can walk: what a kernel computes and moves, what a collective sends, how often a loop
runs. Names that cost nothing on a device (bitcasts, tuples, constants) are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from jaxdp.errors import JaxdpError
from jaxdp.hlo import flops, traffic
from jaxdp.hlo.collectives import Collective, collective_kind, collectives
from jaxdp.hlo.text import Computation, Instruction, Program, parse
from jaxdp.hlo.walk import loop_trips

KernelKind = Literal["product", "attention", "other"]
_FREE = frozenset((
    "add-dependency", "after-all", "bitcast", "constant", "get-tuple-element", "iota", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple",
))  # fmt: skip
_AWAITS = ("-done", "-update")


@dataclass(frozen=True)
class Kernel:
    """One launch. `bytes` is what it reads and writes in the device's memory, slices counted as slices."""

    name: str
    kind: KernelKind
    flops: int
    bytes: int
    op_name: str


@dataclass(frozen=True)
class Begin:
    """A collective is started; it runs beside the kernels until it is awaited."""

    collective: Collective


@dataclass(frozen=True)
class Await:
    """The program goes on once the collective of this name has ended."""

    name: str


@dataclass(frozen=True)
class Loop:
    """`body`, `trips` times."""

    name: str
    trips: int
    body: tuple["Operation", ...]


Operation = Kernel | Begin | Await | Loop


def schedule(text: str) -> tuple[Operation, ...]:
    """The operations of `compiled.as_text()`, in order.

    Raises `JaxdpError` for a program that is not scheduled or has a loop of unknown length.
    """
    header = text.partition("\n")[0]
    if "is_scheduled=true" not in header:
        raise JaxdpError("compiled program: it is not scheduled, so what overlaps what cannot be told")
    program = parse(text)
    known = {one.name: one for one in collectives(text)}
    return tuple(_operations(program, program.computation(program.entry), known))


def kernels(operations: tuple[Operation, ...]) -> Iterator[tuple[Kernel, int]]:
    """Every kernel with how often it runs."""
    for operation in operations:
        if isinstance(operation, Kernel):
            yield operation, 1
        elif isinstance(operation, Loop):
            yield from ((kernel, count * operation.trips) for kernel, count in kernels(operation.body))


def _operations(program: Program, computation: Computation, known: dict[str, Collective]) -> Iterator[Operation]:
    for instruction in computation.instructions:
        opcode = instruction.opcode
        if opcode in _FREE:
            continue
        if opcode == "while":
            yield _loop(program, computation, instruction, known)
        elif opcode in ("call", "conditional"):
            yield from _called(program, instruction, known)
        elif collective_kind(instruction) is not None:
            yield from _started(instruction, known)
        elif opcode.endswith(_AWAITS):
            if (started := _origin(computation, instruction)) in known:
                yield Await(started)
        elif opcode == "async-start":
            yield from _wrapped(program, instruction, known)
        else:
            yield _kernel(program, computation, instruction)


def _loop(program: Program, computation: Computation, loop: Instruction, known: dict[str, Collective]) -> Loop:
    trips = loop_trips(program, computation, loop)
    if trips is None:
        raise JaxdpError(f"compiled program: the length of loop {loop.name} is not in its text")
    (body,) = loop.callees("body")
    return Loop(loop.name, trips, tuple(_operations(program, program.computation(body), known)))


def _called(program: Program, call: Instruction, known: dict[str, Collective]) -> Iterator[Operation]:
    """What a call runs; of a conditional's branches, the one with the most operations."""
    names = call.callees("to_apply", "branch_computations", "true_computation", "false_computation")
    branches = [tuple(_operations(program, program.computation(name), known)) for name in names]
    yield from max(branches, key=len, default=())


def _started(instruction: Instruction, known: dict[str, Collective]) -> Iterator[Operation]:
    if instruction.name not in known or known[instruction.name].group_size == 1:
        return
    yield Begin(known[instruction.name])
    if not instruction.opcode.endswith("-start"):
        yield Await(instruction.name)


def _wrapped(program: Program, start: Instruction, known: dict[str, Collective]) -> Iterator[Operation]:
    """A generic asynchronous start: a collective of its own computation, or else kernels that run at once."""
    for name in start.callees("calls", "called_computation"):
        yield from _operations(program, program.computation(name), known)


def _origin(computation: Computation, done: Instruction) -> str:
    """The name of the start that a done, or an update in between, belongs to."""
    name = done.operands[0]
    while (source := computation.by_name.get(name)) is not None and source.opcode.endswith("-update"):
        name = source.operands[0]
    return name


def _kernel(program: Program, computation: Computation, instruction: Instruction) -> Kernel:
    count = flops.of_instruction(program, computation, instruction)
    attention = "fmha" in instruction.rest or "flash" in instruction.op_name
    kind: KernelKind = "attention" if attention else "product" if count else "other"
    moved = traffic.moved_bytes(program, computation, instruction)
    return Kernel(instruction.name, kind, count, moved, instruction.op_name)
