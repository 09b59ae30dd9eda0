"""The arrays that the server's state machine governs: shards on the host CPU and their compiled update.

An update takes two calls on every shard, since clipping needs the norm over all of them: `square_norm` of
the summed gradients, then `apply`. Both add the pushes in the workers' order and divide by the valid tokens.
The learning rate is the task's own schedule at (tokens consumed / tokens of a global batch), a fraction
under asynchrony, so that every strategy meets the same rate at the same tokens however many pushes an
update takes.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp.errors import BadInput
from jaxdp.learn.task import Task, TrainState
from jaxdp.server.core import Update
from jaxdp.server.cuts import Leaves
from jaxdp.server.messages import Applied
from jaxdp.server.shard_plan import ShardPlan, names_of


class Gradient(NamedTuple):
    """The payload of a push: sums over its valid tokens. `parts` has one element for each server shard."""

    parts: Sequence[Any]
    loss: float
    tokens: float


class UpdateFunctions(NamedTuple):
    """Compiled for every shape they meet. The `in_place` one may overwrite parameters and optimizer state."""

    square_norm: Callable[..., jax.Array]
    in_place: Callable[..., tuple[Leaves, Any, jax.Array]]
    beside: Callable[..., tuple[Leaves, Any, jax.Array]]
    compensate: Callable[..., Leaves]


@functools.cache
def make_update(task: Task, compensation: float = 0.0) -> UpdateFunctions:
    """`apply(params, opt_state, pushes' gradients, tokens, norm, step, scale) -> (params, opt_state, rate)`.

    `compensate` is the first-order correction of a stale gradient, g + c g^2 (w - w_pulled), on means
    (Zheng et al., arXiv 1609.08326).
    """

    def total(grads: tuple[Leaves, ...]) -> Leaves:
        return jax.tree.map(lambda *parts: functools.reduce(jnp.add, parts), *grads)

    def square_norm(grads: tuple[Leaves, ...]) -> jax.Array:
        return sum((jnp.sum(jnp.square(leaf)) for leaf in total(grads).values()), jnp.zeros(()))

    def apply(params, opt_state, grads, tokens, norm, step, scale):
        factor = jnp.minimum(1.0, task.clip / jnp.maximum(norm, task.clip)) if task.clip else 1.0
        mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(tokens, 1) * factor, total(grads))
        direction, opt_state = task.tx.update(mean, opt_state, params)
        rate = task.learning_rate(step) * scale
        return optax.apply_updates(params, jax.tree.map(lambda d: -rate * d, direction)), opt_state, rate

    def compensate(grads, tokens, params, pulled):
        weight = compensation / jnp.maximum(tokens, 1)
        return jax.tree.map(lambda g, w, old: g + weight * jnp.square(g) * (w - old), grads, params, pulled)

    return UpdateFunctions(
        square_norm=jax.jit(square_norm),
        in_place=jax.jit(apply, donate_argnums=(0, 1)),
        beside=jax.jit(apply, donate_argnums=1),
        compensate=jax.jit(compensate),
    )


class Shard:
    """One shard's parameters and optimizer state. One thread updates it; any thread may give a reading back.

    While someone reads the parameters, or they are kept for the compensation of a later push, an update
    leaves them alone and writes beside them.
    """

    def __init__(self, functions: UpdateFunctions, params: Leaves, opt_state: Any) -> None:
        self.functions = functions
        self.params = params
        self.opt_state = opt_state
        self._readers = 0
        self._kept: dict[int, Leaves] = {}  # version -> parameters
        self._lock = threading.Lock()

    def warm_up(self, pushes: int) -> None:
        """Compiles for this many pushes, on zeros."""
        for apply in (self.functions.in_place, self.functions.beside):
            params, opt_state = jax.tree.map(jnp.zeros_like, (self.params, self.opt_state))
            grads = ({name: np.zeros(leaf.shape, np.float32) for name, leaf in params.items()},) * pushes
            norm = self.functions.square_norm(grads)
            jax.block_until_ready(apply(params, opt_state, grads, *[np.float32(value) for value in (1, norm, 0, 1)]))

    def read(self) -> Leaves:
        with self._lock:
            self._readers += 1
            return self.params

    def give_back(self, params: Leaves) -> None:
        with self._lock:
            if params is self.params:
                self._readers -= 1

    def keep(self, version: int) -> None:
        """Holds on to the present parameters, which are those of `version`."""
        self._kept[version] = self.params

    def forget(self, before: int) -> None:
        """Lets go of the kept parameters of versions below `before`."""
        self._kept = {version: params for version, params in self._kept.items() if version >= before}

    def compensated(self, grads: Leaves, tokens: float, version: int) -> Leaves:
        """The gradients of a push, corrected for what has changed since `version` (which must be kept)."""
        pulled = self._kept.get(version, self.params)
        return self.functions.compensate(grads, np.float32(tokens), self.params, pulled)

    def square_norm(self, grads: Sequence[Leaves]) -> float:
        return float(self.functions.square_norm(tuple(grads)))

    def apply(self, grads: Sequence[Leaves], tokens: float, norm: float, step: float, scale: float) -> float:
        """One update; returns the learning rate. Waits until it is done."""
        with self._lock:
            free = not self._readers and not any(kept is self.params for kept in self._kept.values())
            apply = self.functions.in_place if free else self.functions.beside
            numbers = (np.float32(value) for value in (tokens, norm, step, scale))
            self.params, self.opt_state, rate = apply(self.params, self.opt_state, tuple(grads), *numbers)
            self._readers = 0
        jax.block_until_ready((self.params, self.opt_state))
        return float(rate)


def host_device() -> jax.Device:
    """The CPU device that holds the server; raises `BadInput` if JAX was told to hide it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        raise BadInput(
            "JAX_PLATFORMS hides the CPU, where the server's arrays live; add it, for example cuda,cpu"
        ) from None


class LocalShards:
    """All shards in this process: one version over all of them, since they are updated together."""

    def __init__(
        self, plan: ShardPlan, state: TrainState, *, keep_pulled: bool, compensation: float, skip_nonfinite: bool
    ) -> None:
        self.plan = plan
        self.keep_pulled = keep_pulled
        self.skip_nonfinite = skip_nonfinite
        functions = make_update(plan.task, compensation)
        params = plan.split(names_of(state.params))
        opt_states = plan.split_opt_state(state.opt_state)
        host = host_device()
        self.shards = [
            Shard(functions, *owned((part, opt_state), host))
            for part, opt_state in zip(params, opt_states, strict=True)
        ]

    def read(self, version: int) -> "Reading":
        """The parameters as they are, at `version`; to be given back once copied."""
        if self.keep_pulled:
            for shard in self.shards:
                shard.keep(version)
        return Reading(self.shards, [shard.read() for shard in self.shards])

    def forget(self, before: int) -> None:
        for shard in self.shards:
            shard.forget(before)

    def warm_up(self, pushes: int) -> None:
        """Compiles the update of this many pushes, by updates of zeros with zeros."""
        for shard in self.shards:
            shard.warm_up(pushes)

    def apply(self, update: Update, step: float) -> Applied:
        """Applies the mean of the pushes; `step` is the tokens consumed before, in global batches."""
        gradients: list[Gradient] = [push.payload for push in update.pushes]
        tokens = sum(gradient.tokens for gradient in gradients)
        by_shard = [[gradient.parts[index] for gradient in gradients] for index in range(len(self.shards))]
        if self.keep_pulled:
            by_shard = [
                [
                    shard.compensated(g, n.tokens, p.version)
                    for g, n, p in zip(parts, gradients, update.pushes, strict=True)
                ]
                for shard, parts in zip(self.shards, by_shard, strict=True)
            ]
        squares = sum(shard.square_norm(parts) for shard, parts in zip(self.shards, by_shard, strict=True))
        norm = mean_norm(squares, tokens)
        if self.skip_nonfinite and not math.isfinite(norm + sum(gradient.loss for gradient in gradients)):
            return Applied(norm, 0.0)
        rates = [
            shard.apply(parts, tokens, norm, step, update.rate_scale)
            for shard, parts in zip(self.shards, by_shard, strict=True)
        ]
        return Applied(norm, rates[0])

    def norm(self, gradient: Gradient) -> float:
        """The norm of one push's mean gradient."""
        squares = sum(shard.square_norm([part]) for shard, part in zip(self.shards, gradient.parts, strict=True))
        return mean_norm(squares, gradient.tokens)

    def state(self, step: int) -> TrainState:
        """A copy of the whole state, which later updates leave alone."""
        params = self.plan.join([shard.params for shard in self.shards])
        opt_state = self.plan.join_opt_state([shard.opt_state for shard in self.shards])
        return owned(TrainState(jnp.int32(step), params, opt_state), host_device())


class Reading:
    """Parameters of one version, shard by shard, that no update touches until they are given back."""

    def __init__(self, shards: Sequence[Shard], parts: list[Leaves]) -> None:
        self._shards, self.parts = shards, parts

    def give_back(self) -> None:
        for shard, part in zip(self._shards, self.parts, strict=True):
            shard.give_back(part)


def mean_norm(squares: float, tokens: float) -> float:
    """The norm of the mean over tokens, from the squared norm of the sum."""
    return math.sqrt(squares) / max(tokens, 1.0) if squares >= 0 else squares


def owned(tree: Any, device: jax.Device) -> Any:
    """A copy on `device` whose buffers belong to nobody else, so that they may be overwritten in place."""
    return jax.tree.map(lambda leaf: jnp.copy(jax.device_put(np.asarray(leaf), device)), tree)
