"""How a task is trained: optimizer, learning rate, clipping and compute dtype, from the config."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import optim
from jaxdp.config import Config
from jaxdp.task import Params, Task, Unshard
from jaxdp.workload import task_of


class TrainState(NamedTuple):
    step: jax.Array
    params: Params
    opt_state: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """A task and its training. An update is `params - learning_rate(step) * direction`; `tx` gives the direction.

    `tx` is elementwise (it runs on shards) and knows neither clipping nor the learning rate: the step clips
    by the true global norm over all shards, and the learning rate is a function of the units consumed, in
    global batches (an integer for a mesh strategy, a fraction for an asynchronous server).
    """

    task: Task
    tx: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    clip: float  # on the true global norm; 0 turns it off
    compute_dtype: jax.typing.DTypeLike

    def init_state(self, key: jax.Array) -> TrainState:
        params = self.task.init_params(key)
        return TrainState(jnp.zeros((), jnp.int32), params, self.tx.init(params))

    def abstract_state(self) -> TrainState:
        """The state's shapes."""
        step: Any = jax.ShapeDtypeStruct((), jnp.int32)
        params = self.task.abstract_params
        return TrainState(step, params, jax.eval_shape(self.tx.init, params))


def make_recipe(config: Config, platform: str, task: Task | None = None) -> Recipe:
    """The config's training of its task, or of another. `platform` ("cpu", "gpu", "tpu") decides what "auto" means."""
    task = task or task_of(config, platform)
    decaying = frozenset(parameter.path for parameter in task.parameters if task.decays(parameter))
    return Recipe(
        task=task,
        tx=optim.make_tx(config.optim, decaying),
        learning_rate=optim.learning_rate_schedule(config.optim, config.train.steps),
        clip=config.optim.clip,
        compute_dtype=jnp.dtype(config.train.dtype_on(platform)),
    )


def cast_unshard(dtype: jax.typing.DTypeLike) -> Unshard:
    """The `unshard` of a single device, where nothing is cut: it casts, and gradients come back in float32."""

    def unshard(subtree: str, shards: Params) -> Params:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), shards)

    return unshard
