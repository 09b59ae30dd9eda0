"""What is trained: the state, one batch, and the three functions that every strategy shares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from jaxdp import optim
from jaxdp.config import Config
from jaxdp.data.batch import Batch
from jaxdp.models import attention
from jaxdp.models import transformer as model
from jaxdp.params import Fetch, Params


class TrainState(NamedTuple):
    step: jax.Array
    params: Params
    opt_state: Any


class LossSum(Protocol):
    """The sum of the valid tokens' losses in nats, and the number of valid tokens, both float32 scalars."""

    def __call__(
        self, params: Params, batch: Batch, fetch: Fetch, *, train: bool = True
    ) -> tuple[jax.Array, jax.Array]: ...


@dataclass(frozen=True)
class Task:
    """What is trained. An update is `params - learning_rate(step) * direction`, where `direction` comes from `tx`.

    `tx` is elementwise (it runs on shards) and knows neither clipping nor the learning rate: the step clips
    by the true global norm over all shards, and the learning rate is a function of the tokens consumed, in
    units of global batches (an integer for a mesh strategy, a fraction for an asynchronous server).
    """

    init_params: Callable[[jax.Array], Params]
    loss_sum: LossSum
    tx: optax.GradientTransformation
    learning_rate: Callable[[jax.Array], jax.Array]
    clip: float  # on the true global norm; 0 turns it off
    compute_dtype: jax.typing.DTypeLike


def make_task(config: Config, platform: str) -> Task:
    """The task of a config. `platform` ("cpu", "gpu" or "tpu") decides what "auto" leaves open."""
    dtype = compute_dtype(config, platform)
    form = attention.choose(platform, dtype, config.model.head_dim)
    return Task(
        init_params=lambda key: model.init_params(config.model, key),
        loss_sum=model.make_loss_sum(config.model, form, config.train.remat, config.train.seed),
        tx=optim.make_tx(config.optim),
        learning_rate=optim.learning_rate_schedule(config.optim, config.train.steps),
        clip=config.optim.clip,
        compute_dtype=dtype,
    )


def compute_dtype(config: Config, platform: str) -> jax.typing.DTypeLike:
    """float32 on a CPU and bfloat16 on accelerators, unless the config says otherwise."""
    if config.train.compute_dtype == "auto":
        return jnp.float32 if platform == "cpu" else jnp.bfloat16
    return jnp.dtype(config.train.compute_dtype)


def cast_fetch(dtype: jax.typing.DTypeLike) -> Fetch:
    """The fetch of a single device: casts to the compute dtype; gradients come back in float32."""

    def fetch(group: str, params: Params) -> Params:
        return jax.tree.map(lambda leaf: leaf.astype(dtype), params)

    return fetch
