"""A stored state in its logical shapes and back, leaf by leaf: what a checkpoint holds, whatever the mesh.

A logical leaf lies in equal slabs along one dim, the most slabs that a dim allows and the devices suffice for. What
that costs a device beside its shards: while a checkpoint is copied off the devices, a slab of every leaf that is cut
(its share of the state where the devices divide a dim of each leaf, less than twice that where dims are powers of
two), and always one whole layer of one leaf. Where each process has one device only, the slabs must be as many as the
devices or divide them, since every process takes part in writing: at worst, a leaf is then whole on every device.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.mesh.layout import Layout
from jaxdp.recipe import Recipe, TrainState
from jaxdp.strategies.placement import Placement


@dataclass(frozen=True)
class Slabs:
    """A cut leaf's logical array: `dim` of a layer in `count` slabs; device j of the mesh makes slab j * count // n."""

    placement: Placement
    mesh: Mesh
    dim: int
    count: int

    @property
    def size(self) -> int:
        """Elements of `dim` in a slab."""
        return self.placement.layer_shape[self.dim] // self.count

    @property
    def array_dim(self) -> int:
        """The dim of the whole leaf."""
        return self.dim + len(self.placement.shape) - len(self.placement.layer_shape)

    @property
    def holders(self) -> np.ndarray:
        """Of each slab the devices, by their places in the mesh, that a checkpoint reads it from: all, or the first."""
        return holders(self.mesh.size, self.count)

    @property
    def sharding(self) -> NamedSharding:
        devices = self.mesh.devices.reshape(-1)[self.holders]
        spec = PartitionSpec(*[None] * self.array_dim, "slab")
        return NamedSharding(Mesh(devices, ("slab", "copy")), spec)

    def on_mesh(self, parts: Any) -> jax.Array:
        """The slabs of all devices, [.., n * size, ..] along the dim, from this process's parts."""
        shape = list(self.placement.shape)
        shape[self.array_dim] = self.size * self.mesh.size
        sharding = NamedSharding(self.mesh, self.spec)
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, parts)

    @property
    def spec(self) -> PartitionSpec:
        return PartitionSpec(*[None] * self.array_dim, self.mesh.axis_names)


def holders(devices: int, count: int) -> np.ndarray:
    """[count, copies] places: every device where the count divides them, else the first one of each slab."""
    if devices % count == 0:
        return np.arange(devices).reshape(count, -1)
    return -(-np.arange(count) * devices // count)[:, None]


def to_logical(state: TrainState, layout: Layout) -> TrainState:
    """The state in its logical shapes; leaves that are whole are those of `state` itself."""

    def leaf(array: jax.Array, placement: Placement) -> jax.Array:
        if placement.axis is None:
            return array
        slabs = slabs_of(placement, layout.mesh)
        made, sharding = _slabs_from_stored(slabs)(array), slabs.sharding
        parts = [shard.data for shard in made.addressable_shards if shard.device in sharding.device_set]
        return jax.make_array_from_single_device_arrays(placement.shape, sharding, parts)

    return jax.tree.map(leaf, state, layout.state)


def from_logical(state: TrainState, layout: Layout) -> TrainState:
    """The stored state of a logical one, which it takes over: leaf by leaf, so that never all is there twice."""

    def leaf(array: jax.Array, placement: Placement, stored: NamedSharding) -> jax.Array:
        if placement.axis is None:
            return jax.device_put(array, stored)
        slabs = slabs_of(placement, layout.mesh)
        array = jax.device_put(array, slabs.sharding)
        held = {shard.device: shard.data for shard in array.addressable_shards}
        shape = slabs.sharding.shard_shape(placement.shape)
        own = [device for device in layout.mesh.devices.flat if device.process_index == jax.process_index()]
        parts = [held[d] if d in held else jax.device_put(np.zeros(shape, array.dtype), d) for d in own]
        made = jax.block_until_ready(_stored_from_slabs(slabs)(slabs.on_mesh(parts)))
        array.delete()
        return made

    return jax.tree.map(leaf, state, layout.state, layout.shardings(layout.state))


def logical_state(recipe: Recipe, layout: Layout) -> TrainState:
    """Shapes, dtypes and shardings of the state in its logical shapes."""

    def leaf(abstract: Any, placement: Placement, stored: NamedSharding) -> jax.ShapeDtypeStruct:
        sharding = stored if placement.axis is None else slabs_of(placement, layout.mesh).sharding
        return jax.ShapeDtypeStruct(abstract.shape, abstract.dtype, sharding=sharding)

    return jax.tree.map(leaf, recipe.abstract_state(), layout.state, layout.shardings(layout.state))


@lru_cache(maxsize=1024)
def slabs_of(placement: Placement, mesh: Mesh) -> Slabs:
    """The most slabs that a dim divides into, the first such dim; each process must hold a part of one."""
    owners = np.array([device.process_index for device in mesh.devices.flat])
    processes = len(set(owners.tolist()))

    def fits(count: int) -> bool:
        return len(set(owners[holders(mesh.size, count)].reshape(-1).tolist())) == processes

    counts = [count for count in range(mesh.size, 0, -1) if fits(count)]  # 1 is always among them
    shape = placement.layer_shape
    count, dim = max((next(c for c in counts if size % c == 0), -dim) for dim, size in enumerate(shape))
    return Slabs(placement, mesh, -dim, count)


@lru_cache(maxsize=1024)
def _slabs_from_stored(slabs: Slabs) -> Any:
    """jitted: the stored array -> `Slabs.on_mesh`, one layer at a time."""
    placement, axes, devices = slabs.placement, slabs.mesh.axis_names, slabs.mesh.size
    assert placement.axis is not None

    def layer(shard: jax.Array) -> jax.Array:
        whole = placement.layer.logical(jax.lax.all_gather(shard, placement.axis, tiled=True))
        slab = jax.lax.axis_index(axes) * slabs.count // devices
        return jax.lax.dynamic_slice_in_dim(whole, slab * slabs.size, slabs.size, slabs.dim)

    return _over_layers(layer, slabs, PartitionSpec(*placement.spec), slabs.spec)


@lru_cache(maxsize=1024)
def _stored_from_slabs(slabs: Slabs) -> Any:
    """jitted: `Slabs.on_mesh` -> the stored array, one layer at a time."""
    placement, axes = slabs.placement, slabs.mesh.axis_names
    assert placement.axis is not None

    def layer(slab: jax.Array) -> jax.Array:
        held = jax.lax.all_gather(slab, axes)[slabs.holders[:, 0]]
        whole = jnp.moveaxis(held, 0, slabs.dim).reshape(placement.layer_shape)
        piece = jax.lax.axis_index(placement.axis) * placement.piece_size
        return jax.lax.dynamic_slice_in_dim(placement.layer.store(whole), piece, placement.piece_size)

    return _over_layers(layer, slabs, slabs.spec, PartitionSpec(*placement.spec))


def _over_layers(layer: Any, slabs: Slabs, in_specs: PartitionSpec, out_specs: PartitionSpec) -> Any:
    def local(array: jax.Array) -> jax.Array:
        return jax.lax.map(layer, array) if slabs.placement.layered else layer(array)

    # Unchecked: what is gathered over all axes is the same everywhere, which the check cannot see.
    return jax.jit(jax.shard_map(local, mesh=slabs.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))
