"""The one train step of every mesh strategy: gradients on shards, one reduction, an update on shards.

Where a strategy differs is its `Layout` alone. Gradients are sums over units (tokens, examples: what the task
counts) until they are reduced, and are divided by the number of valid units over all devices and microbatches,
so that they do not depend on how units are spread.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.errors import BadInput
from jaxdp.mesh.layout import Layout, specs, store
from jaxdp.mesh.unshard import make_unshard
from jaxdp.recipe import Recipe, TrainState
from jaxdp.stragglers.in_step import DeviceClocks, note_start, sleep_rest
from jaxdp.strategies.placement import Placement
from jaxdp.task import Batch, Params, by_path, in_blocks, path_text


class StepMetrics(NamedTuple):
    """Scalars of a step: the mean loss of the valid units, the gradient's norm before clipping, and counts."""

    loss: jax.Array
    grad_norm: jax.Array
    units: jax.Array
    learning_rate: jax.Array


class Sums(NamedTuple):
    """Sums over units: of the loss's gradients, of the loss, and the number of valid units."""

    grads: Params
    loss: jax.Array
    units: jax.Array


@dataclass(frozen=True)
class MeshStep:
    """The compiled functions of a strategy.

    `init(seed)` makes a state in its layout, `step(state, batch)` donates the state, `evaluate(params, batch)`
    gives (sum of losses, valid units).
    """

    layout: Layout
    init: Callable[[int], TrainState]
    step: Any  # jitted: (TrainState, Batch) -> (TrainState, StepMetrics)
    evaluate: Any  # jitted: (Params, Batch) -> (loss sum, units)

    def put(self, batch: Batch) -> Batch:
        """The batch's `Layout.local_rows`, spread over this process's devices, as its part of the global batch."""
        sharding = NamedSharding(self.layout.mesh, self.layout.batch)
        if sharding.is_fully_addressable:
            return jax.device_put(batch, sharding)
        mesh = self.layout.mesh
        own = len(mesh.local_devices)  # processes may have different numbers of devices

        def spread(rows: jax.Array) -> jax.Array:
            shape = (len(rows) // own * mesh.size, *rows.shape[1:])
            return jax.make_array_from_process_local_data(sharding, rows, shape)

        return jax.tree.map(spread, batch)


def make_step(
    recipe: Recipe,
    layout: Layout,
    accumulation: int = 1,
    skip_nonfinite: bool = False,
    clocks: DeviceClocks | None = None,
    round_latency_s: float = 0.0,
    by_block: bool = False,
) -> MeshStep:
    """The functions of a recipe in a layout; a device's part of the batch is taken in `accumulation` microbatches.

    `by_block`: whole gradients of blocks are summed in the backward pass, one block at a time, so that all but the
    first block's sums may overlap it; of a single microbatch only, since others would have to be added before.
    """
    gradients = make_gradients(recipe, layout, accumulation, clocks, round_latency_s, by_block)
    update = make_update(recipe, layout)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        sums = gradients(state.params, batch)
        learning_rate = recipe.learning_rate(state.step)
        params, opt_state, norm = update(state.params, state.opt_state, sums.grads, sums.units, learning_rate)
        new = TrainState(state.step + 1, params, opt_state)
        loss = sums.loss / jnp.maximum(sums.units, 1)
        if skip_nonfinite:
            good = jnp.isfinite(loss) & jnp.isfinite(norm)
            new = jax.tree.map(lambda fresh, old: jnp.where(good, fresh, old), new, state._replace(step=new.step))
        return new, StepMetrics(loss, norm, sums.units, learning_rate)

    scalar: Any = NamedSharding(layout.mesh, PartitionSpec())
    shardings = layout.shardings(layout.state)
    jitted_init = jax.jit(lambda key: store(recipe.init_state(key), layout.state), out_shardings=shardings)
    return MeshStep(
        layout=layout,
        init=lambda seed: jitted_init(jax.random.key(seed)),
        step=jax.jit(step, donate_argnums=0, out_shardings=(shardings, StepMetrics(*[scalar] * 4))),
        evaluate=jax.jit(make_evaluate(recipe, layout)),
    )


def make_gradients(
    recipe: Recipe,
    layout: Layout,
    accumulation: int,
    clocks: DeviceClocks | None = None,
    round_latency_s: float = 0.0,
    by_block: bool = False,
) -> Any:
    """(params, batch) -> `Sums` over the global batch, the gradients in the optimizer's layout."""
    task = recipe.task
    summed = _summed_in_blocks(layout, task.blocks) if by_block and accumulation == 1 else {}
    unshard = make_unshard(layout.params, task.blocks, recipe.compute_dtype, round_latency_s, summed)
    scalar: Any = PartitionSpec()

    def local(params: Params, batch: Batch) -> Sums:
        # Varying over every axis, or the transpose would reduce a replicated leaf once a block and microbatch.
        def vary(key_path: Any, leaf: jax.Array, place: Placement) -> jax.Array:
            return leaf if path_text(key_path) in summed else _vary(leaf, _others(layout.axes, place))

        params = jax.tree.map_with_path(vary, params, layout.params)

        def micro(part: Batch) -> Sums:
            def loss(params: Params) -> tuple[jax.Array, jax.Array]:
                return _as_sums(task.loss_sum(params, part, unshard, train=True), layout.axes)

            try:
                (total, units), grads = jax.value_and_grad(loss, has_aux=True)(params)
            except (TypeError, ValueError) as error:
                if not any(leaf.axis for leaf in jax.tree.leaves(layout.params)):
                    raise
                raise BadInput(_unfit_for_shards(error)) from error
            return Sums(grads, total, units)

        nothing = _vary(jnp.zeros(()), layout.axes)
        zeros = Sums(jax.tree.map(jnp.zeros_like, params), nothing, nothing)
        if clocks is not None:
            batch = note_start(clocks, batch, layout.axes)
        sums = accumulate(micro, zeros, batch, accumulation)
        if clocks is not None:
            sums = sums._replace(loss=sleep_rest(clocks, sums.loss, sums.grads, layout.axes))
        return _reduce(sums, layout, summed)

    return jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(specs(layout.params), layout.batch),
        out_specs=Sums(specs(layout.optimizer), scalar, scalar),
    )


def _unfit_for_shards(error: Exception) -> str:
    return (
        f"task: its loss fails on parameters that are cut ({str(error).splitlines()[0].rstrip('.')}); they arrive as "
        "flat vectors: let unshard give them their shapes, and name the subtrees that a scan takes layer by layer in "
        "Task.blocks"
    )


def accumulate(micro: Callable[[Batch], Any], zeros: Any, batch: Batch, accumulation: int) -> Any:
    """The sum of `micro` over equal consecutive parts of a batch, one after the other."""
    if accumulation == 1:
        return micro(batch)

    def add(sums: Any, part: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, micro(part)), None

    parts = jax.tree.map(lambda leaf: leaf.reshape(accumulation, -1, *leaf.shape[1:]), batch)
    return jax.lax.scan(add, zeros, parts)[0]


def make_update(recipe: Recipe, layout: Layout) -> Any:
    """(params, opt_state, gradient sums, units, learning rate) -> (params, opt_state, norm), each on its shard."""

    def local(
        params: Params, opt_state: Any, grads: Params, units: jax.Array, learning_rate: jax.Array
    ) -> tuple[Params, Any, jax.Array]:
        grads = jax.tree.map(lambda g: g / jnp.maximum(units, 1), grads)
        norm = _global_norm(grads, layout.optimizer)
        direction, opt_state = recipe.tx.update(clip(grads, norm, recipe.clip), opt_state, params)
        return descend(params, direction, learning_rate), opt_state, norm

    scalar = PartitionSpec()
    shards, opt_state_specs = specs(layout.optimizer), specs(layout.opt_state)
    on_shards = jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(shards, opt_state_specs, shards, scalar, scalar),
        out_specs=(shards, opt_state_specs, scalar),
    )

    def update(
        params: Params, opt_state: Any, grads: Params, units: jax.Array, learning_rate: jax.Array
    ) -> tuple[Params, Any, jax.Array]:
        views = jax.tree.map(_optimizer_view, params, layout.params, layout.optimizer)
        views, opt_state, norm = on_shards(views, opt_state, grads, units, learning_rate)
        renewed = jax.tree.map(lambda *leaf: _renewed(layout.mesh, *leaf), views, layout.params, layout.optimizer)
        return renewed, opt_state, norm

    return update


def _optimizer_view(leaf: jax.Array, params: Placement, optimizer: Placement) -> jax.Array:
    """A stored parameter as the optimizer sees it: where it is whole, as the vector that its state is."""
    return leaf if params == optimizer else optimizer.store(leaf)


def _renewed(mesh: Mesh, leaf: jax.Array, params: Placement, optimizer: Placement) -> jax.Array:
    """The stored parameter of the optimizer's new shards: gathered as one vector where it is to be whole."""
    if params == optimizer:
        return leaf
    whole = NamedSharding(mesh, PartitionSpec())
    return optimizer.logical(jax.lax.with_sharding_constraint(leaf, whole))


def clip(grads: Params, norm: jax.Array, limit: float) -> Params:
    """Scales gradients of the given global norm down to `limit`; 0 leaves them as they are."""
    if not limit:
        return grads
    scale = jnp.minimum(1.0, limit / jnp.maximum(norm, limit))
    return jax.tree.map(lambda g: g * scale, grads)


def descend(params: Params, direction: Params, learning_rate: jax.Array) -> Params:
    return optax.apply_updates(params, jax.tree.map(lambda d: -learning_rate * d, direction))


def make_evaluate(recipe: Recipe, layout: Layout) -> Any:
    task = recipe.task
    unshard = make_unshard(layout.params, task.blocks, recipe.compute_dtype)

    def local(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return jax.lax.psum(_as_sums(task.loss_sum(params, batch, unshard, train=False), layout.axes), layout.axes)

    return jax.shard_map(
        local,
        mesh=layout.mesh,
        in_specs=(specs(layout.params), layout.batch),
        out_specs=(PartitionSpec(), PartitionSpec()),
    )


def _summed_in_blocks(layout: Layout, blocks: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The axes over which the gradients of blocks' leaves are summed whole, by the leaves' paths."""
    pairs = zip(by_path(layout.params).items(), jax.tree.leaves(layout.optimizer), strict=True)
    return {
        path: axes
        for (path, params), optimizer in pairs
        if in_blocks(path, blocks) and params.axis == optimizer.axis and (axes := _others(layout.axes, params))
    }


def _reduce(sums: Sums, layout: Layout, done: Collection[str]) -> Sums:
    """Sums over the axes that don't cut a leaf's parameters: scattered over the one that cuts its optimizer state.

    All leaves that are summed whole over the same axes travel in one collective, the scalars with them.
    """
    leaves, structure = jax.tree.flatten(sums.grads)
    placements = zip(by_path(layout.params).items(), jax.tree.leaves(layout.optimizer), strict=True)
    whole: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, ((path, params), optimizer) in enumerate(placements):
        if path in done:
            continue
        if optimizer.axis and not params.axis:
            leaves[index] = jax.lax.psum_scatter(optimizer.store(leaves[index]), optimizer.axis, tiled=True)
        if summed := _others(layout.axes, optimizer):
            whole[summed].append(index)
    leaves += [sums.loss, sums.units]
    whole[layout.axes] += [len(leaves) - 2, len(leaves) - 1]
    for axes, indices in whole.items():
        reduced = jax.lax.psum([leaves[index] for index in indices], axes)
        for index, leaf in zip(indices, reduced, strict=True):
            leaves[index] = leaf
    *grads, loss, units = leaves
    return Sums(jax.tree.unflatten(structure, grads), loss, units)


def _global_norm(grads: Params, placements: Any) -> jax.Array:
    """The norm over all shards: squares are summed over just the axis that cuts a leaf."""
    squares: dict[str | None, list[jax.Array]] = defaultdict(list)
    for leaf, placement in zip(jax.tree.leaves(grads), jax.tree.leaves(placements), strict=True):
        squares[placement.axis].append(jnp.sum(jnp.square(leaf)))
    totals = {axis: jnp.sum(jnp.stack(parts)) for axis, parts in squares.items()}
    return jnp.sqrt(sum((jax.lax.psum(t, axis) if axis else t for axis, t in totals.items()), jnp.zeros(())))


def _others(axes: Sequence[str], placement: Placement) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis != placement.axis)


def _as_sums(loss_and_units: tuple[Any, Any], axes: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """Both in float32 and a device's own: a task may well count a batch's rows in Python."""
    nothing = _vary(jnp.zeros(()), axes)
    loss, units = loss_and_units
    return jnp.asarray(loss, jnp.float32) + nothing, jnp.asarray(units, jnp.float32) + nothing


def _vary(leaf: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    return jax.lax.pcast(leaf, axes, to="varying") if axes else leaf
