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
    """One device as its data sheet has it; what training reaches of it is in `calibrated/coefficients.toml`.

    `flops`, `float8` and `float4` are dense peaks, bfloat16's where a format is unknown to it. `domain` is the number
    of devices that the fast link joins, `per_host` those that share a host.
    """

    flops: Sourced
    float8: Sourced
    float4: Sourced
    memory_bytes: Sourced
    memory_bandwidth: Sourced
    intra_bandwidth: Sourced
    nic_bandwidth: Sourced
    domain: Sourced
    per_host: Sourced


class Sheet(NamedTuple):
    """The plain numbers of a device, as step and memory models read them."""

    bfloat16: float
    float8: float
    float4: float
    memory_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    nic_bandwidth: float
    domain: int
    per_host: int


def sheet(name: str) -> Sheet:
    one = PRESETS[name]
    return Sheet(*(known.value for known in vars(one).values()))._replace(
        domain=int(one.domain.value), per_host=int(one.per_host.value)
    )


_CLOUD = "Cloud TPU documentation, system architecture"
_NO_SUCH_FORMAT = "as bfloat16: the device has no such format"


def _device(
    source: str,
    peak: float,
    memory: float,
    bandwidth: float,
    intra: float,
    nic: tuple[float, str],
    *,
    narrow: tuple[float, float] = (1, 1),
    domain: int = 8,
    per_host: int = 8,
) -> Preset:
    """`narrow`: the peaks of float8 and float4 over bfloat16's."""
    float8, float4 = (Sourced(peak * times, source if times > 1 else _NO_SUCH_FORMAT) for times in narrow)
    return Preset(
        Sourced(peak, source),
        float8,
        float4,
        Sourced(memory, source),
        Sourced(bandwidth, source),
        Sourced(intra, source),
        Sourced(*nic),
        Sourced(domain, source),
        Sourced(per_host, source),
    )


def _nvidia(name: str) -> str:
    return f"NVIDIA {name} data sheet"


def _amd(name: str) -> str:
    return f"AMD Instinct {name} data sheet; seven links of Infinity Fabric"


_HOPPER, _BLACKWELL, _ULTRA = (2, 2), (2, 4), (2, 6)
_AWS_G6 = (6.25e9, "AWS g6e.48xlarge: 400 Gb/s for 8 GPUs")
_ROCE = (50e9, "400 Gb/s a GPU, as in AMD's reference clusters")
_SUPERPOD = (50e9, "GB200 NVL72: 400 Gb/s a GPU")
_SUPERPOD_ULTRA = (100e9, "GB300 NVL72: 800 Gb/s a GPU")
_P4D = (6.25e9, "AWS P4d, P4de: 400 Gb/s for 8 GPUs")


def _dgx(name: str, gbps: float = 400) -> tuple[float, str]:
    return gbps * 1e9 / 8, f"DGX {name}: {gbps:g} Gb/s a GPU"


def _hosts(gbps: int, chips: int) -> tuple[float, str]:
    return gbps * 1e9 / 8 / chips, f"{_CLOUD}: {gbps} Gb/s a host of {chips} chips"


PRESETS: dict[str, Preset] = {
    "a100-40g": _device(_nvidia("A100 SXM"), 312e12, 40e9, 1.555e12, 300e9, _P4D),
    "a100-80g": _device(_nvidia("A100 SXM"), 312e12, 80e9, 2.0e12, 300e9, _P4D),
    "h100": _device(_nvidia("H100 SXM"), 989e12, 80e9, 3.35e12, 450e9, _dgx("H100"), narrow=_HOPPER),
    "h200": _device(_nvidia("H200 SXM"), 989e12, 141e9, 4.8e12, 450e9, _dgx("H200"), narrow=_HOPPER),
    "b200": _device(_nvidia("B200"), 2250e12, 180e9, 8.0e12, 900e9, _dgx("B200"), narrow=_BLACKWELL),
    "b300": _device(_nvidia("B300"), 2250e12, 270e9, 8.0e12, 900e9, _dgx("B300", 800), narrow=_ULTRA),
    "gb200": _device(
        _nvidia("GB200 NVL72"), 2500e12, 186e9, 8.0e12, 900e9, _SUPERPOD, narrow=_BLACKWELL, domain=72, per_host=4
    ),
    "gb300": _device(
        _nvidia("GB300 NVL72"), 2500e12, 278e9, 8.0e12, 900e9, _SUPERPOD_ULTRA, narrow=_ULTRA, domain=72, per_host=4
    ),
    "l40s": _device(_nvidia("L40S"), 362e12, 48e9, 0.86e12, 31e9, _AWS_G6, narrow=_HOPPER),
    "rtx4090": _device(
        _nvidia("Ada architecture white paper, RTX 4090"),
        165e12,
        24e9,
        1.0e12,
        31e9,
        (1.25e9, "assumed: 10 Gb/s a GPU"),
        narrow=_HOPPER,
    ),
    "mi300x": _device(_amd("MI300X"), 1307e12, 192e9, 5.3e12, 448e9, _ROCE, narrow=_HOPPER),
    "mi325x": _device(_amd("MI325X"), 1307e12, 256e9, 6.0e12, 448e9, _ROCE, narrow=_HOPPER),
    "mi355x": _device(_amd("MI355X"), 2500e12, 288e9, 8.0e12, 537e9, _ROCE, narrow=_BLACKWELL),
    "tpu-v4": _device(_CLOUD, 275e12, 32e9, 1.228e12, 300e9, _hosts(100, 4), domain=4096, per_host=4),
    "tpu-v5e": _device(_CLOUD, 197e12, 16e9, 0.82e12, 200e9, _hosts(200, 8), domain=256),
    "tpu-v5p": _device(_CLOUD, 459e12, 96e9, 2.8e12, 600e9, _hosts(200, 4), domain=8960, per_host=4),
    "tpu-v6e": _device(_CLOUD, 918e12, 32e9, 1.64e12, 400e9, _hosts(800, 8), domain=256),
    "tpu-v7": _device(_CLOUD, 2307e12, 192e9, 7.37e12, 600e9, _hosts(400, 4), narrow=(2, 2), domain=9216, per_host=4),
}
