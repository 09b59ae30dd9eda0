"""From the shards of parameters to the full parameters, and back for their gradients."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxdp.learn.params import Fetch, Params


def make_fetch(param_specs: Any, compute_dtype: jax.typing.DTypeLike) -> Fetch:
    """`fetch("outer" | "block", shards)` for the specs of the whole parameter tree (blocks stacked along dim 0)."""
    blocks = jax.tree.map(lambda spec: PartitionSpec(*spec[1:]), param_specs["blocks"])
    specs = {"block": blocks, "outer": {name: spec for name, spec in param_specs.items() if name != "blocks"}}

    def fetch(group: str, params: Params) -> Params:
        return jax.tree.map(lambda leaf, spec: fetch_leaf(leaf, spec, compute_dtype), params, specs[group])

    return fetch


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def fetch_leaf(shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike) -> jax.Array:
    """Casts to the compute dtype, *then* gathers, so that a bfloat16 run moves bfloat16.

    The gradient goes back in float32: cast first, then summed and scattered over the same axes.
    """
    full = shard.astype(compute_dtype)
    for dim, axis in enumerate(spec):
        if axis is not None:
            full = jax.lax.all_gather(full, axis, axis=dim, tiled=True)
    return full


def _forward(shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike) -> tuple[jax.Array, None]:
    return fetch_leaf(shard, spec, compute_dtype), None


def _backward(
    spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    gradient = cotangent.astype(jnp.float32)
    for dim, axis in enumerate(spec):
        if axis is not None:
            gradient = jax.lax.psum_scatter(gradient, axis, scatter_dimension=dim, tiled=True)
    return (gradient,)


fetch_leaf.defvjp(_forward, _backward)
