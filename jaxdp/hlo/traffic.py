"""Bytes that a kernel of a compiled program reads and writes in the device's memory (no JAX).

A fusion reads of an operand only what it slices out of it, and writes of a buffer that it updates in place only the
update: XLA stacks a scan's activations so, and counting the whole stacks would outweigh everything else.
"""

from jaxdp.hlo.text import Computation, Instruction, Program, arrays

_VIEWS = ("bitcast", "reshape", "copy", "convert", "get-tuple-element")
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")


def moved_bytes(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Bytes read and written by one run of an instruction."""
    if instruction.opcode == "fusion":
        (called,) = instruction.callees("calls")
        inside = program.computation(called)
        return _read_by_fusion(inside) + _written(inside, inside.by_name[inside.root])
    if instruction.opcode in _SLICES:
        return 2 * _bytes(instruction)
    if instruction.opcode in _UPDATES:
        return 2 * _update_bytes(computation, instruction)
    operands = {name for name in instruction.operands if name in computation.by_name}
    return sum(_bytes(computation.by_name[name]) for name in operands) + _bytes(instruction)


def _read_by_fusion(inside: Computation) -> int:
    users: dict[str, list[Instruction]] = {}
    for instruction in inside.instructions:
        for name in instruction.operands if instruction.opcode not in ("parameter", "constant") else ():
            users.setdefault(name, []).append(instruction)
    parameters = [one for one in inside.instructions if one.opcode == "parameter"]
    return sum(_read(parameter, _bytes(parameter), users) for parameter in parameters)


def _read(value: Instruction, size: int, users: dict[str, list[Instruction]]) -> int:
    """What the users of a value take of it: at most all of it."""
    taken = 0
    for user in users.get(value.name, ()):
        if user.opcode in _SLICES and user.operands[0] == value.name:
            taken += _bytes(user)
        elif user.opcode in _UPDATES and user.operands[0] == value.name:
            continue  # the buffer itself stays where it is
        elif user.opcode in _VIEWS:
            taken += _read(user, size, users)
        else:
            return size
    return min(taken, size)


def _written(inside: Computation, result: Instruction) -> int:
    if result.opcode == "tuple":
        return sum(_written(inside, inside.by_name[name]) for name in result.operands)
    source = result
    while source.opcode in _VIEWS and source.operands[0] in inside.by_name:
        source = inside.by_name[source.operands[0]]
    return _update_bytes(inside, source) if source.opcode in _UPDATES else _bytes(result)


def _update_bytes(computation: Computation, update: Instruction) -> int:
    place = 1 if update.opcode == "dynamic-update-slice" else -1
    source = computation.by_name.get(update.operands[place])
    return _bytes(source) if source is not None else 0


def _bytes(instruction: Instruction) -> int:
    return sum(array.bytes for array in arrays(instruction.shape))
