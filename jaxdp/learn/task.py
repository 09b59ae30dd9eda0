"""What is trained: the state, one batch, and the three functions that every strategy shares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import optax

Params = Any  # a tree of dicts: {"embed", "blocks": {...}, "final_norm", "head"}


class TrainState(NamedTuple):
    step: jax.Array
    params: Params
    opt_state: Any


class Batch(NamedTuple):
    """B sequences of T tokens.

    `weights_BxT` is 0 where the target is padding. `positions_B` is each sequence's place in the endless
    stream of training sequences (step * global_batch + row): it keys dropout, so that masks belong to a
    sequence and not to a device.
    """

    inputs_BxT: Any
    targets_BxT: Any
    weights_BxT: Any
    positions_B: Any


class Fetch(Protocol):
    """Turns the shards of one group of parameters ("outer" or "block") into the full parameters."""

    def __call__(self, group: str, params: Params) -> Params: ...


class LossSum(Protocol):
    """The sum of the valid tokens' losses in nats, and the number of valid tokens, both float32 scalars."""

    def __call__(
        self, params: Params, batch: Batch, fetch: Fetch, *, train: bool = True
    ) -> tuple[jax.Array, jax.Array]: ...


@dataclass(frozen=True)
class Task:
    init_params: Callable[[jax.Array], Params]
    loss_sum: LossSum
    tx: optax.GradientTransformation
    clip: float  # on the true global norm; 0 turns it off
