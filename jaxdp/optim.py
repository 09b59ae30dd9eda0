"""The optimizers and the learning-rate schedule. Elementwise only, so that they run on shards.

Clipping is not here: it needs the norm over all shards, which only the train step knows.
"""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax

from jaxdp.config import OptimConfig
from jaxdp.task import path_text


def learning_rate_schedule(optim: OptimConfig, steps: int) -> Callable[[jax.Array], jax.Array]:
    """Steps taken so far (fractions too) -> learning rate: linear warm-up, then cosine to zero or constant.

    The first step of a warm-up over w is 1/w of the peak, so that no step is wasted at a rate of zero.
    """
    warmup, peak = optim.warmup_steps, optim.learning_rate

    def learning_rate(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        rising = jnp.minimum(1.0, (step + 1) / max(1, warmup))
        if optim.schedule == "constant":
            return peak * rising
        done = jnp.clip((step - warmup) / max(1, steps - warmup), 0.0, 1.0)
        return peak * rising * 0.5 * (1 + jnp.cos(jnp.pi * done))

    return learning_rate


def make_tx(optim: OptimConfig, decaying: Collection[str]) -> optax.GradientTransformation:
    """Gradient -> direction of AdamW, or of SGD with momentum; the update is minus learning rate times it.

    Weight decay is decoupled for AdamW (arXiv 1711.05101) and part of the gradient for SGD. Which leaves decay is
    said by their paths, since a shard may have lost its shape.
    """
    decay = optax.add_decayed_weights(
        optim.weight_decay,
        mask=lambda params: jax.tree.map_with_path(lambda path, _: path_text(path) in decaying, params),
    )
    if optim.name == "adamw":
        return optax.chain(optax.scale_by_adam(optim.beta1, optim.beta2), decay)
    momentum = optax.trace(optim.momentum) if optim.momentum else optax.identity()
    return optax.chain(decay, momentum)
