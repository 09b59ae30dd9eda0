"""From the shards of parameters to the full parameters, and back for their gradients."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.errors import BadInput
from jaxdp.stragglers.in_step import sleep_before
from jaxdp.strategies.placement import Placement
from jaxdp.task import Params, Unshard, by_path, in_blocks, path_text

Axes = tuple[str, ...]


def make_unshard(
    placements: Any,
    blocks: Collection[str],
    compute_dtype: jax.typing.DTypeLike,
    round_latency_s: float = 0.0,
    summed: Mapping[str, Axes] | None = None,
) -> Unshard:
    """`unshard(subtree, shards)` for the placements of all parameters, whose `blocks` are stacked along dim 0.

    `round_latency_s` is slept (injected) wherever a block is gathered, and where its gradients return: a round each.
    `summed` has the axes over which a leaf's gradient is summed there and then, a block at a time: such a leaf comes
    unvarying over them.
    """
    summed = summed or {}
    placed = by_path(placements)
    # A block's gathers travel together, so that one of them bears the round's latency.
    bearers = {
        next((path for path, leaf in placed.items() if in_blocks(path, (subtree,)) and leaf.axis), None)
        for subtree in blocks
    }

    def unshard(subtree: str, shards: Params) -> Params:
        stacked = subtree in blocks

        def leaf(key_path: Any, shard: jax.Array) -> jax.Array:
            path = ".".join(part for part in (subtree, path_text(key_path)) if part)
            if path not in placed:
                raise BadInput(_no_shard(subtree, path))
            placement = placed[path].layer if stacked else placed[path]
            if shard.shape != placement.shard_shape:
                raise BadInput(_other_shape(subtree, path, shard, placement))
            late_s = round_latency_s if stacked and path in bearers else 0.0
            return unshard_leaf(shard, placement, compute_dtype, late_s, summed.get(path, ()))

        return jax.tree.map_with_path(leaf, shards)

    return unshard


def _no_shard(subtree: str, path: str) -> str:
    return (
        f"task: unshard({subtree!r}, ...) was given {path}, which is no parameter; a subtree's shards keep the keys of "
        "init_params"
    )


def _other_shape(subtree: str, path: str, shard: jax.Array, placement: Placement) -> str:
    return (
        f"task: unshard({subtree!r}, ...) was given {path} with shape {shard.shape}, its shard has "
        f"{placement.shard_shape}; name a subtree that a scan takes layer by layer in Task.blocks, and give unshard "
        "one layer of it, as it came"
    )


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def unshard_leaf(
    shard: jax.Array, placement: Placement, compute_dtype: jax.typing.DTypeLike, latency_s: float, summed: Axes
) -> jax.Array:
    """Casts to the compute dtype, *then* gathers, so that a bfloat16 run moves bfloat16.

    The gradient goes back in float32: cast first, then summed and scattered over the same axis, and over the `summed`.
    """
    if summed:
        shard = jax.lax.pcast(shard, summed, to="varying")
    full = sleep_before(shard.astype(compute_dtype), latency_s)
    if placement.axis is not None:
        full = jax.lax.all_gather(full, placement.axis, axis=full.ndim - 1, tiled=True)
    return placement.logical(full)


def _forward(
    shard: jax.Array, placement: Placement, compute_dtype: jax.typing.DTypeLike, latency_s: float, summed: Axes
) -> tuple[jax.Array, None]:
    return unshard_leaf(shard, placement, compute_dtype, latency_s, summed), None


def _backward(
    placement: Placement,
    compute_dtype: jax.typing.DTypeLike,
    latency_s: float,
    summed: Axes,
    _: None,
    cotangent: jax.Array,
) -> tuple[jax.Array]:
    gradient = placement.store(sleep_before(cotangent.astype(jnp.float32), latency_s))
    if placement.axis is not None:
        last = gradient.ndim - 1
        gradient = jax.lax.psum_scatter(gradient, placement.axis, scatter_dimension=last, tiled=True)
    return (jax.lax.psum(gradient, summed) if summed else gradient,)


unshard_leaf.defvjp(_forward, _backward)
