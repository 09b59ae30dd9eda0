"""NVIDIA GPUs as XLA's compiler needs them described, so that a step compiles for one that isn't there (no JAX).

The numbers are facts of the devices, as XLA's own descriptions give them (openxla/xla,
xla/backends/gpu/target_config/specs); the L40S's are NVIDIA's (Ada architecture white paper and data sheet).
"""

from dataclasses import dataclass

_ADA = "NVIDIA Ada architecture white paper and L40S data sheet"


def _xla(name: str) -> str:
    return f"openxla/xla: xla/backends/gpu/target_config/specs/{name}.txtpb"


@dataclass(frozen=True, kw_only=True)
class GpuTarget:
    """One kind of GPU; sizes in bytes, bandwidth in bytes/s. `sm` is its compute capability."""

    kind: str  # as JAX names the device
    sm: tuple[int, int]
    cores: int
    fpus_per_core: int = 128
    clock_ghz: float
    memory: int
    bandwidth: int
    l2_cache: int
    shared_per_core: int = 233_472
    shared_per_block: int = 232_448  # at most, if a kernel asks for it
    threads_per_core: int = 2048
    source: str


GPU_TARGETS = {
    "a100-40g": GpuTarget(
        kind="NVIDIA A100-SXM4-40GB",
        sm=(8, 0),
        cores=108,
        fpus_per_core=64,
        clock_ghz=1.41,
        memory=42_331_013_120,
        bandwidth=1_555_200_000_000,
        l2_cache=41_943_040,
        shared_per_core=167_936,
        shared_per_block=166_912,
        source=_xla("a100_sxm_40"),
    ),
    "a100-80g": GpuTarget(
        kind="NVIDIA A100-SXM4-80GB",
        sm=(8, 0),
        cores=108,
        fpus_per_core=64,
        clock_ghz=1.41,
        memory=85_100_068_864,
        bandwidth=2_039_040_000_000,
        l2_cache=41_943_040,
        shared_per_core=167_936,
        shared_per_block=166_912,
        source=_xla("a100_sxm_80"),
    ),
    "h100": GpuTarget(
        kind="NVIDIA H100 80GB HBM3",
        sm=(9, 0),
        cores=132,
        clock_ghz=1.98,
        memory=84_942_979_072,
        bandwidth=3_352_320_000_000,
        l2_cache=52_428_800,
        source=_xla("h100_sxm"),
    ),
    "h200": GpuTarget(
        kind="NVIDIA H200",
        sm=(9, 0),
        cores=132,
        clock_ghz=1.98,
        memory=151_397_597_184,
        bandwidth=4_800_000_000_000,
        l2_cache=52_428_800,
        source=_xla("h200"),
    ),
    "b200": GpuTarget(
        kind="NVIDIA B200",
        sm=(10, 0),
        cores=148,
        clock_ghz=1.965,
        memory=191_514_411_008,
        bandwidth=7_672_320_000_000,
        l2_cache=132_644_864,
        source=_xla("b200"),
    ),
    "gb200": GpuTarget(
        kind="NVIDIA GB200",
        sm=(10, 0),
        cores=152,
        clock_ghz=2.062,
        memory=197_897_748_480,
        bandwidth=7_928_064_000_000,
        l2_cache=135_528_448,
        source=_xla("gb200"),
    ),
    "l40s": GpuTarget(
        kind="NVIDIA L40S",
        sm=(8, 9),
        cores=142,
        clock_ghz=2.52,
        memory=48_305_799_168,
        bandwidth=864_000_000_000,
        l2_cache=100_663_296,
        shared_per_core=102_400,
        shared_per_block=101_376,
        threads_per_core=1536,
        source=_ADA,
    ),
}


def target_config(target: GpuTarget) -> str:
    """The text of XLA's `GpuTargetConfigProto` for a GPU, with the cuDNN and CUDA versions that jax[cuda12] brings."""
    major, minor = target.sm
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: {target.shared_per_core} threads_per_core_limit: {target.threads_per_core}
  core_count: {target.cores} fpus_per_core: {target.fpus_per_core} block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: {target.bandwidth}
  l2_cache_size: {target.l2_cache} clock_rate_ghz: {target.clock_ghz} device_memory_size: {target.memory}
  shared_memory_per_block_optin: {target.shared_per_block}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{target.kind}"
"""
