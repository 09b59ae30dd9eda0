"""The arrays that the server's state machine governs: shards on the host CPU and their compiled update.

An update takes two calls on every shard, since clipping needs the norm over all of them: `prepare`, then
`commit`. The pushes are added in the workers' order and divided by their valid tokens.
The learning rate is the recipe's own schedule at (tokens consumed / tokens of a global batch), a fraction
under asynchrony, so that every strategy meets the same rate at the same tokens however many pushes an
update takes.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp.errors import BadInput
from jaxdp.recipe import Recipe
from jaxdp.server.partition import Leaves


class UpdateFunctions(NamedTuple):
    """Compiled for every shape they meet. The `in_place` one may overwrite parameters and optimizer state."""

    square_norm: Callable[..., jax.Array]
    in_place: Callable[..., tuple[Leaves, Any, jax.Array]]
    beside: Callable[..., tuple[Leaves, Any, jax.Array]]
    compensate: Callable[..., Leaves]


@functools.cache
def make_update(recipe: Recipe, compensation: float = 0.0) -> UpdateFunctions:
    """`apply(params, opt_state, pushes' gradients, tokens, norm, step, scale) -> (params, opt_state, rate)`.

    `compensate` is the first-order correction of a stale gradient, g + c g^2 (w - w_pulled), on means
    (Zheng et al., arXiv 1609.08326).
    """

    def total(grads: tuple[Leaves, ...]) -> Leaves:
        return jax.tree.map(lambda *parts: functools.reduce(jnp.add, parts), *grads)

    def square_norm(grads: tuple[Leaves, ...]) -> jax.Array:
        return sum((jnp.sum(jnp.square(leaf)) for leaf in total(grads).values()), jnp.zeros(()))

    def apply(params, opt_state, grads, tokens, norm, step, scale):
        factor = jnp.minimum(1.0, recipe.clip / jnp.maximum(norm, recipe.clip)) if recipe.clip else 1.0
        mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(tokens, 1) * factor, total(grads))
        direction, opt_state = recipe.tx.update(mean, opt_state, params)
        rate = recipe.learning_rate(step) * scale
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
        self._prepared: tuple[Leaves, ...] = ()
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

    def release(self, params: Leaves) -> None:
        with self._lock:
            if params is self.params:
                self._readers -= 1

    def keep(self, version: int) -> None:
        """Holds on to the present parameters, which are those of `version`."""
        self._kept[version] = self.params

    def forget(self, before: int) -> None:
        """Lets go of the kept parameters of versions below `before`."""
        self._kept = {version: params for version, params in self._kept.items() if version >= before}

    def prepare(self, grads: Sequence[Leaves], tokens: Sequence[float], versions: Sequence[int]) -> float:
        """Takes the pushes of the next update and returns the squared norm of their sum.

        A push whose version's parameters were kept is corrected for what has changed since.
        """
        self._prepared = tuple(
            self.functions.compensate(push, np.float32(count), self.params, self._kept[version])
            if version in self._kept
            else push
            for push, count, version in zip(grads, tokens, versions, strict=True)
        )
        return float(self.functions.square_norm(self._prepared))

    def commit(self, tokens: float, norm: float, step: float, scale: float) -> float:
        """Makes the update that was prepared; returns the learning rate. Waits until it is done."""
        with self._lock:
            free = not self._readers and not any(kept is self.params for kept in self._kept.values())
            apply = self.functions.in_place if free else self.functions.beside
            numbers = (np.float32(value) for value in (tokens, norm, step, scale))
            self.params, self.opt_state, rate = apply(self.params, self.opt_state, self._prepared, *numbers)
            self._readers, self._prepared = 0, ()
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


def owned(tree: Any, device: jax.Device) -> Any:
    """A copy on `device` whose buffers belong to nobody else, so that they may be overwritten in place."""
    return jax.tree.map(lambda leaf: jnp.copy(jax.device_put(np.asarray(leaf), device)), tree)
