"""Compiler options for GPU programs, by name: each set is a hypothesis that compiled programs decide (no JAX).

`benchmarks/gpu_programs.py` compiles every strategy under every set and plays the schedules. No set is a default yet.
"""

from collections.abc import Callable, Mapping
from typing import Any

Options = Mapping[str, bool | int | str]

OPTION_SETS: dict[str, Options] = {
    "none": {},
    "pipelined": {
        "xla_gpu_enable_pipelined_all_gather": True,
        "xla_gpu_enable_pipelined_all_reduce": True,
        "xla_gpu_enable_pipelined_reduce_scatter": True,
    },
    "combined": {
        "xla_gpu_all_gather_combine_threshold_bytes": 128 * 2**20,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 64 * 2**20,
    },
    "double_buffered": {"xla_gpu_enable_while_loop_double_buffering": True},
    "analytical": {"xla_gpu_enable_analytical_latency_estimator": True},
}
# Autotuning times kernels on the device: for one that isn't there products take their default tiles.
DEVICELESS: Options = {"xla_gpu_autotune_level": 0}


def compile_known(compile_with: Callable[[dict[str, Any]], Any], options: Options) -> tuple[Any, tuple[str, ...]]:
    """(what `compile_with` makes of the options, those that this XLA does not know and that were left out)."""
    left, unknown = dict(options), []
    while True:
        try:
            return compile_with(left), tuple(unknown)
        except Exception as error:
            name = next((name for name in left if f"{name}" in str(error) and "option" in str(error).lower()), None)
            if name is None:
                raise
            unknown.append(name)
            del left[name]
