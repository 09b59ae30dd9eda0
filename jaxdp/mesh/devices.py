"""The devices of a run's processes and the mesh over them."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxdp.errors import BadInput
from jaxdp.install import install_command

HOST_DEVICES_WITHOUT_A_CHOICE = 4  # so that a laptop shows the strategy at work

# XLA flags for NVIDIA GPUs, in one place; `--no-xla-flags` leaves XLA's defaults. Thresholds that combine a block's
# gathers into one leave nothing for them to overlap (`benchmarks/results/gpu_programs.txt`), so there are none.
GPU_XLA_FLAGS = (
    "--xla_gpu_enable_latency_hiding_scheduler=true",
    "--xla_gpu_enable_while_loop_double_buffering=true",
)


def use_gpu_flags(enabled: bool) -> tuple[str, ...]:
    """Adds the overlap flags to `XLA_FLAGS` unless switched off or already given; call before any device is used."""
    if not enabled or os.environ.get("JAX_PLATFORMS", "").startswith("cpu"):
        return ()
    given = os.environ.get("XLA_FLAGS", "")
    added = tuple(flag for flag in GPU_XLA_FLAGS if flag.partition("=")[0] not in given)
    os.environ["XLA_FLAGS"] = " ".join([given, *added]).strip()
    return added


def claim(count: int | None, hosts: Sequence[str] = ("this one",)) -> list[jax.Device]:
    """The first `count` devices, host after host; `hosts` names the host of every process of the run.

    Each process gives an equal part. On a CPU host devices are made: without a count 4 in a single process and
    one a process otherwise. Raises `BadInput` when there are fewer devices, when processes don't divide them, or
    when the backend had started with another number before.
    """
    processes = len(hosts)
    if count is not None and count % processes:
        raise BadInput(f"--devices {count}: {processes} processes cannot share them equally; ask for a multiple")
    each = count // processes if count else HOST_DEVICES_WITHOUT_A_CHOICE if processes == 1 else 1
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        _make_host_devices(each)
    devices = all_devices()
    if count is None and (processes > 1 or devices[0].platform != "cpu"):
        each = len(devices)
    first = [list(hosts).index(host) for host in hosts]  # of the processes on the same host
    here = sorted(devices, key=lambda device: (first[device.process_index], device.process_index))
    claimed = [device for index in range(processes) for device in _of(here, index)[:each]]
    if count is not None and len(claimed) < count:
        kind = devices[0].platform
        remedy = "set JAX_NUM_CPU_DEVICES before the start" if kind == "cpu" else "ask for fewer"
        raise BadInput(f"--devices {count}: only {len(devices)} {kind} device(s) here; {remedy}")
    return [device for device in here if device in claimed]


def all_devices() -> list[jax.Device]:
    """Every process's; raises `BadInput` where JAX has none of the kind that `JAX_PLATFORMS` asks for."""
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        if not asked:
            raise
        reason = (str(error).splitlines() or [""])[0].partition(" (set JAX_PLATFORMS")[0].strip(" ;.")
        plugin = f" (on NVIDIA GPUs JAX needs its plugin: {install_command('cuda12')})" if _lacks_cuda(asked) else ""
        raise BadInput(
            f"JAX_PLATFORMS={asked}: JAX starts no such device here{f': {reason}' if reason else ''}{plugin}; "
            "unset it to take what there is, or set it to cpu"
        ) from None


def _lacks_cuda(asked: str) -> bool:
    names = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_plugins")
    return asked.startswith(("cuda", "gpu")) and not any(find_spec(name) for name in names)


def _of(devices: Sequence[jax.Device], process: int) -> list[jax.Device]:
    return [device for device in devices if device.process_index == process]


def host_groups(devices: Sequence[jax.Device], hosts: Sequence[str]) -> int:
    """Into how many equal groups the devices fall such that none reaches across hosts: one a host if all are alike."""
    on_host = Counter(hosts[device.process_index] for device in devices)
    return 1 if len(on_host) == 1 else len(devices) // math.gcd(*on_host.values())


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
