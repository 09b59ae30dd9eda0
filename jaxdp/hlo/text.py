"""The grammar of a compiled XLA program's text: computations, instructions, shapes (no JAX).

`parse(compiled.as_text())` reads what `hlo` and `hlo_walk` need and leaves the rest as text: a program of a
hundred million parameters has thousands of instructions, of which a few dozen matter.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from jaxdp.errors import JaxdpError

_HEADER = re.compile(r"(ENTRY )?%?([^\s(]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?(\S+) = (.*?) ([a-z][a-z0-9\-]*)(\(.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=?]*)\]")
_METADATA = re.compile(r'metadata=\{(?:[^{}"]|\{[^{}]*\}|"(?:[^"\\]|\\.)*")*\}')
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_COMMENT = re.compile(r"/\*.*?\*/")
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


class Array(NamedTuple):
    """The dtype (XLA's name) and the dims of one array."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return math.ceil(self.elements * dtype_bits(self.dtype) / 8)


def dtype_bits(dtype: str) -> int:
    """Bits of one element as XLA names its types: `bf16`, `f8e4m3fn`, `s4`, `pred`; 0 for tokens."""
    if dtype in ("token", "opaque"):
        return 0
    digits = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
    return int(digits[1]) if digits else 8  # pred takes a byte


def arrays(shape: str) -> list[Array]:
    """All arrays of a shape, tuples flattened."""
    return [Array(dtype, _dims(dims)) for dtype, dims in _ARRAY.findall(shape)]


def _dims(text: str) -> tuple[int, ...]:
    return tuple(int(dim.lstrip("<=")) for dim in text.split(",") if dim.strip("<=?"))


def components(shape: str) -> list[str]:
    """The members of a tuple shape; of any other shape, itself."""
    shape = shape.strip()
    return list(split(shape[1:-1])) if shape.startswith("(") else [shape]


def split(text: str) -> Iterator[str]:
    """The parts between the commas that lie outside any bracket or string."""
    depth, start = 0, 0
    for mark in _MARKS.finditer(text):
        depth += _DEPTH.get(mark[0], 0)
        if mark[0] == "," and depth == 0:
            yield text[start : mark.start()].strip()
            start = mark.end()
    if text[start:].strip():
        yield text[start:].strip()


def _closing(text: str) -> int:
    """Where the bracket closes that `text` opens with."""
    depth = 0
    for mark in _MARKS.finditer(text):
        depth += _DEPTH.get(mark[0], 0)
        if depth == 0:
            return mark.start()
    return len(text)


class Instruction(NamedTuple):
    """One line: `name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def operand_text(self) -> str:
        return self.rest[1 : _closing(self.rest)]

    @property
    def operands(self) -> list[str]:
        """The operands' names, whether or not their shapes are printed before them."""
        parts = split(_COMMENT.sub("", self.operand_text))
        return [part.split()[-1].lstrip("%") for part in parts]

    @property
    def attributes(self) -> str:
        """What follows the operands, without the metadata: a user's names must not pass for attributes."""
        return _METADATA.sub("", self.rest[_closing(self.rest) + 1 :])

    @property
    def op_name(self) -> str:
        """The path of JAX scopes and the operation that this instruction comes from, "" if not recorded."""
        found = _OP_NAME.search(self.rest)
        return found[1].replace("\\'", "'").replace('\\"', '"') if found else ""

    def attribute(self, name: str) -> str | None:
        """An attribute's value as written, such as `{1,0}` or `%region_0.1`; None if it isn't there."""
        for part in split(self.attributes):
            if part.startswith(f"{name}="):
                return part[len(name) + 1 :].strip()
        return None

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute such as `{1,0}` or `3` as integers; () if it isn't there."""
        return tuple(int(number) for number in re.findall(r"-?\d+", self.attribute(name) or ""))

    def callees(self, *names: str) -> list[str]:
        """The computations that the attributes of these names call."""
        bare = _QUOTED.sub('""', self.attributes)
        called: list[str] = []
        for name in names:
            for value in re.findall(rf"\b{name}=(\{{[^}}]*\}}|[^\s,]+)", bare):
                called += [part.strip().lstrip("%") for part in value.strip("{}").split(",") if part.strip()]
        return called


@dataclass(frozen=True)
class Computation:
    """A named list of instructions; the last one marked ROOT is its result."""

    name: str
    instructions: list[Instruction]
    root: str

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {instruction.name: instruction for instruction in self.instructions}

    @cached_property
    def targets(self) -> frozenset[str]:
        """The library functions that it calls."""
        calls = [instruction for instruction in self.instructions if instruction.opcode == "custom-call"]
        return frozenset(_TARGET.findall("\n".join(call.rest for call in calls)))

    def array(self, operand: str) -> Array | None:
        """The array that a name stands for, or None if it isn't one array defined here."""
        found = arrays(self.by_name[operand].shape) if operand in self.by_name else []
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True)
class Program:
    """All computations of a compiled module; it runs on `replicas` x `partitions` devices."""

    entry: str
    computations: dict[str, Computation]
    replicas: int
    partitions: int

    @property
    def devices(self) -> int:
        return self.replicas * self.partitions

    def computation(self, name: str) -> Computation:
        if name not in self.computations:
            raise JaxdpError(f"compiled program: calls {name}, which its text lacks; pass all of compiled.as_text()")
        return self.computations[name]


def parse(text: str) -> Program:
    """Reads `compiled.as_text()`; raises `JaxdpError` if that is not a compiled program."""
    computations: dict[str, Computation] = {}
    entry, replicas, partitions = "", 1, 1
    name, body, root = "", [], ""
    for line in text.splitlines():
        if line[:1].isspace():
            if name and (found := _INSTRUCTION.match(line)):
                body.append(Instruction(*found.groups()[1:]))
                root = found[2] if found[1] else root
        elif line.startswith("HloModule"):
            replicas, partitions = _size("replica_count", line), _size("num_partitions", line)
        elif line.startswith("}") and name:
            computations[name] = Computation(name, body, root)
            name = ""
        elif header := _HEADER.match(line):
            name, body, root = header[2], [], ""
            entry = name if header[1] else entry
    if entry not in computations:
        raise JaxdpError("compiled program: its text has no complete ENTRY; pass compiled.as_text()")
    return Program(entry, computations, replicas, partitions)


def _size(name: str, header: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", header)
    return int(found[1]) if found else 1
