"""Devices known by name; every number has its source.

Units: FLOP/s, bytes, bytes/s one way a device, seconds. Sizes in GB are taken as 10^9 bytes.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Sourced(NamedTuple):
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class Preset:
    """One device. `flops` is the dense bfloat16 peak, `reachable` the share of it that large products get."""

    flops: Sourced
    reachable: Sourced
    memory_bytes: Sourced
    memory_bandwidth: Sourced
    intra_bandwidth: Sourced
    nic_bandwidth: Sourced
    intra_latency_s: Sourced
    nic_latency_s: Sourced


NCCL = "NCCL src/graph/tuning.cc, hwLat of a ring with the Simple protocol"
_NVLINK, _PCIE, _NETWORK = Sourced(3.4e-6, NCCL), Sourced(5.7e-6, NCCL), Sourced(14e-6, NCCL)
_ICI = Sourced(1e-6, "How to Scale Your Model, TPU chapter: about 1 us a hop")
_MAMF = "Machine Learning Engineering (Bekman), maximum achievable matmul FLOPS"
_ASSUMED_REACH = Sourced(0.8, "assumed, as on H100")
_CLOUD = "Cloud TPU documentation, system architecture"


def _known(source: str, *values: float) -> tuple[Sourced, ...]:
    return tuple(Sourced(value, source) for value in values)


def _nvidia(sheet: str, peak: float, memory: float, bandwidth: float, intra: float) -> tuple[Sourced, ...]:
    return _known(f"NVIDIA {sheet} data sheet", peak, memory, bandwidth, intra)


def _preset(
    sheet: tuple[Sourced, ...], reachable: Sourced, nic: Sourced, latency: Sourced, nic_latency: Sourced = _NETWORK
) -> Preset:
    peak, memory, bandwidth, intra = sheet
    return Preset(peak, reachable, memory, bandwidth, intra, nic, latency, nic_latency)


PRESETS: dict[str, Preset] = {
    "a100-80g": _preset(
        _nvidia("A100 SXM", 312e12, 80e9, 2.0e12, 300e9),
        Sourced(0.87, _MAMF),
        Sourced(6.25e9, "AWS P4de: 400 Gb/s for 8 GPUs"),
        _NVLINK,
    ),
    "h100": _preset(
        _nvidia("H100 SXM", 989e12, 80e9, 3.35e12, 450e9),
        Sourced(0.80, _MAMF),
        Sourced(50e9, "DGX H100: 400 Gb/s a GPU"),
        _NVLINK,
    ),
    "h200": _preset(
        _nvidia("H200 SXM", 989e12, 141e9, 4.8e12, 450e9),
        _ASSUMED_REACH,
        Sourced(50e9, "DGX H200: 400 Gb/s a GPU"),
        _NVLINK,
    ),
    "b200": _preset(
        _nvidia("B200", 2250e12, 180e9, 8.0e12, 900e9),
        Sourced(0.78, _MAMF),
        Sourced(50e9, "DGX B200: 400 Gb/s a GPU"),
        _NVLINK,
    ),
    "l40s": _preset(
        _nvidia("L40S", 362e12, 48e9, 0.86e12, 31e9),
        _ASSUMED_REACH,
        Sourced(6.25e9, "AWS g6e.48xlarge: 400 Gb/s for 8 GPUs"),
        _PCIE,
    ),
    "rtx4090": _preset(
        _nvidia("Ada architecture white paper, RTX 4090", 165e12, 24e9, 1.0e12, 31e9),
        _ASSUMED_REACH,
        Sourced(1.25e9, "assumed: 10 Gb/s a GPU"),
        _PCIE,
    ),
    "tpu-v5e": _preset(
        _known(_CLOUD, 197e12, 16e9, 0.82e12, 200e9),
        _ASSUMED_REACH,
        Sourced(3.125e9, f"{_CLOUD}: 200 Gb/s a host of 8 chips"),
        _ICI,
    ),
    "tpu-v5p": _preset(
        _known(_CLOUD, 459e12, 96e9, 2.8e12, 600e9),
        _ASSUMED_REACH,
        Sourced(6.25e9, f"{_CLOUD}: 200 Gb/s a host of 4 chips"),
        _ICI,
    ),
    "tpu-v6e": _preset(
        _known(_CLOUD, 918e12, 32e9, 1.64e12, 400e9),
        _ASSUMED_REACH,
        Sourced(12.5e9, f"{_CLOUD}: 800 Gb/s a host of 8 chips"),
        _ICI,
    ),
}
