"""Where the state lies: bytes a device, optimizer leaves beside their parameters, and the devices of a mesh."""

import functools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.errors import BadInput
from jaxdp.mesh.devices import claim
from jaxdp.models import shapes
from jaxdp.models.shapes import parameters
from jaxdp.parameter import Parameter
from jaxdp.run.facts import bytes_per_device, peak_flops
from jaxdp.strategies.placement import place
from jaxdp.strategies.rules import Cut
from jaxdp.task import by_path
from tests.mesh_cases import BY_LEAVES, config, functions, start


@functools.cache
def state(strategy: str, devices: int, optimizer: str = "adamw"):
    case = config(strategy, optimizer=optimizer, dropout=0.1)
    return start(case, functions(case, devices), 0)


@pytest.mark.parametrize("devices", range(1, 9))
@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_state_bytes_a_device(strategy: str, devices: int) -> None:
    """Parameters and AdamW's two moments take their share of a full copy and at most 1 % more, whatever the count."""
    full = 4 * shapes.count(config(strategy).model)
    group = devices // 2 or 1 if strategy == "hsdp" else devices
    if strategy == "hsdp" and devices % group:
        return  # makes no mesh
    found = state(strategy, devices)
    held, moments = bytes_per_device(found.params), bytes_per_device(found.opt_state)
    assert 1 <= held * (group if strategy in ("fsdp", "hsdp") else 1) / full <= 1.01
    assert 1 <= moments * (1 if strategy == "ddp" else group) / (2 * full) <= 1.01


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_every_moment_is_stored_as_the_rule_says(strategy: str) -> None:
    case = config(strategy)
    rule, sizes = case.strategy.rule, case.strategy.axis_sizes(8)
    stored = state(strategy, 8)
    for parameter in parameters(case.model):
        cut, path = rule(parameter, sizes), parameter.path
        layers = parameter.shape[:1] if parameter.in_blocks else ()
        for leaves, axis, lead in (
            (stored.params, cut.params, layers),
            (stored.opt_state[0].mu, cut.optimizer, layers if cut.params else ()),
            (stored.opt_state[0].nu, cut.optimizer, layers if cut.params else ()),
        ):
            leaf = by_path(leaves)[path]
            wanted = (*[None] * len(lead), axis) if axis else (None,) * len(parameter.shape)
            assert tuple(leaf.sharding.spec) == wanted, path
            assert leaf.shape == ((*lead, parameter.size // math.prod(lead)) if axis else parameter.shape)


def test_small_leaves_stay_whole_below_the_limit() -> None:
    case = config("fsdp")
    rule = case.strategy.model_copy(update={"min_shard_bytes": 2 * 32 * 4 + 1}).rule
    assert rule(Parameter("blocks.mlp_norm", (2, 32), in_blocks=True), {"data": 8}) == Cut()
    assert rule(Parameter("blocks.mlp_in", (2, 32, 64), in_blocks=True), {"data": 8}) == Cut("data", "data")


@given(
    layers=st.integers(1, 4),
    dims=st.lists(st.integers(1, 7), max_size=3),
    devices=st.integers(1, 50),
    in_blocks=st.booleans(),
    cut=st.sampled_from([Cut("data", "data"), Cut(None, "data"), Cut()]),
)
def test_any_leaf_is_stored_evenly_and_comes_back(
    layers: int, dims: list[int], devices: int, in_blocks: bool, cut: Cut
) -> None:
    """Dims of 1, scalars and more devices than elements included.

    A layer is filled up by zeros, fewer than devices.
    """
    shape = (layers, *dims) if in_blocks else tuple(dims)
    values = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    for placement in place(Parameter("w", shape, in_blocks), cut, {"data": devices}):
        stored = placement.store(values)
        assert stored.shape == placement.stored_shape
        assert np.array_equal(placement.logical(stored), values)
        assert stored.sum() == values.sum()
        assert stored.size - values.size == placement.layers * placement.padding
        assert 0 <= placement.padding < devices
        cuts = [devices if axis else 1 for axis in placement.spec]
        assert placement.shard_shape == tuple(size // n for size, n in zip(stored.shape, cuts, strict=True))
        assert all(size % n == 0 for size, n in zip(stored.shape, cuts, strict=True))


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
