"""Causal attention with grouped keys and values, by backend.

Shapes: B sequences, T tokens, H query heads, G groups of keys and values (G divides H), K head width.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

BLOCK = 64  # queries that the blocked form handles at once


Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def choose(platform: str, dtype: jax.typing.DTypeLike, head_dim: int) -> Attention:
    """cuDNN's kernel where it can run, else the blocked form."""
    fits_cudnn = jnp.dtype(dtype).itemsize == 2 and head_dim % 8 == 0 and head_dim <= 128
    return cudnn_attention if platform == "gpu" and fits_cudnn else blocked_attention


def rotary(x_BxTxHxK: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotates each pair (i, i + K/2) of a head by position * base^(-2i/K) (RoPE, arXiv 2104.09864)."""
    length, width = x_BxTxHxK.shape[1], x_BxTxHxK.shape[3]
    frequency_K = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle_TxK = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency_K[None, :]
    cos, sin = jnp.cos(angle_TxK)[None, :, None, :], jnp.sin(angle_TxK)[None, :, None, :]
    left, right = jnp.split(x_BxTxHxK.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return rotated.astype(x_BxTxHxK.dtype)


def cudnn_attention(q_BxTxHxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array) -> jax.Array:
    """Flash attention of NVIDIA's cuDNN (bfloat16 or float16 only)."""
    return jax.nn.dot_product_attention(q_BxTxHxK, k_BxTxGxK, v_BxTxGxK, is_causal=True, implementation="cudnn")


def blocked_attention(q_BxTxHxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array) -> jax.Array:
    """Softmax attention a block of queries at a time, each against the keys up to its end only.

    The masked half is never computed beyond the diagonal blocks.
    """
    length, heads, width = q_BxTxHxK.shape[1:]
    groups = k_BxTxGxK.shape[2]
    q = q_BxTxHxK.reshape(*q_BxTxHxK.shape[:2], groups, heads // groups, width)
    blocks = []
    for start in range(0, length, BLOCK):
        end = min(start + BLOCK, length)
        scores = jnp.einsum(
            "bqgrk,bsgk->bgrqs", q[:, start:end], k_BxTxGxK[:, :end], preferred_element_type=jnp.float32
        )
        seen = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
        scores = jnp.where(seen[None, None, None], scores / math.sqrt(width), -jnp.inf)
        chances = jax.nn.softmax(scores, axis=-1).astype(v_BxTxGxK.dtype)
        blocks.append(jnp.einsum("bgrqs,bsgk->bqgrk", chances, v_BxTxGxK[:, :end]))
    return jnp.concatenate(blocks, axis=1).reshape(q_BxTxHxK.shape)
