"""Where each leaf of the train state lives: a rule's specs as trees of `PartitionSpec`s."""

from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.recipe import Recipe, TrainState
from jaxdp.strategies.rules import ShardRule
from jaxdp.task import Params, by_path


@dataclass(frozen=True)
class Layout:
    """Trees of `PartitionSpec`s shaped like the state: the parameters', and the optimizer's for its work on them."""

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

    def shardings(self, specs: Any) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), specs)

    @property
    def state(self) -> TrainState:
        """The shardings of a whole train state."""
        scalar: Any = PartitionSpec()
        return self.shardings(TrainState(scalar, self.params, self.opt_state))


def make_layout(recipe: Recipe, rule: ShardRule, mesh: Mesh) -> Layout:
    """The layout of a recipe's state under a rule; every optimizer leaf follows its parameter's optimizer spec."""
    params = recipe.task.abstract_params
    axis_sizes = dict(mesh.shape)
    specs = {parameter.path: rule(parameter, axis_sizes) for parameter in recipe.task.parameters}
    optimizer = _spread(params, {path: PartitionSpec(*spec.optimizer) for path, spec in specs.items()})
    opt_state = optax.tree_map_params(
        recipe.tx,
        lambda _, spec: spec,
        jax.eval_shape(recipe.tx.init, params),
        optimizer,
        transform_non_params=lambda _: PartitionSpec(),
    )
    return Layout(
        mesh=mesh,
        params=_spread(params, {path: PartitionSpec(*spec.params) for path, spec in specs.items()}),
        optimizer=optimizer,
        opt_state=opt_state,
    )


def spec_axes(spec: PartitionSpec) -> tuple[str, ...]:
    return tuple(axis for axis in spec if axis is not None)


def _spread(like: Params, values: dict[str, Any]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(like), [values[path] for path in by_path(like)])
