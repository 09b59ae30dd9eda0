"""A strategy's train step compiled from shapes alone: no data is read and no array made."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding

from jaxdp.config import Config
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.flat import flat_recipe, flat_rule
from jaxdp.mesh.layout import Layout, make_layout
from jaxdp.mesh.step import MeshStep, make_step
from jaxdp.mesh.xla_options import Options
from jaxdp.recipe import Recipe, TrainState, make_recipe
from jaxdp.stragglers.in_step import DeviceClocks
from jaxdp.strategies.rules import ShardRule
from jaxdp.task import Batch
from jaxdp.workload import example_batch, reduces_by_block


class CompiledBytes(NamedTuple):
    """Bytes a device as the compiler plans them; the state is donated, so outputs reuse the arguments."""

    arguments: int
    outputs: int
    temporaries: int
    aliased: int

    @property
    def total(self) -> int:
        return self.arguments + self.outputs + self.temporaries - self.aliased


def build_step(
    config: Config,
    devices: Sequence[jax.Device],
    hosts: int = 1,
    rule: ShardRule | None = None,
    clocks: DeviceClocks | None = None,
) -> tuple[Recipe, Layout, MeshStep]:
    """The recipe, layout and functions of the config's strategy, or of another rule, on these devices."""
    mesh = make_mesh(config.strategy.axis_sizes(len(devices), hosts), devices)
    recipe = make_recipe(config, devices[0].platform)
    rule = rule or config.strategy.rule
    if config.strategy.row.flat:
        recipe, rule = flat_recipe(recipe, config, len(devices)), flat_rule(rule)
    layout = make_layout(recipe, rule, mesh)
    skip = config.train.on_nonfinite == "skip"
    latency_s = config.strategy.round_latency_s
    by_block = reduces_by_block(config)
    return recipe, layout, make_step(recipe, layout, config.train.accumulation, skip, clocks, latency_s, by_block)


def abstract_state(recipe: Recipe, layout: Layout) -> TrainState:
    """Shapes, dtypes and shardings of the stored state."""
    return jax.tree.map(
        lambda leaf, placement, sharding: jax.ShapeDtypeStruct(placement.stored_shape, leaf.dtype, sharding=sharding),
        recipe.abstract_state(),
        layout.state,
        layout.shardings(layout.state),
    )


def abstract_batch(config: Config, layout: Layout, example: Batch) -> Batch:
    """Shapes, dtypes and shardings of a global batch, of which `example` has some rows."""
    rows, sharding = config.train.global_batch, NamedSharding(layout.mesh, layout.batch)

    def leaf(array: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype, sharding=sharding)

    return jax.tree.map(leaf, example)


def compile_step(
    config: Config,
    devices: Sequence[jax.Device],
    hosts: int = 1,
    rule: ShardRule | None = None,
    options: Options | None = None,
) -> Any:
    """The compiled train step; `devices` may be those of a topology that isn't there, `options` are the compiler's."""
    recipe, layout, functions = build_step(config, devices, hosts, rule)
    batch = abstract_batch(config, layout, example_batch(config))
    lowered = functions.step.lower(abstract_state(recipe, layout), batch)
    return lowered.compile(compiler_options=dict(options) if options else None)


def compiled_bytes(compiled: Any) -> CompiledBytes | None:
    """None where the backend says nothing, or only zeros."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    made = CompiledBytes(
        found.argument_size_in_bytes,
        found.output_size_in_bytes,
        found.temp_size_in_bytes,
        found.alias_size_in_bytes,
    )
    return made if made.total else None
