"""The devices of this process and the mesh over them."""

import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxdp.errors import BadInput

HOST_DEVICES_WITHOUT_A_CHOICE = 4  # so that a laptop shows the strategy at work

# XLA's latency-hiding flags for NVIDIA GPUs, in one place: collectives overlap computation, and gathers of
# one layer are combined into few large messages. `--no-xla-flags` leaves XLA's defaults.
GPU_XLA_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_enable_while_loop_double_buffering=true",
    "--xla_gpu_all_gather_combine_threshold_bytes=134217728",
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=67108864",
)


def use_gpu_flags(enabled: bool) -> tuple[str, ...]:
    """Adds the overlap flags to `XLA_FLAGS` unless switched off or already given; call before any device is used."""
    if not enabled or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return ()
    given = os.environ.get("XLA_FLAGS", "")
    added = tuple(flag for flag in GPU_XLA_FLAGS if flag.partition("=")[0] not in given)
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
    return added


def claim(count: int | None) -> list[jax.Device]:
    """The first `count` devices; on a CPU, `count` host devices are made (4 when not given).

    Raises `BadInput` when there are fewer, or when the backend had started with another number before.
    """
    wanted = count or HOST_DEVICES_WITHOUT_A_CHOICE
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        _make_host_devices(wanted)
    devices = jax.devices()
    if devices[0].platform != "cpu":
        wanted = count or len(devices)
    elif count is None:
        wanted = min(wanted, len(devices))
    if wanted > len(devices):
        kind = devices[0].platform
        remedy = "set JAX_NUM_CPU_DEVICES before the start" if kind == "cpu" else "ask for fewer"
        raise BadInput(f"--devices {wanted}: only {len(devices)} {kind} device(s) here; {remedy}")
    return list(devices[:wanted])


def _make_host_devices(count: int) -> None:
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        # The backend has started: too late, and `claim` refuses if the devices don't suffice.
        return


def make_mesh(axis_sizes: Mapping[str, int], devices: Sequence[jax.Device]) -> Mesh:
    """A mesh of the devices in their order, the last axis within a host; the partitioner sees every axis as Auto."""
    grid = np.asarray(devices, dtype=object).reshape(tuple(axis_sizes.values()))
    return Mesh(grid, tuple(axis_sizes), axis_types=(AxisType.Auto,) * len(axis_sizes))
