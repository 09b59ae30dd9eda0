"""What a ready run is: bytes a device, the collectives of its compiled program, and its share of the peak."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import psutil

from jaxdp.hlo.collectives import collectives
from jaxdp.hlo.flops import flops
from jaxdp.job import processes
from jaxdp.mesh.compile import compiled_bytes
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.hardware import PRESETS
from jaxdp.records import How, Memory
from jaxdp.run.factory import Run
from jaxdp.server.run import ServerRun
from jaxdp.strategies import volume
from jaxdp.strategies.collectives import summarise
from jaxdp.workload import units_per_batch

HOW: dict[str, How] = {
    "tokens_per_second": "measured",
    "tokens_per_second_per_device": "measured",
    "step_time_s": "measured",
    "compile_s": "measured",
    "data_wait_share": "measured",
    "mfu_percent": "measured",
    "mfu_causal_percent": "measured",
    "hfu_percent": "compiled",
    "memory.state_bytes_per_device": "measured",
    "memory.parameter_bytes_per_device": "measured",
    "memory.gradient_bytes_per_device": "predicted",
    "memory.optimizer_bytes_per_device": "measured",
    "memory.compiled_bytes_per_device": "compiled",
    "memory.device_peak_bytes": "measured",
    "memory.host_rss_bytes": "measured",
    "collectives": "compiled",
    "collective_bytes_per_device": "compiled",
    "collective_bytes_minimum": "predicted",
    "loss": "measured",
}


class Communication(NamedTuple):
    """Rows of kind, count and bytes a step; `bytes_per_device` is what one device sends (None: a loop's length is
    unknown), `minimum` what the strategy's own formula says it must."""

    rows: list[dict[str, Any]]
    bytes_per_device: int | None
    minimum: int


class Utilisation(NamedTuple):
    """Percent of the devices' dense bfloat16 peaks; None where a device's peak is unknown."""

    mfu_percent: float | None
    mfu_causal_percent: float | None
    hfu_percent: float | None


def memory_of(run: Run, alone: bool) -> Memory:
    """Bytes a device. The device's peak is the whole process's, so it is known only for a run alone in it.

    A parameter server's devices hold a worker's parameters and gradients; the optimizer state is the host's.
    """
    if isinstance(run, ServerRun):
        member = run.members[0]
        parameters, optimizer = shard_bytes(member.layout.params), 0
    else:
        state = run.started
        parameters, optimizer = bytes_per_device(state.params), bytes_per_device(state.opt_state)
    gradients = parameters  # summed up in float32, in the parameters' own layout
    compiled = compiled_bytes(program_of(run))
    return Memory(
        state_bytes_per_device=parameters + gradients + optimizer,
        parameter_bytes_per_device=parameters,
        gradient_bytes_per_device=gradients,
        optimizer_bytes_per_device=optimizer,
        compiled_bytes_per_device=compiled.total if compiled else None,
        device_peak_bytes=_peak_bytes(run.devices) if alone else None,
        host_rss_bytes=psutil.Process().memory_info().rss,
    )


def program_of(run: Run) -> Any:
    """The compiled step; of a parameter server, a worker's compiled gradient."""
    return run.members[0].compiled if isinstance(run, ServerRun) else run.compiled


def shard_bytes(placements: Any) -> int:
    """Bytes that one device holds of parameters so placed."""
    return PARAMETER_BYTES * sum(math.prod(placement.shard_shape) for placement in jax.tree.leaves(placements))


def bytes_per_device(tree: Any) -> int:
    """Bytes that the fullest device holds of a tree of arrays."""
    held: dict[Any, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values(), default=0)


def communication_of(run: Run) -> Communication:
    """The collectives of the compiled program and the strategy's minimum; of a server, a worker's pull and push."""
    found = collectives(program_of(run).as_text())
    rows, moved = summarise(each for each in found if each.group_size > 1)
    in_blocks, root = (
        sum(parameter.size for parameter in run.recipe.task.parameters if parameter.in_blocks == inside)
        for inside in (True, False)
    )
    step = volume.Step(
        block_parameters=in_blocks,
        root_parameters=root,
        axis_sizes={} if isinstance(run, ServerRun) else run.layout.mesh.shape,
        compute_dtype_bytes=np.dtype(run.recipe.compute_dtype).itemsize,
        accumulation=run.config.train.accumulation,
    )
    if isinstance(run, ServerRun) and moved is not None:
        moved += 2 * run.plan.bytes
    return Communication(rows, moved, round(run.config.strategy.row.least_bytes(step)))


def mfu_formula(run: Run) -> str:
    task = run.recipe.task
    hfu = "hfu: FLOPs of the compiled program's matrix products, recomputation included"
    if task.train_flops_per_unit is None:
        return f"unknown: the task gives no train_flops_per_unit; {hfu}"
    return f"{task.flops_formula} * {task.unit} per second / sum of bf16 peaks; {hfu}"


def utilisation(run: Run, units_per_second: float) -> Utilisation:
    """Model FLOPs are the task's formula's, hardware FLOPs those of the program, recomputation included."""
    peaks = [peak_flops(device.device_kind) for device in run.devices]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return Utilisation(None, None, None)

    def percent(flops: float | None, per_second: float) -> float | None:
        return None if flops is None else 100 * flops * per_second / sum(known)

    task, found = run.recipe.task, flops(program_of(run).as_text())
    return Utilisation(
        percent(task.train_flops_per_unit, units_per_second),
        percent(task.causal_train_flops_per_unit, units_per_second),
        percent(
            None if found.unknown else found.total * len(run.devices), units_per_second / units_per_batch(run.config)
        ),
    )


def peak_flops(device_kind: str) -> float | None:
    """The dense bfloat16 peak of a device kind as JAX names it ("NVIDIA H100 80GB HBM3"); None if unknown."""
    name = re.sub(r"[^a-z0-9]+", "", device_kind.lower())
    for preset, spellings in _KINDS.items():
        if any(name.removeprefix("nvidia") == spelling for spelling in spellings):
            return PRESETS[preset].flops.value
    return None


# A device kind's letters and digits, whole: PCIe, NVL and laptop variants have other peaks, and so no entry.
_KINDS = {
    "a100-80g": ("a100sxm480gb",),
    "h100": ("h10080gbhbm3",),
    "h200": ("h200",),
    "b200": ("b200",),
    "l40s": ("l40s",),
    "rtx4090": ("geforcertx4090",),
    "tpu-v5e": ("tpuv5lite", "tpuv5e"),
    "tpu-v5p": ("tpuv5p", "tpuv5"),
    "tpu-v6e": ("tpuv6lite", "tpuv6e"),
}


def settings(run: Run, xla_flags: tuple[str, ...]) -> dict[str, Any]:
    """What must be equal for two results to be compared."""
    train = run.config.train
    return {
        **run.recipe.task.settings,
        **({"task": str(run.config.task), "unit": run.recipe.task.unit} if run.config.task else {}),
        "compute_dtype": np.dtype(run.recipe.compute_dtype).name,
        "global_batch": train.global_batch,
        "accumulation": train.accumulation,
        "optimizer": run.config.optim.name,
        "seed": train.seed,
        "stragglers": run.config.stragglers,
        "xla_flags": list(xla_flags),
    }


def notes(run: Run, use: Utilisation, findings: list[str], hosts: int) -> list[str]:
    """What a reader must know before believing the figures of a run on so many hosts."""
    said = [f"check: {finding}" for finding in findings]
    if run.config.stragglers:
        said.append(
            f"stragglers injected, slept in real time: {run.config.stragglers}; {run.recipe.task.unit}/s is the mean "
            "of all windows"
        )
    if run.config.strategy.round_latency_s:
        said.append(
            f"a latency of {run.config.strategy.round_latency_s:g} s is injected, slept in every round that fetches "
            "a block or returns its gradients"
        )
    if run.devices[0].platform == "cpu" and len(run.devices) > hosts:
        where = "this machine's cores" if hosts == 1 else f"the cores of {hosts} machines"
        said.append(
            f"the {len(run.devices)} host devices share {where}: their throughput is no evidence of a "
            "cluster's, while memory, collectives and losses are exact"
        )
    if len(kinds := Counter(device.device_kind for device in run.devices)) > 1:
        said.append(
            f"devices of several kinds in one mesh ({', '.join(f'{n} x {kind}' for kind, n in kinds.items())}): each "
            "has an equal part of the batch, so the slowest kind sets the pace; MFU is of the sum of their peaks"
        )
    if use.mfu_percent is not None and use.mfu_percent > 100:
        said.append("MFU above 100 %: the peak of another device was taken, or the timing is wrong")
    return said


def extra(run: Run) -> dict[str, Any]:
    """What only a parameter server has; and under stragglers every strategy's own step times, meant and realised."""
    if isinstance(run, ServerRun):
        server = run.config.server
        chosen = {"engine": server.engine, "workers": run.workers, "policy": server.policy}
        held = {"server_bytes": _abstract_bytes((run.plan.params, run.plan.opt_state))}
        return {**chosen, "correction": server.correction, **held, **run.loop.metrics.summary()}
    if run.clocks is None:
        return {}
    rows = sorted(row for part in processes.gather(run.clocks.summary()) for row in part)
    return {"intended_step_s": [row[1] for row in rows], "realised_step_s": [row[2] for row in rows]}


def _abstract_bytes(tree: Any) -> int:
    """Of all shards of the server: its copy of the parameters and the optimizer's state."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _peak_bytes(devices: Sequence[jax.Device]) -> int | None:
    """The fullest device's peak, over all processes; None where the backend doesn't say, as on a CPU."""
    own = [device.memory_stats() for device in devices if device.process_index == jax.process_index()]
    peaks = processes.gather(max((found["peak_bytes_in_use"] for found in own if found), default=None))
    return max((peak for peak in peaks if peak is not None), default=None)
