"""A strategy's train step compiled from shapes alone: no data is read and no array made."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxdp.config import Config
from jaxdp.data.batch import Batch
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.flat import flat_rule, flat_task
from jaxdp.mesh.layout import Layout, make_layout
from jaxdp.mesh.step import MeshStep, make_step
from jaxdp.stragglers.step_pace import StepPace
from jaxdp.strategies.flat_layout import is_flat
from jaxdp.strategies.rules import STRATEGIES, ShardRule, axis_sizes
from jaxdp.task import Task, TrainState, make_task


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
    pace: StepPace | None = None,
) -> tuple[Task, Layout, MeshStep]:
    """The task, layout and functions of the config's strategy, or of another rule, on these devices."""
    mesh = make_mesh(axis_sizes(config.strategy, len(devices), hosts), devices)
    task = make_task(config, devices[0].platform)
    rule = rule or STRATEGIES[config.strategy.name].rule(config.strategy)
    if is_flat(config.strategy):
        task, rule = flat_task(task, config, len(devices)), flat_rule(rule)
    layout = make_layout(task, rule, mesh)
    skip = config.train.on_nonfinite == "skip"
    latency_s = config.strategy.round_latency_s
    return task, layout, make_step(task, layout, config.train.accumulation, skip, pace, latency_s)


def abstract_state(task: Task, layout: Layout) -> TrainState:
    """Shapes, dtypes and shardings of the state."""

    def make(key: jax.Array) -> TrainState:
        params = task.init_params(key)
        return TrainState(jnp.zeros((), jnp.int32), params, task.tx.init(params))

    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        jax.eval_shape(make, jax.random.key(0)),
        layout.state,
    )


def abstract_batch(config: Config, layout: Layout) -> Batch:
    """Shapes, dtypes and shardings of a global batch, as `data.pipeline` makes it."""
    rows, sharding = config.train.global_batch, NamedSharding(layout.mesh, layout.batch)

    def leaf(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    tokens = (rows, config.model.context)
    return Batch(leaf(tokens, jnp.int32), leaf(tokens, jnp.int32), leaf(tokens, jnp.float32), leaf((rows,), jnp.uint32))


def compile_step(config: Config, devices: Sequence[jax.Device], hosts: int = 1, rule: ShardRule | None = None) -> Any:
    """The compiled train step; `devices` may be those of a topology that isn't there."""
    task, layout, functions = build_step(config, devices, hosts, rule)
    return functions.step.lower(abstract_state(task, layout), abstract_batch(config, layout)).compile()


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
