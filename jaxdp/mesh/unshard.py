"""From the shards of parameters to the full parameters, and back for their gradients."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxdp.errors import BadInput
from jaxdp.stragglers.in_step import sleep_before
from jaxdp.task import Params, Unshard, by_path, in_blocks, path_text


def make_unshard(
    param_specs: Any,
    blocks: Collection[str],
    compute_dtype: jax.typing.DTypeLike,
    round_latency_s: float = 0.0,
) -> Unshard:
    """`unshard(subtree, shards)` for the specs of the whole parameter tree, whose `blocks` are stacked along dim 0.

    `round_latency_s` is slept (injected) wherever a block is gathered, and where its gradients return: a round each.
    """
    specs = by_path(param_specs)
    # A block's gathers travel together, so that one of them bears the round's latency.
    bearers = {_first(specs, lambda path, spec, b=subtree: in_blocks(path, (b,)) and any(spec)) for subtree in blocks}

    def unshard(subtree: str, shards: Params) -> Params:
        stacked = subtree in blocks

        def leaf(key_path: Any, shard: jax.Array) -> jax.Array:
            path = ".".join(part for part in (subtree, path_text(key_path)) if part)
            spec = specs.get(path, PartitionSpec())
            layer_spec = PartitionSpec(*spec[1:]) if stacked else spec
            if path not in specs or len(layer_spec) != shard.ndim:
                raise BadInput(_no_shard(subtree, path, shard, spec if path in specs else None))
            late_s = round_latency_s if stacked and path in bearers else 0.0
            return unshard_leaf(shard, layer_spec, compute_dtype, late_s)

        return jax.tree.map_with_path(leaf, shards)

    return unshard


def _first(specs: dict[str, PartitionSpec], fits: Callable[[str, PartitionSpec], bool]) -> str | None:
    return next((path for path, spec in specs.items() if fits(path, spec)), None)


def _no_shard(subtree: str, path: str, shard: jax.Array, spec: PartitionSpec | None) -> str:
    call = f"task: unshard({subtree!r}, ...)"
    if spec is None:
        return f"{call} was given {path}, which is no parameter; a subtree's shards keep the keys of init_params"
    return (
        f"{call} was given {path} with {shard.ndim} dims, its parameter has {len(spec)}; name a subtree that a scan "
        "takes layer by layer in Task.blocks, and give unshard one layer of it"
    )


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def unshard_leaf(
    shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float
) -> jax.Array:
    """Casts to the compute dtype, *then* gathers, so that a bfloat16 run moves bfloat16.

    The gradient goes back in float32: cast first, then summed and scattered over the same axes.
    """
    full = sleep_before(shard.astype(compute_dtype), latency_s)
    for dim, axis in enumerate(spec):
        if axis is not None:
            full = jax.lax.all_gather(full, axis, axis=dim, tiled=True)
    return full


def _forward(
    shard: jax.Array, spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float
) -> tuple[jax.Array, None]:
    return unshard_leaf(shard, spec, compute_dtype, latency_s), None


def _backward(
    spec: PartitionSpec, compute_dtype: jax.typing.DTypeLike, latency_s: float, _: None, cotangent: jax.Array
) -> tuple[jax.Array]:
    gradient = sleep_before(cotangent.astype(jnp.float32), latency_s)
    for dim, axis in enumerate(spec):
        if axis is not None:
            gradient = jax.lax.psum_scatter(gradient, axis, scatter_dimension=dim, tiled=True)
    return (gradient,)


unshard_leaf.defvjp(_forward, _backward)
