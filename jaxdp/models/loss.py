"""Cross entropy from the last hidden values, by chunks of tokens: all logits are never there at once.

N tokens, n of a chunk, C chunks, D width, V vocabulary. Each chunk's gradients are made beside its loss, while its
logits are there, so that nothing is computed twice: the backward pass only scales them.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Sums = tuple[jax.Array, jax.Array]  # of the losses, and of the weights


def cross_entropy_sum(logits_NxV: jax.Array, targets_N: jax.Array, weights_N: jax.Array) -> Sums:
    """The weighted sum of the targets' negative log-likelihoods, and the sum of the weights."""
    weights_N = weights_N.astype(jnp.float32)
    target_N = jnp.take_along_axis(logits_NxV, targets_N[:, None], axis=-1)[:, 0]
    losses_N = jax.nn.logsumexp(logits_NxV, axis=-1) - target_N
    return jnp.sum(losses_N * weights_N), jnp.sum(weights_N)


def head_loss_sum(
    x_NxD: jax.Array, head_DxV: jax.Array, targets_N: jax.Array, weights_N: jax.Array, chunk: int
) -> Sums:
    """`cross_entropy_sum` of the float32 logits x @ head, `chunk` tokens at a time; `chunk` divides N."""
    if chunk == len(x_NxD):
        return cross_entropy_sum(_logits(x_NxD, head_DxV), targets_N, weights_N)
    weights_N = weights_N.astype(jnp.float32)
    return _chunked(x_NxD, head_DxV, targets_N, weights_N, chunk), jnp.sum(weights_N)


def _logits(x_NxD: jax.Array, head_DxV: jax.Array) -> jax.Array:
    return jnp.matmul(x_NxD, head_DxV, preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _chunked(
    x_NxD: jax.Array, head_DxV: jax.Array, targets_N: jax.Array, weights_N: jax.Array, chunk: int
) -> jax.Array:
    def step(total: jax.Array, part: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        x_nxD, targets_n, weights_n = part
        return total + cross_entropy_sum(_logits(x_nxD, head_DxV), targets_n, weights_n)[0], None

    total, _ = jax.lax.scan(step, _zero_like(weights_N), _chunks((x_NxD, targets_N, weights_N), chunk))
    return total


def _forward(
    x_NxD: jax.Array, head_DxV: jax.Array, targets_N: jax.Array, weights_N: jax.Array, chunk: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    def step(carry: tuple[jax.Array, jax.Array], part: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        total, grad_DxV = carry
        x_nxD, targets_n, weights_n = part
        logits_nxV = _logits(x_nxD, head_DxV)
        total += cross_entropy_sum(logits_nxV, targets_n, weights_n)[0]
        target_nxV = targets_n[:, None] == jnp.arange(logits_nxV.shape[1])[None]
        slope_nxV = (jax.nn.softmax(logits_nxV, axis=-1) - target_nxV) * weights_n[:, None]
        slope_nxV = slope_nxV.astype(x_nxD.dtype)
        grad_DxV += jnp.matmul(x_nxD.T, slope_nxV, preferred_element_type=jnp.float32)
        return (total, grad_DxV), jnp.matmul(slope_nxV, head_DxV.T)

    zeros_DxV = jnp.zeros(head_DxV.shape, jnp.float32) + _zero_like(weights_N)
    parts = _chunks((x_NxD, targets_N, weights_N), chunk)
    (total, grad_DxV), grads_CxnxD = jax.lax.scan(step, (_zero_like(weights_N), zeros_DxV), parts)
    return total, (grads_CxnxD.reshape(x_NxD.shape), grad_DxV.astype(head_DxV.dtype), weights_N)


def _backward(chunk: int, kept: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    grad_NxD, grad_DxV, weights_N = kept
    scaled = ((cotangent * grad.astype(jnp.float32)).astype(grad.dtype) for grad in (grad_NxD, grad_DxV))
    # Weights are data: nothing is learnt through them.
    return (*scaled, None, jnp.zeros_like(weights_N) + 0 * cotangent)


_chunked.defvjp(_forward, _backward)


def _chunks(arrays: tuple[jax.Array, ...], chunk: int) -> tuple[jax.Array, ...]:
    return tuple(array.reshape(-1, chunk, *array.shape[1:]) for array in arrays)


def _zero_like(weights_N: jax.Array) -> jax.Array:
    """A zero that varies over a mesh's axes as the data does, as a scan's carry must."""
    return 0 * weights_N[0]
