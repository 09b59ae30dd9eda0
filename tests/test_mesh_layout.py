"""Where the state lies: bytes a device, optimizer leaves beside their parameters, and the devices of a mesh."""

import functools
import subprocess
import sys

import pytest

from jaxdp.errors import BadInput
from jaxdp.mesh.devices import claim
from jaxdp.models import shapes
from jaxdp.models.shapes import parameters
from jaxdp.parameter import Parameter
from jaxdp.run.facts import bytes_per_device, peak_flops
from jaxdp.task import by_path
from tests.mesh_cases import BY_LEAVES, config, functions, start


@functools.cache
def state(strategy: str, devices: int, optimizer: str = "adamw"):
    case = config(strategy, optimizer=optimizer, dropout=0.1)
    return start(case, functions(case, devices), 0)


@pytest.mark.parametrize(
    ("strategy", "parameter_share", "optimizer_share"),
    [("ddp", 1, 1), ("zero1", 1, 8), ("fsdp", 8, 8), ("hsdp", 4, 4)],
)
def test_state_bytes_a_device(strategy: str, parameter_share: int, optimizer_share: int) -> None:
    """With every leaf sharded, parameters and AdamW's two moments take their share of a full copy."""
    full = 4 * shapes.count(config(strategy).model)
    found = state(strategy, 8)
    assert bytes_per_device(found.params) == pytest.approx(full / parameter_share, rel=0.02)
    assert bytes_per_device(found.opt_state) == pytest.approx(2 * full / optimizer_share, rel=0.02)


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_every_moment_is_cut_as_the_rule_says(strategy: str) -> None:
    case = config(strategy)
    rule = case.strategy.rule
    sizes = case.strategy.axis_sizes(8)
    adam = state(strategy, 8).opt_state[0]
    for parameter in parameters(case.model):
        specs, path = rule(parameter, sizes), parameter.path
        for moments in (adam.mu, adam.nu):
            assert tuple(by_path(moments)[path].sharding.spec) == specs.optimizer, path
        assert tuple(by_path(state(strategy, 8).params)[path].sharding.spec) == specs.params, path


def test_small_leaves_stay_whole_below_the_limit() -> None:
    case = config("fsdp")
    rule = case.strategy.model_copy(update={"min_shard_bytes": 2 * 32 * 4 + 1}).rule
    assert rule(Parameter("blocks.mlp_norm", (2, 32), in_blocks=True), {"data": 8}).params == (None, None)
    assert rule(Parameter("blocks.mlp_in", (2, 32, 64), in_blocks=True), {"data": 8}).params == (None, None, "data")


def test_blocks_are_never_cut_along_their_layers() -> None:
    rule = config("fsdp").strategy.rule
    assert rule(Parameter("blocks.mlp_norm", (8, 3), in_blocks=True), {"data": 8}).params == (None, None)
    assert rule(Parameter("final_norm", (8,)), {"data": 8}).params == ("data",)


def test_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(BadInput, match="JAX_NUM_CPU_DEVICES"):
        claim(9)
    assert len(claim(8)) == 8


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("cpu", None),
        ("Tesla T4", None),
    ],
)
def test_peaks_are_known_or_none(kind: str, peak: float | None) -> None:
    assert peak_flops(kind) == peak


def test_the_overlap_flags_are_known_to_this_xla() -> None:
    """XLA ends the process at a flag it doesn't know."""
    code = (
        "from jaxdp.mesh.devices import GPU_XLA_FLAGS, use_gpu_flags; import os; os.environ.pop('JAX_PLATFORMS');"
        "assert use_gpu_flags(True) == GPU_XLA_FLAGS and use_gpu_flags(True) == () and use_gpu_flags(False) == ();"
        "os.environ['JAX_PLATFORMS'] = 'cpu'; import jax; assert jax.devices()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
