"""From the shards of parameters to the full parameters, and back for their gradients."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxdp.params import Fetch, Params
from jaxdp.stragglers.latency import after_latency


def make_fetch(param_specs: Any, compute_dtype: jax.typing.DTypeLike, round_latency_s: float = 0.0) -> Fetch:
    """`fetch("outer" | "block", shards)` for the specs of the whole parameter tree (blocks stacked along dim 0).

    `round_latency_s` is slept (injected) wherever a block is fetched, and where its gradients return: a round each.
    """
    stacked = param_specs["blocks"]
    if not isinstance(stacked, dict):  # the flat unit's vector, which fetches itself
        stacked = {}
    blocks = {name: PartitionSpec(*spec[1:]) for name, spec in stacked.items()}
    specs = {"block": blocks, "outer": {name: spec for name, spec in param_specs.items() if name != "blocks"}}
    # A block's gathers travel together, so that one of them bears the round's latency.
    bearer = next((name for name, spec in blocks.items() if any(spec)), None)

    def fetch(group: str, params: Params) -> Params:
        late_s = {bearer: round_latency_s} if group == "block" else {}
        return {
            name: fetch_leaf(leaf, specs[group][name], compute_dtype, late_s.get(name, 0.0))
            for name, leaf in params.items()
        }

    return fetch


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def fetch_leaf(
    shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float
) -> jax.Array:
    """Casts to the compute dtype, *then* gathers, so that a bfloat16 run moves bfloat16.

    The gradient goes back in float32: cast first, then summed and scattered over the same axes.
    """
    full = after_latency(shard.astype(compute_dtype), latency_s)
    for dim, axis in enumerate(spec):
        if axis is not None:
            full = jax.lax.all_gather(full, axis, axis=dim, tiled=True)
    return full


def _forward(
    shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float
) -> tuple[jax.Array, None]:
    return fetch_leaf(shard, spec, compute_dtype, latency_s), None


def _backward(
    spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    gradient = after_latency(cotangent.astype(jnp.float32), latency_s)
    for dim, axis in enumerate(spec):
        if axis is not None:
            gradient = jax.lax.psum_scatter(gradient, axis, scatter_dimension=dim, tiled=True)
    return (gradient,)


fetch_leaf.defvjp(_forward, _backward)
