"""Devices that need not exist, for which the compiler makes the programs it would make for real ones.

TPU slices through libtpu (`v5e:2x4`), NVIDIA GPUs through the CUDA plugin and a description of the device (`h100x8` on
any number of hosts). Neither needs the hardware nor a driver; each needs its extra installed.
"""

import os
import re
from importlib import metadata
from typing import TYPE_CHECKING

from jaxdp.errors import BadInput
from jaxdp.install import install_command
from jaxdp.mesh.gpu_targets import GPU_TARGETS, target_config
from jaxdp.suggest import suggest

if TYPE_CHECKING:
    import jax

_TPU_SLICE = r"v\d+[a-z]*:\d+(x\d+){1,2}"
_EXPECTED = "expected a TPU slice such as v5e:2x4, or a host of GPUs such as h100x8"
_GPU_HOST = r"([a-z0-9-]+?)(?:x(\d+))?"
# So that libtpu neither asks a metadata server that isn't there, nor warns about what it can't find out.
_NO_TPU_HERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_MIN_LOG_LEVEL": "3"}


def is_gpu_topology(name: str) -> bool:
    return ":" not in name


def topology_devices(name: str, hosts: int = 1) -> "list[jax.Device]":
    """The devices of a TPU slice, or of `hosts` hosts of GPUs (`h100x8`: 8 a host); raises `BadInput`."""
    return _gpus(name, hosts) if is_gpu_topology(name) else _tpus(name)


def _tpus(name: str) -> "list[jax.Device]":
    if not re.fullmatch(_TPU_SLICE, name):
        raise BadInput(f"--topology {name}: {_EXPECTED}")
    require_libtpu(f"--topology {name}")
    for variable, value in _NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    return _described(name, platform="tpu", topology_name=name)


def _gpus(name: str, hosts: int) -> "list[jax.Device]":
    matched = re.fullmatch(_GPU_HOST, name)
    if matched is None or matched[1] not in GPU_TARGETS:
        raise BadInput(f"--topology {name}: {_EXPECTED}{suggest(name, GPU_TARGETS)}")
    try:
        metadata.version("jax-cuda12-plugin")
    except metadata.PackageNotFoundError:
        remedy = install_command("gpu-topology")
        raise BadInput(f"--topology {name}: needs the CUDA plugin (4.4 GB; no GPU, no driver): {remedy}") from None
    text = target_config(GPU_TARGETS[matched[1]])
    return _described(name, platform="cuda", target_config=text, topology=f"1x{hosts}x{matched[2] or 1}")


def _described(name: str, **description: str) -> "list[jax.Device]":
    from jax.experimental import topologies

    try:
        return list(topologies.get_topology_desc(**description).devices)
    except Exception as error:  # whatever the plug-in raises, in its own types
        raise BadInput(f"--topology {name}: {' '.join(str(error).split())[:200]}") from None


def require_libtpu(where: str) -> None:
    """Another libtpu than jax was made with may compile programs that it cannot print."""
    remedy = install_command("tpu-topology")
    try:
        installed = metadata.version("libtpu")
    except metadata.PackageNotFoundError:
        raise BadInput(f"{where}: needs libtpu (about 480 MB): {remedy}") from None
    required = re.search(r"libtpu==([\d.]+)\.\*", " ".join(metadata.requires("jax") or ()))
    if required and not f"{installed}.".startswith(f"{required[1]}."):
        version = metadata.version("jax")
        raise BadInput(f"{where}: libtpu {installed} does not fit jax {version}, which needs {required[1]}.*: {remedy}")
