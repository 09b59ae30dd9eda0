"""The compiled check: the program that XLA makes of a config, held against the plan of its collectives.

Imports JAX when called. With a topology the program is that of TPUs or GPUs that need not be there.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.hlo.collectives import Collective, collectives
from jaxdp.mesh.topology import is_gpu_topology, topology_devices
from jaxdp.mesh.xla_options import DEVICELESS, Options
from jaxdp.predict.discrepancies import Discrepancy, compare
from jaxdp.predict.preflight import Diagnostic, Report
from jaxdp.predict.sharding import shards
from jaxdp.predict.traffic import planned_collectives
from jaxdp.strategies.collectives import Planned
from jaxdp.strategies.rules import ShardRule

if TYPE_CHECKING:
    import jax

    from jaxdp.mesh.compile import CompiledBytes

# What is the backend's choice and no fault of the program is noted, but no finding: a CPU widens bfloat16, a TPU
# sums arrays smaller than its tiles whole. So is what moves less than this share of the planned bytes.
NOTED = ("width", "count")
NEGLIGIBLE = 0.01


class Program(NamedTuple):
    """What the compiler made: its collectives, what it needs a device, and where it leaves the plan."""

    collectives: tuple[Collective, ...]
    bytes: "CompiledBytes | None"
    findings: tuple[Diagnostic, ...]
    notes: tuple[str, ...]


def compiled_check(
    config: Config,
    report: Report,
    hosts: int = 1,
    topology: str | None = None,
    memory_bytes: int | None = None,
    rule: ShardRule | None = None,
    host_names: Sequence[str] = ("this one",),
) -> Report:
    """The report of the fast check with the compiled program's findings and memory.

    `rule` compiles another rule than the strategy's, held against the strategy's plan. `host_names` are those of
    the processes that check together, each its own part of the devices.
    """
    if config.strategy.name == "ps":
        raise BadInput("--compile: a parameter server has no collectives of its own; check server.worker_strategy")
    devices = _devices(report.devices, topology, hosts, host_names)
    program = examine(config, devices, hosts, rule, DEVICELESS if topology and is_gpu_topology(topology) else None)
    needed = program.bytes.total if program.bytes else report.memory_bytes
    findings = [*report.findings, *program.findings]
    if memory_bytes is not None and needed is not None and needed > memory_bytes:
        findings = [finding for finding in findings if finding.name != "memory"]
        message = f"the compiled step needs {needed} bytes per device, which has {memory_bytes}"
        findings.append(Diagnostic("memory", "error", message, "use more devices, or more microbatches"))
    return replace(report, findings=tuple(findings), memory_bytes=needed, compiled=_compiled(program))


def examine(
    config: Config,
    devices: "list[jax.Device]",
    hosts: int = 1,
    rule: ShardRule | None = None,
    options: Options | None = None,
) -> Program:
    """Compiles the step for these devices and compares its collectives with the plan."""
    from jaxdp.mesh.compile import compile_step, compiled_bytes

    compiled = compile_step(config, devices, hosts, rule, options)
    found = collectives(compiled.as_text())
    dtype = config.train.dtype_on(devices[0].platform)
    planned = planned_collectives(config, shards(config, len(devices), hosts), dtype)
    negligible = NEGLIGIBLE * sum(one.count * one.bytes for one in planned)
    findings, notes = [], []
    for problem in compare(planned, found):
        if problem.problem in NOTED or abs(problem.found_bytes - problem.planned_bytes) <= negligible:
            notes.append(problem.message)
        else:
            # How often a user's task unshards its parameters is its own matter.
            findings.append(_finding(problem, "warning" if config.task else "error"))
    if config.strategy.row.flat:
        findings += _merged_rounds(planned, found)
    return Program(tuple(found), compiled_bytes(compiled), tuple(findings), tuple(notes))


def _merged_rounds(planned: Sequence[Planned], found: Sequence[Collective]) -> list[Diagnostic]:
    """The flat unit pays by its rounds: fewer than planned, and the compiler has merged some."""
    wanted = sum(one.count for one in planned if one.kind == "all-reduce")
    there = sum(one.count or 0 for one in found if one.kind == "all-reduce")
    if there >= wanted:
        return []
    message = f"the flat unit's fetches take {there} all-reduces a step instead of {wanted}: rounds were merged"
    return [Diagnostic("unplanned_collective", "error", message, "make each round depend on the one before", "blocks")]


def _finding(problem: Discrepancy, severity: Literal["warning", "error"] = "error") -> Diagnostic:
    return Diagnostic(
        "unplanned_collective",
        "warning" if problem.problem in ("unknown", "rewritten") else severity,
        f"{problem.message} ({problem.where})" if problem.where else problem.message,
        _REMEDY[problem.problem],
        problem.leaves[0] if problem.leaves else None,
    )


_REMEDY = {
    "missing": "look for a parameter whose shards are never gathered or whose gradient is never reduced",
    "unplanned": "look for an operation that mixes devices, or a value that the rule leaves whole",
    "bytes": "look for a gather that is saved instead of repeated, or a whole reduction instead of a scatter",
    "unknown": "the length of the loop around it is not in the program",
    "rewritten": "each such byte is sent twice as often; hsdp over fewer devices of the slice may keep its scatters",
}


def _compiled(program: Program) -> dict[str, Any]:
    from jaxdp.strategies.collectives import summarise

    rows, moved = summarise(program.collectives)
    return {
        "collectives": rows,
        "collective_bytes_per_device": moved,
        "notes": list(program.notes),
        "memory": None if program.bytes is None else program.bytes._asdict() | {"total": program.bytes.total},
    }


def _devices(count: int, topology: str | None, hosts: int, host_names: Sequence[str]) -> "list[jax.Device]":
    if topology is None:
        from jaxdp.mesh.devices import claim

        return claim(count, host_names)
    found = topology_devices(topology, hosts)
    if count > len(found):
        raise BadInput(f"--topology {topology}: has {len(found)} devices, not {count}; set --devices {len(found)}")
    return found[:count]
