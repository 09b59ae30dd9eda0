"""Where each leaf of the train state lives: a rule's cuts as trees of `Placement`s."""

from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.recipe import Recipe, TrainState
from jaxdp.strategies.placement import Placement, place
from jaxdp.strategies.rules import ShardRule
from jaxdp.task import Params, by_path


@dataclass(frozen=True)
class Layout:
    """Trees of `Placement`s shaped like the state: the parameters', and the optimizer's for its work on them."""

    mesh: Mesh
    params: Any
    optimizer: Any
    opt_state: Any

    @property
    def axes(self) -> tuple[str, ...]:
        return self.mesh.axis_names

    @property
    def batch(self) -> PartitionSpec:
        """The batch is cut along its first dim over all axes, whatever the strategy."""
        return PartitionSpec(self.axes)

    def local_rows(self, rows: int) -> slice:
        """Which of a batch's rows lie on this process's devices; these are neighbours in the mesh."""
        owners = [device.process_index for device in self.mesh.devices.flat]
        own = [place for place, owner in enumerate(owners) if owner == jax.process_index()]
        each = rows // self.mesh.size
        return slice(own[0] * each, (own[-1] + 1) * each)

    @property
    def state(self) -> TrainState:
        """The placements of a whole train state."""
        scalar: Any = Placement(())
        return TrainState(scalar, self.params, self.opt_state)

    def shardings(self, placements: Any) -> Any:
        return jax.tree.map(lambda leaf: NamedSharding(self.mesh, PartitionSpec(*leaf.spec)), placements)

    def put(self, tree: Any, placements: Any) -> Any:
        """Logical arrays of the host, or of one device, stored on the mesh."""
        return jax.device_put(store(tree, placements), self.shardings(placements))


def make_layout(recipe: Recipe, rule: ShardRule, mesh: Mesh) -> Layout:
    """The layout of a recipe's state under a rule; every optimizer leaf follows its parameter's optimizer placement."""
    params = recipe.task.abstract_params
    axis_sizes = dict(mesh.shape)
    placed = {
        parameter.path: place(parameter, rule(parameter, axis_sizes), axis_sizes)
        for parameter in recipe.task.parameters
    }
    optimizer = _spread(params, {path: leaf.optimizer for path, leaf in placed.items()})
    opt_state = optax.tree_map_params(
        recipe.tx,
        lambda _, placement: placement,
        jax.eval_shape(recipe.tx.init, params),
        optimizer,
        transform_non_params=lambda leaf: Placement(leaf.shape),
    )
    return Layout(mesh, _spread(params, {path: leaf.params for path, leaf in placed.items()}), optimizer, opt_state)


def store(tree: Any, placements: Any) -> Any:
    """The stored arrays of a tree of logical ones."""
    return jax.tree.map(lambda leaf, placement: placement.store(leaf), tree, placements)


def logical(tree: Any, placements: Any) -> Any:
    """The logical arrays of a tree of stored ones."""
    return jax.tree.map(lambda leaf, placement: placement.logical(leaf), tree, placements)


def specs(placements: Any) -> Any:
    """A tree of `PartitionSpec`s."""
    return jax.tree.map(lambda placement: PartitionSpec(*placement.spec), placements)


def _spread(like: Params, values: dict[str, Any]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [values[path] for path in by_path(like)])
