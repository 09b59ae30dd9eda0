"""Measures the devices of a run for a plan: what `hardware.toml` needs. Imports JAX when called.

All devices compute at once, as in training; host devices of a CPU share its cores, and so do their rates. Processes
of one host are one host.
"""

import math
from collections.abc import Sequence
from typing import Any

import psutil

from jaxdp.config import Config, build
from jaxdp.predict.probe_links import Gather, fit_link, measure_links, rounds, seconds

# The train step by which a CPU's efficiency is measured: 0.8 million parameters, 256 tokens a device.
REFERENCE = {"layers": 4, "width": 128, "heads": 4, "ffn": 512, "context": 64, "vocab": 256}
REFERENCE_ROWS = 4
CLOSE = 0.1  # hosts whose rates differ by less are one group
SPEED_TOLERANCE = 0.05  # devices of one host that differ by less are equal
COPY_BYTES = {"cpu": 64 * 2**20, "other": 2**30}
PRODUCT_WIDTH = {"cpu": 768, "other": 8192}


def probe(
    devices: Sequence[Any], hosts: Sequence[str] = ("this one",), gather: Gather[Any] = lambda value: [value]
) -> dict[str, Any]:
    """The profile: `hosts` as in `hardware.toml`, and what was measured of every host.

    `hosts` names the host of every process, `gather` gives every process's value; all processes must call this.
    """
    import jax

    here = hosts[jax.process_index()]
    own = [device for device in devices if device.process_index == jax.process_index()]
    on_host = [device for device in devices if hosts[device.process_index] == here]
    first_on_host: dict[str, Any] = {}
    for device in devices:
        first_on_host.setdefault(str(hosts[device.process_index]), device)

    gather("all compute at once")
    measured = _computing(own) | {
        "memory_bytes": _memory_bytes(on_host),
        "intra": measure_links(on_host, gather),
        "between": measure_links(list(first_on_host.values()), gather),
    }
    everyone = by_host(gather(measured), hosts)
    tables = {host: _table(one, len(everyone)) for host, one in zip(first_on_host, everyone, strict=True)}
    if own[0].platform == "cpu":
        for host, reached in zip(hosts, gather(_efficiency(own, tables[here])), strict=True):
            tables[host]["efficiency"] = min(reached, tables[host].get("efficiency", reached))
    return {"hosts": _groups(list(tables.values())), "measured": everyone, "how": {"hosts": "measured"}}


def to_toml(profile: dict[str, Any]) -> str:
    """The profile's `hosts` as a `hardware.toml`."""
    lines = ["# Measured by jaxdp probe. One [[hosts]] for each kind of host; rates are a device's."]
    for group in profile["hosts"]:
        lines += ["", "[[hosts]]", *(f"{key} = {_toml(value)}" for key, value in group.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _computing(own: Sequence[Any]) -> dict[str, Any]:
    kind = "cpu" if own[0].platform == "cpu" else "other"
    alone = [_matmul_flops([device], "float32", PRODUCT_WIDTH[kind]) for device in own]
    return {
        "device_kind": own[0].device_kind,
        "platform": own[0].platform,
        "devices": len(own),
        "flops": {dtype: _matmul_flops(own, dtype, PRODUCT_WIDTH[kind]) for dtype in ("float32", "bfloat16")},
        "speeds": alone,
        "memory_bandwidth": _copy_bandwidth(own, COPY_BYTES[kind]),
    }


def _matmul_flops(devices: Sequence[Any], dtype: str, width: int) -> float:
    """FLOP/s a device of a square product, all these devices at once."""
    import jax
    import jax.numpy as jnp

    operands = [jax.device_put(jnp.ones((width, width), dtype), device) for device in devices]
    multiply = jax.jit(jnp.matmul)
    spent = seconds(lambda: [multiply(operand, operand) for operand in operands])
    return 2 * width**3 / spent


def _copy_bandwidth(devices: Sequence[Any], size: int) -> float:
    """Bytes/s a device that a pass reads and writes, all at once."""
    import jax
    import jax.numpy as jnp

    operands = [jax.device_put(jnp.ones(size // 4, jnp.float32), device) for device in devices]
    add = jax.jit(lambda x: x + 1)
    return 2 * size / seconds(lambda: [add(operand) for operand in operands])


def _memory_bytes(devices: Sequence[Any]) -> int:
    """What the backend may allocate on a device; of a CPU, the host's memory shared by its devices."""
    found = devices[0].memory_stats()
    if found and found.get("bytes_limit"):
        return int(found["bytes_limit"])
    return psutil.virtual_memory().total // len(devices)


def _efficiency(own: Sequence[Any], table: dict[str, Any]) -> float:
    """The rate of a small train step on this process's devices over the one that the cost model makes of `table`."""
    from jaxdp.predict.cost import mesh_cost
    from jaxdp.predict.hardware import Hardware, read_group

    config = _reference(len(own))
    cost = mesh_cost(config, Hardware((read_group(table | {"devices": len(own)}, "probe"),)))
    spent = _step_seconds(config, own) - cost.exposed_communication_s
    return cost.compute_s / max(spent, cost.compute_s / 100)


def _reference(devices: int) -> Config:
    return build({"model": REFERENCE, "train": {"global_batch": REFERENCE_ROWS * devices}, "strategy": {"name": "ddp"}})


def _step_seconds(config: Config, own: Sequence[Any]) -> float:
    from jaxdp.data.batch import blank_batch
    from jaxdp.mesh.compile import build_step

    _, _, functions = build_step(config, own)
    batch = functions.put(blank_batch(config.train.global_batch, config.model.context))
    state = functions.init(0)

    def step() -> Any:
        nonlocal state
        state, metrics = functions.step(state, batch)
        return state, metrics

    return seconds(step)


def by_host(everyone: Sequence[dict[str, Any]], hosts: Sequence[str]) -> list[dict[str, Any]]:
    """What the processes measured, a host's as one: all its devices, at the pace of its slowest process."""
    merged = []
    for host in dict.fromkeys(hosts):
        processes = [one for one, name in zip(everyone, hosts, strict=True) if name == host]
        speeds = [speed for one in processes for speed in one["speeds"]]
        rates = [one["flops"] for one in processes]
        merged.append(
            processes[0]
            | {
                "processes": len(processes),
                "devices": sum(one["devices"] for one in processes),
                "speeds": [speed / max(speeds) for speed in speeds],
                "flops": {dtype: min(rate[dtype] for rate in rates) for dtype in rates[0]},
                "memory_bandwidth": min(one["memory_bandwidth"] for one in processes),
                "between": next((one["between"] for one in processes if any(one["between"].values())), {}),
            }
        )
    return merged


def _groups(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hosts of equal devices and close rates as one table each, with the first one's numbers."""
    groups: list[dict[str, Any]] = []
    for table in tables:
        same = next((group for group in groups if _alike(group, table)), None)
        if same is None:
            groups.append(dict(table))
        else:
            same["count"] += 1
    return groups


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if (one["name"], one["devices"], "speeds" in one) != (other["name"], other["devices"], "speeds" in other):
        return False
    keys = ("flops", "memory_bandwidth", "memory_bytes")
    return all(abs(math.log(one[key] / other[key])) <= math.log1p(CLOSE) for key in keys)


def _table(one: dict[str, Any], hosts: int) -> dict[str, Any]:
    """One host's measurements as a [[hosts]] table; a CPU's collectives neither overlap computing nor are combined."""
    cpu = one["platform"] == "cpu"
    dtype = "float32" if cpu else "bfloat16"
    table: dict[str, Any] = {
        "name": one["device_kind"],
        "count": 1,
        "devices": one["devices"],
        "flops": one["flops"][dtype],
        "memory_bytes": one["memory_bytes"],
        "memory_bandwidth": one["memory_bandwidth"],
        "compute_dtype": dtype,
        "overlaps": not cpu,
        "combines": not cpu,
    }
    if inside := one["intra"].get("all-reduce"):
        link = fit_link("all-reduce", one["devices"], inside)
        table |= {"intra_gbytes_per_s": link.bandwidth / 1e9, "intra_latency_s": link.latency_s}
    if between := {kind: timed for kind, timed in one["between"].items() if timed}:
        link = fit_link("all-reduce", hosts, between["all-reduce"])
        table |= {"nic_gbps": link.bandwidth * 8 / 1e9, "latency_s": link.latency_s}
        for kind, timed in between.items():
            table[f"{kind.replace('-', '_')}_rounds"] = rounds(kind, hosts, timed)
    if cpu:
        table["host_gbytes_per_s"] = one["memory_bandwidth"] / 1e9
        table["host_memory_bandwidth"] = one["memory_bandwidth"] * one["devices"]
    elif min(one["speeds"]) < 1 - SPEED_TOLERANCE:  # host devices on the same cores are equal: the rest is noise
        table["speeds"] = [round(speed, 4) for speed in one["speeds"]]
    return table
