"""The flat unit: all blocks as one vector cut into equal pieces, fetched block by block from their owners.

It exists to show what a cut inside a block costs (see `flat_layout`). A block with one owner takes one round,
a masked sum in which only the owner's summand is not zero; a block with several takes one after the other.
The parameters' tree has one leaf `blocks`, a vector of all elements, instead of a tree of leaves.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdp.config import Config
from jaxdp.models.shapes import parameters
from jaxdp.optim import make_tx
from jaxdp.parameter import Parameter
from jaxdp.recipe import Recipe
from jaxdp.stragglers.in_step import sleep_before
from jaxdp.strategies.flat_layout import FlatLayout, flat_layout
from jaxdp.strategies.rules import DATA_AXIS, Cut, ShardRule
from jaxdp.task import Batch, Params, Unshard


@dataclass(frozen=True)
class FlatUnit:
    """The layout and the leaves of a block in their order; `round_latency_s` is slept in every round (injected)."""

    layout: FlatLayout
    leaves: tuple[Parameter, ...]
    round_latency_s: float = 0.0


def flat_unit(config: Config, devices: int) -> FlatUnit:
    leaves = tuple(parameter for parameter in parameters(config.model) if parameter.in_blocks)
    return FlatUnit(flat_layout(leaves, devices), leaves, config.strategy.round_latency_s)


def flat_rule(rule: ShardRule) -> ShardRule:
    """The rule with the flat vector cut over the data axis, whatever its size."""

    def flat(parameter: Parameter, axis_sizes: Any) -> Cut:
        return Cut(DATA_AXIS, DATA_AXIS) if parameter.path == "blocks" else rule(parameter, axis_sizes)

    return flat


def flat_recipe(recipe: Recipe, config: Config, devices: int) -> Recipe:
    """The same training over the flat parameters: same initial values, losses and updates."""
    task, unit = recipe.task, flat_unit(config, devices)

    def init_params(key: jax.Array) -> Params:
        params = task.init_params(key)
        return {**params, "blocks": flatten(unit, params["blocks"])}

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, *, train: bool = True) -> tuple[jax.Array, jax.Array]:
        # The scan over blocks hands its body the block's index; the body's unshard closes over the piece.
        index = jnp.arange(unit.layout.layers)
        indices = {_name(leaf): index for leaf in unit.leaves}

        piece = params["blocks"]

        def flat_unshard(subtree: str, shards: Params) -> Params:
            if subtree != "blocks":
                return unshard(subtree, shards)
            layer = shards[_name(unit.leaves[0])]
            return unflatten_block(unit, fetch_block(piece, layer, unit, recipe.compute_dtype))

        return task.loss_sum({**params, "blocks": indices}, batch, flat_unshard, train=train)

    decaying = {parameter.path for parameter in task.parameters if task.decays(parameter)}
    flat = replace(task, init_params=init_params, loss_sum=loss_sum, blocks=())
    return replace(recipe, task=flat, tx=_flat_tx(config, unit, decaying))


def flatten(unit: FlatUnit, blocks: Params) -> jax.Array:
    """Stacked leaves as one vector, block after block."""
    rows = [blocks[_name(leaf)].reshape(unit.layout.layers, -1) for leaf in unit.leaves]
    return jnp.concatenate(rows, axis=1).reshape(-1)


def unflatten(unit: FlatUnit, vector: jax.Array) -> Params:
    """The stacked leaves of a whole flat vector."""
    return jax.vmap(partial(unflatten_block, unit))(vector.reshape(unit.layout.layers, unit.layout.block_size))


def unflatten_block(unit: FlatUnit, block: jax.Array) -> Params:
    """One block's leaves, without the dim that counts layers."""
    leaves, start = {}, 0
    for leaf in unit.leaves:
        size = leaf.size // unit.layout.layers
        leaves[_name(leaf)] = block[start : start + size].reshape(leaf.shape[1:])
        start += size
    return leaves


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def fetch_block(piece: jax.Array, layer: jax.Array, unit: FlatUnit, compute_dtype: jax.typing.DTypeLike) -> jax.Array:
    """A block's elements in the compute dtype on every device; its gradient returns to the owners in float32."""

    def rounds(piece: jax.Array, layer: int) -> jax.Array:
        received: list[jax.Array] = []
        for part in unit.layout.parts(layer):
            sent = _only_from(part.owner, piece[part.start : part.stop].astype(compute_dtype))
            received.append(_round(sent, received, unit.round_latency_s))
        return jax.lax.pcast(jnp.concatenate(received), DATA_AXIS, to="varying")

    return jax.lax.switch(layer, [partial(rounds, layer=each) for each in range(unit.layout.layers)], piece)


def _forward(
    piece: jax.Array, layer: jax.Array, unit: FlatUnit, compute_dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
    return fetch_block(piece, layer, unit, compute_dtype), layer


def _backward(
    unit: FlatUnit, compute_dtype: jax.typing.DTypeLike, layer: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, None]:
    def rounds(gradient: jax.Array, layer: int) -> jax.Array:
        kept = jax.lax.pcast(jnp.zeros(unit.layout.piece_size, jnp.float32), DATA_AXIS, to="varying")
        summed: list[jax.Array] = []
        start = 0
        for part in unit.layout.parts(layer):
            stop = start + part.stop - part.start
            summed.append(_round(gradient[start:stop], summed, unit.round_latency_s))
            kept = kept.at[part.start : part.stop].add(_only_from(part.owner, summed[-1]))
            start = stop
        return kept

    branches = [partial(rounds, layer=each) for each in range(unit.layout.layers)]
    return jax.lax.switch(layer, branches, cotangent.astype(jnp.float32)), None


fetch_block.defvjp(_forward, _backward)


def _only_from(owner: int, values: jax.Array) -> jax.Array:
    """The values on the owner, zeros on every other device."""
    return jnp.where(jax.lax.axis_index(DATA_AXIS) == owner, values, 0)


def _round(sent: jax.Array, before: list[jax.Array], latency_s: float) -> jax.Array:
    """One masked sum that cannot begin, nor be merged, before the one before it has ended."""
    if before:
        # Never true for finite parameters, and a NaN would spread through the loss anyhow.
        sent += jnp.where(jnp.isnan(before[-1][0]), jnp.nan, 0.0).astype(sent.dtype)
    return jax.lax.psum(sleep_before(sent, latency_s), DATA_AXIS)


def _flat_tx(config: Config, unit: FlatUnit, decaying: Collection[str]) -> optax.GradientTransformation:
    """The task's optimizer: norms inside the vector are told by their place, so that they don't decay."""
    rate = config.optim.weight_decay

    def init(params: Params) -> Any:
        return optax.EmptyState()

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        # Runs on a device's piece, inside the step's `shard_map`.
        assert params is not None
        decays = {name: name in decaying for name in params} | {"blocks": _decaying_places(unit, decaying)}
        return jax.tree.map(lambda u, p, d: u + rate * jnp.where(d, p, 0), updates, params, decays), state

    decay, rest = (
        optax.GradientTransformation(init, update),
        make_tx(config.optim.model_copy(update={"weight_decay": 0.0}), ()),
    )
    return optax.chain(rest, decay) if config.optim.name == "adamw" else optax.chain(decay, rest)


def _decaying_places(unit: FlatUnit, decaying: Collection[str]) -> jax.Array:
    # On one device nothing is cut, and so nothing may vary.
    first = jax.lax.axis_index(DATA_AXIS) * unit.layout.piece_size if unit.layout.devices > 1 else 0
    place = (first + jnp.arange(unit.layout.piece_size)) % unit.layout.block_size
    decays, start = jnp.ones_like(place, dtype=bool), 0
    for leaf in unit.leaves:
        stop = start + leaf.size // unit.layout.layers
        if leaf.path not in decaying:
            decays &= (place < start) | (place >= stop)
        start = stop
    return decays


def _name(leaf: Parameter) -> str:
    return leaf.path.removeprefix("blocks.")
