"""What data sheets say of a device: peaks, memory, links. All rates are shares of these."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSheet:
    """Dense peaks in TFLOP/s, memory in GiB and TB/s, links in GB/s one way per device.

    `domain` is the number of devices that the fast link joins, `per_host` those that share a host.
    """

    bfloat16: float
    float8: float
    float4: float
    memory_gib: float
    memory_tbytes: float
    link_gbytes: float
    nic_gbytes: float
    domain: int
    per_host: int = 8


# Sources: NVIDIA's and AMD's data sheets, Google's Cloud TPU documentation; network as in the vendors' own systems
# (DGX, HGX; 400 Gb/s of InfiniBand per H100). A TPU's slice is one domain, its 3D or 2D torus counted as a ring.
DEVICES: dict[str, DataSheet] = {
    "a100-40g": DataSheet(312, 312, 312, 40, 1.555, 300, 25, 8),
    "a100-80g": DataSheet(312, 312, 312, 80, 2.039, 300, 25, 8),
    "h100": DataSheet(989, 1979, 1979, 80, 3.35, 450, 50, 8),
    "h200": DataSheet(989, 1979, 1979, 141, 4.8, 450, 50, 8),
    "b200": DataSheet(2250, 4500, 9000, 180, 8.0, 900, 50, 8),
    "b300": DataSheet(2250, 4500, 13500, 270, 8.0, 900, 100, 8),
    "gb200": DataSheet(2500, 5000, 10000, 186, 8.0, 900, 50, 72, 4),
    "gb300": DataSheet(2500, 5000, 15000, 278, 8.0, 900, 100, 72, 4),
    "l40s": DataSheet(362, 733, 733, 48, 0.864, 32, 6.25, 8),
    "mi300x": DataSheet(1307, 2615, 2615, 192, 5.3, 448, 50, 8),
    "mi325x": DataSheet(1307, 2615, 2615, 256, 6.0, 448, 50, 8),
    "mi355x": DataSheet(2500, 5000, 10000, 288, 8.0, 537, 50, 8),
    "tpu-v4": DataSheet(275, 275, 275, 32, 1.228, 300, 3.125, 4096, 4),
    "tpu-v5e": DataSheet(197, 197, 197, 16, 0.819, 100, 3.125, 256, 8),
    "tpu-v5p": DataSheet(459, 459, 459, 95, 2.765, 600, 6.25, 8960, 4),
    "tpu-v6e": DataSheet(918, 918, 918, 32, 1.638, 200, 12.5, 256, 8),
    "tpu-v7": DataSheet(2307, 4614, 4614, 192, 7.37, 600, 12.5, 9216, 4),
}
