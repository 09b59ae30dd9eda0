"""Measures this machine for a plan: what `hardware.toml` needs. Imports JAX when called.

A process is taken as a host. All devices of a process compute at once, as in training; host devices of a CPU
share its cores, and so do their rates.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

REPEATS = 5
CLOSE = 0.1  # hosts whose rates differ by less are one group
SPEED_TOLERANCE = 0.05  # devices of one host that differ by less are equal
SMALL_BYTES = 4 * 2**10  # a message of latency alone
LARGE_BYTES = {"cpu": 16 * 2**20, "other": 256 * 2**20}
COPY_BYTES = {"cpu": 64 * 2**20, "other": 2**30}
PRODUCT_WIDTH = {"cpu": 768, "other": 8192}


def probe(devices: Sequence[Any]) -> dict[str, Any]:
    """The profile: `hosts` as in `hardware.toml`, and what was measured of every process."""
    import jax

    own = _measure([device for device in devices if device.process_index == jax.process_index()], devices)
    everyone = _from_all_processes(own)
    return {"hosts": _groups(everyone), "measured": everyone, "how": {"hosts": "measured"}}


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


def _measure(own: Sequence[Any], everyone: Sequence[Any]) -> dict[str, Any]:
    kind = "cpu" if own[0].platform == "cpu" else "other"
    rates = {dtype: _matmul_flops(own, dtype, PRODUCT_WIDTH[kind]) for dtype in ("float32", "bfloat16")}
    alone = [_matmul_flops([device], "float32", PRODUCT_WIDTH[kind]) for device in own]
    first_of_each = list({device.process_index: device for device in everyone}.values())
    inside, between = _link(own, kind), _link(first_of_each, kind)
    return {
        "device_kind": own[0].device_kind,
        "platform": own[0].platform,
        "devices": len(own),
        "flops": rates,
        "speeds": [rate / max(alone) for rate in alone],
        "memory_bytes": _memory_bytes(own),
        "memory_bandwidth": _copy_bandwidth(own, COPY_BYTES[kind]),
        "intra": inside,
        "between": between,
    }


def _seconds(run: Callable[[], Any]) -> float:
    """The median time of a call and its results, after two calls to warm up."""
    import jax

    times = []
    for repeat in range(REPEATS + 2):
        started = time.perf_counter()
        jax.block_until_ready(run())
        if repeat >= 2:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _matmul_flops(devices: Sequence[Any], dtype: str, width: int) -> float:
    """FLOP/s a device of a square product, all these devices at once."""
    import jax
    import jax.numpy as jnp

    operands = [jax.device_put(jnp.ones((width, width), dtype), device) for device in devices]
    multiply = jax.jit(jnp.matmul)
    spent = _seconds(lambda: [multiply(operand, operand) for operand in operands])
    return 2 * width**3 / spent


def _copy_bandwidth(devices: Sequence[Any], size: int) -> float:
    """Bytes/s a device that a pass reads and writes, all at once."""
    import jax
    import jax.numpy as jnp

    operands = [jax.device_put(jnp.ones(size // 4, jnp.float32), device) for device in devices]
    add = jax.jit(lambda x: x + 1)
    return 2 * size / _seconds(lambda: [add(operand) for operand in operands])


def _link(devices: Sequence[Any], kind: str) -> dict[str, float] | None:
    """Latency of a ring's step, and bandwidth, from a small and a large all-reduce; None for one device."""
    n = len(devices)
    if n < 2:
        return None
    large = LARGE_BYTES[kind]
    short, long = (_all_reduce_s(devices, size) for size in (SMALL_BYTES, large))
    moved = 2 * (n - 1) / n * (large - SMALL_BYTES)
    return {"latency_s": short / (2 * (n - 1)), "bandwidth": moved / max(long - short, 1e-9)}


def _all_reduce_s(devices: Sequence[Any], size: int) -> float:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.asarray(devices, dtype=object), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    values = jax.jit(lambda: jnp.ones((len(devices), size // 4), jnp.float32), out_shardings=sharding)()

    def local(own: jax.Array) -> jax.Array:
        return jax.lax.psum(own, "d")

    total = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec()))
    return _seconds(lambda: total(values))


def _memory_bytes(devices: Sequence[Any]) -> int:
    """What the backend may allocate on a device; of a CPU, the host's memory shared by its devices."""
    found = devices[0].memory_stats()
    if found and found.get("bytes_limit"):
        return int(found["bytes_limit"])
    return psutil.virtual_memory().total // len(devices)


def _from_all_processes(own: dict[str, Any]) -> list[dict[str, Any]]:
    import jax

    if jax.process_count() == 1:
        return [own]
    import json

    import numpy as np
    from jax.experimental import multihost_utils

    text = json.dumps(own).encode()
    lengths = np.asarray(multihost_utils.process_allgather(np.array([len(text)])))
    padded = np.frombuffer(text.ljust(int(lengths.max())), dtype=np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(row.tobytes()) for row in rows]


def _groups(everyone: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hosts of equal devices and close rates as one table each, with the first one's numbers."""
    groups: list[dict[str, Any]] = []
    for one in everyone:
        table = _table(one)
        same = next((group for group in groups if _alike(group, table)), None)
        if same is None:
            groups.append(table)
        else:
            same["count"] += 1
    return groups


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if (one["name"], one["devices"], "speeds" in one) != (other["name"], other["devices"], "speeds" in other):
        return False
    keys = ("flops", "memory_bandwidth", "memory_bytes")
    return all(abs(math.log(one[key] / other[key])) <= math.log1p(CLOSE) for key in keys)


def _table(one: dict[str, Any]) -> dict[str, Any]:
    """One process's measurements as a [[hosts]] table; a CPU's collectives don't overlap computing."""
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
    }
    if one["intra"]:
        table["intra_gbytes_per_s"] = one["intra"]["bandwidth"] / 1e9
        table["intra_latency_s"] = one["intra"]["latency_s"]
    if one["between"]:
        table["nic_gbps"] = one["between"]["bandwidth"] * 8 / 1e9
        table["latency_s"] = one["between"]["latency_s"]
    if cpu:
        table["host_gbytes_per_s"] = one["memory_bandwidth"] / 1e9
        table["host_memory_bandwidth"] = one["memory_bandwidth"] * one["devices"]
    elif min(one["speeds"]) < 1 - SPEED_TOLERANCE:  # host devices on the same cores are equal: the rest is noise
        table["speeds"] = [round(speed, 4) for speed in one["speeds"]]
    return table
