"""Checkpoints hold logical shapes: any layout's state becomes them and comes back, on any number of devices."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.config import load
from jaxdp.mesh.compile import build_step
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import Layout
from jaxdp.mesh.logical import from_logical, logical_state, to_logical
from jaxdp.recipe import TrainState
from jaxdp.strategies.placement import Placement


def layout_of(placements: dict[str, Placement], axis_sizes: dict[str, int]) -> Layout:
    devices = jax.devices()[: math.prod(axis_sizes.values())]
    return Layout(make_mesh(axis_sizes, devices), placements, placements, ())


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    layered=st.booleans(),
    sizes=st.sampled_from([(1, 2), (1, 3), (1, 5), (1, 7), (1, 8), (2, 3), (3, 2), (4, 2)]),
)
def test_there_and_back_is_the_same_and_padding_stays_zero(
    shape: tuple[int, ...], layered: bool, sizes: tuple[int, int]
) -> None:
    layered = layered and len(shape) > 1
    axis_sizes = {"data": sizes[1]} if sizes[0] == 1 else {"host": sizes[0], "data": sizes[1]}
    placement = Placement(shape, layered, "data", sizes[1])
    layout = layout_of({"w": placement}, axis_sizes)
    values = numbered(shape)
    state = TrainState(jax.device_put(np.int32(3)), layout.put({"w": values}, layout.params), ())
    logical = to_logical(state, layout)
    assert logical.params["w"].shape == shape
    np.testing.assert_array_equal(np.asarray(logical.params["w"]), values)
    back = from_logical(logical, layout)
    stored = np.asarray(back.params["w"])
    assert stored.shape == placement.stored_shape
    np.testing.assert_array_equal(stored, np.asarray(state.params["w"]))
    assert np.count_nonzero(stored) == values.size  # what fills a vector up is zero


@pytest.mark.parametrize("strategy", ["fsdp", "zero1", "hsdp", "ddp"])
@pytest.mark.parametrize("devices", [6, 8])
def test_a_checkpoint_is_restored_as_it_is_saved(strategy: str, devices: int) -> None:
    """`logical_state` promises exactly the arrays that `to_logical` makes."""
    config = load(
        ["nano"],
        ["strategy.min_shard_bytes=0", f"train.global_batch={devices}", f"strategy.shard_devices={devices // 2}"]
        if strategy == "hsdp"
        else ["strategy.min_shard_bytes=0", f"train.global_batch={devices}"],
        {"strategy.name": strategy},
    )
    recipe, layout, functions = build_step(config, jax.devices()[:devices])
    promised = logical_state(recipe, layout)
    made = to_logical(functions.init(0), layout)
    jax.tree.map(lambda leaf, like: _assert_alike(leaf, like), made, promised)
    expected = jax.jit(recipe.init_state)(jax.random.key(0))
    jax.tree.map(lambda leaf, like: np.testing.assert_allclose(leaf, like, rtol=1e-6), made.params, expected.params)


def _assert_alike(leaf: jax.Array, like: jax.ShapeDtypeStruct) -> None:
    assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype)
    assert like.sharding is not None and leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim)
