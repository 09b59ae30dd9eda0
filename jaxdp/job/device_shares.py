"""Which devices each of several processes on one host gets (no JAX)."""

import os
import subprocess

from jaxdp.errors import BadInput


def device_shares(processes: int, devices: int) -> list[dict[str, str]]:
    """The environment that gives each process its own devices: GPUs if this host has any, else CPU host devices."""
    gpus = [] if os.environ.get("JAX_PLATFORMS", "").startswith("cpu") else visible_gpus()
    if not gpus:
        return [{"JAX_NUM_CPU_DEVICES": str(devices)}] * processes
    if processes * devices > len(gpus):
        raise BadInput(
            f"-n {processes}: {devices} GPU(s) each are more than the {len(gpus)} visible here; "
            "ask for fewer, or set JAX_PLATFORMS=cpu"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[first : first + devices])}
        for first in range(0, processes * devices, devices)
    ]


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them, or by number; none where there is no NVIDIA driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        named = [name.strip() for name in chosen.split(",")]
        return named[: named.index("-1")] if "-1" in named else [name for name in named if name]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(index) for index, _ in enumerate(line for line in found.stdout.splitlines() if line.startswith("GPU "))]
