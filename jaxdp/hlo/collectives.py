"""The collectives of a compiled program, with how often each runs: `collectives(compiled.as_text())` (no JAX)."""

import math
import re
from dataclasses import dataclass

from jaxdp.hlo.replica_groups import Groups, device_groups
from jaxdp.hlo.text import Array, Instruction, Program, arrays, components, dtype_bits, parse
from jaxdp.hlo.walk import Site, walk

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
# XLA for TPU writes most reduce-scatters as a fusion of this name: an all-reduce of which each device keeps its slice,
# which runs as one ring of scatters.
_FUSED_SCATTER = "all-reduce-scatter"
_SCATTER = "reduce_scatter"  # how JAX names its operation


@dataclass(frozen=True)
class Collective:
    """One collective instruction.

    `bytes` is the size of the whole array, over all `operands`: an all-gather's output, a reduce-scatter's
    input, what an all-reduce sums. `groups` are device ids in the mesh's order, None if their spelling is
    unknown; of a permutation they are (source, target) pairs. `count` is how often it runs in one run of the
    program, None inside a loop of unknown length. `assumption` says what was assumed about a branch around it.
    `scattered` marks an all-reduce that the compiler made of a reduce-scatter, as XLA for TPU does on some slices.
    """

    kind: str
    dtypes: tuple[str, ...]
    bytes: int
    group_size: int
    groups: Groups | None
    count: int | None
    operands: int
    name: str
    op_name: str
    assumption: str = ""
    scattered: bool = False

    @property
    def dtype_bytes(self) -> int:
        """Bytes of the widest element, at least 1."""
        return max(1, *(dtype_bits(dtype) // 8 for dtype in self.dtypes))

    @property
    def where(self) -> str:
        """The part of the model and of the step that it belongs to, for a message."""
        backward = "backward: " if "transpose(" in self.op_name else ""
        recomputed = "recomputed: " if "rematted_computation" in self.op_name else ""
        dull = r"jit\(.*\)|shard_map|while|body|closed_call|eval_jaxpr|checkpoint|rematted_computation|.*jvp\(.*\)|cond"
        scopes = [part for part in self.op_name.split("/") if part and not re.fullmatch(dull, part)]
        return f"{backward}{recomputed}{'/'.join(scopes) or self.name}"


def collectives(text: str) -> list[Collective]:
    """The collectives of a compiled program, in its order; raises `JaxdpError` if `text` is not one.

    A `-start` counts for its pair. Of a conditional's branches the one that moves most is taken, unless the
    loop's counter takes each once (see `hlo_walk.walk`).
    """
    program = parse(text)

    def read(site: Site) -> Collective:
        instruction, kind = site.instruction, collective_kind(site.instruction) or ""
        groups = device_groups(instruction, kind, program.replicas, program.partitions)
        size = max(map(len, groups)) if groups else program.devices
        fused = kind == "all-reduce" and site.computation.name.startswith(_FUSED_SCATTER)
        results = _summed(site) if fused else _results(instruction, kind)
        whole = size if kind == "reduce-scatter" else 1
        summing = _summing_name(program, instruction)
        return Collective(
            kind="reduce-scatter" if fused else kind,
            dtypes=tuple(dict.fromkeys(array.dtype for array in results)),
            bytes=whole * sum(array.bytes for array in results),
            group_size=size,
            groups=groups,
            count=site.count,
            operands=len(results),
            name=instruction.name,
            op_name=_op_name(site) or summing,
            assumption=site.assumption,
            scattered=kind == "all-reduce" and not fused and summing.rpartition("/")[2] == _SCATTER,
        )

    def weight(sites: list[Site]) -> float:
        read_sites = map(read, _without_continuations(sites))
        return sum(math.inf if c.count is None else c.count * c.bytes for c in read_sites)

    return [
        read(site) for site in _without_continuations(walk(program, lambda i: collective_kind(i) is not None, weight))
    ]


def _op_name(site: Site) -> str:
    """Its own, or that of what it works on: XLA drops the name of a collective that it rewrites."""
    sources = (site.computation.by_name.get(name) for name in site.instruction.operands)
    names = [site.instruction.op_name, *(source.op_name for source in sources if source)]
    return next(filter(None, names), "")


def _summing_name(program: Program, instruction: Instruction) -> str:
    """What the computation that adds two elements comes from: it keeps the name of the operation JAX asked for."""
    called = (program.computations.get(name) for name in instruction.callees("to_apply"))
    return next((one.op_name for each in called if each for one in each.instructions if one.op_name), "")


def _summed(site: Site) -> list[Array]:
    """The arrays that a fused all-reduce sums, without the padding to whole tiles."""
    sources = [site.computation.by_name[name] for name in site.instruction.operands]
    names = [source.operands[0] if source.opcode == "pad" else source.name for source in sources]
    return [array for name in names for array in arrays(site.computation.by_name[name].shape)]


def collective_kind(instruction: Instruction) -> str | None:
    """The kind of a collective, or of the start of one; None for any other instruction."""
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in KINDS else None


def _results(instruction: Instruction, kind: str) -> list[Array]:
    """The arrays that a collective leaves behind; a `-start` mostly holds its operands, then these, then contexts."""
    members = components(instruction.shape)
    if instruction.opcode.endswith("-start") and kind != "all-reduce" and len(members) > 1:
        return arrays(members[1])
    return arrays(instruction.shape)


def _without_continuations(sites: list[Site]) -> list[Site]:
    """Leaves out the copies that XLA for TPU makes of a collective in each fusion it is overlapped with.

    The original is the one that feeds `AsyncCollectiveStart`; copies share its channel and chain.
    """
    started = {_chain(site) for site in sites if "AsyncCollectiveStart" in site.computation.targets}

    def continues(site: Site) -> bool:
        if _chain(site) not in started or "AsyncCollectiveStart" in site.computation.targets:
            return False
        overlapped = site.computation.name.startswith("async_collective_fusion")
        return overlapped or "AsyncCollectiveDone" in site.computation.targets

    return [site for site in sites if not continues(site)]


def _chain(site: Site) -> tuple[str | None, ...]:
    attribute = site.instruction.attribute
    return collective_kind(site.instruction), site.body, attribute("channel_id"), attribute("frontend_attributes")
