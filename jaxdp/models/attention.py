"""Causal attention with grouped keys and values, by backend.

Shapes: B sequences, T tokens, S the tokens up to a block's end, H query heads, G groups of keys and values,
R = H/G query heads of a group, K head width, q a block of queries.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxdp.models.attention_form import form, query_blocks

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# What the backward pass needs of the forward pass; a remat policy may save it by this name.
SAVED_NAME = "attention"


def choose(platform: str, dtype: jax.typing.DTypeLike, head_dim: int) -> Attention:
    """The attention of `attention_form.form`."""
    chosen = form(platform, jnp.dtype(dtype).itemsize, head_dim)
    if chosen.kind == "blocked":
        return partial(blocked_attention, block=chosen.block)
    return cudnn_attention if chosen.kind == "cudnn" else xla_attention


def rotary(x_BxTxHxK: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Rotates each pair (i, i + K/2) of a head by position * base^(-2i/K) (RoPE, arXiv 2104.09864)."""
    length, width = x_BxTxHxK.shape[1], x_BxTxHxK.shape[3]
    frequency = base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency[None, :]
    cos_TxK = jnp.concatenate([jnp.cos(angle), jnp.cos(angle)], axis=1)
    sin_TxK = jnp.concatenate([-jnp.sin(angle), jnp.sin(angle)], axis=1)
    x = x_BxTxHxK.astype(jnp.float32)
    rotated = x * cos_TxK[None, :, None] + jnp.roll(x, width // 2, axis=-1) * sin_TxK[None, :, None]
    return rotated.astype(x_BxTxHxK.dtype)


def xla_attention(q_BxTxHxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array) -> jax.Array:
    """Plain softmax attention, left to XLA."""
    return jax.nn.dot_product_attention(q_BxTxHxK, k_BxTxGxK, v_BxTxGxK, is_causal=True, implementation="xla")


def cudnn_attention(q_BxTxHxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array) -> jax.Array:
    """Flash attention of NVIDIA's cuDNN (bfloat16 or float16 only)."""
    return jax.nn.dot_product_attention(q_BxTxHxK, k_BxTxGxK, v_BxTxGxK, is_causal=True, implementation="cudnn")


def blocked_attention(q_BxTxHxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array, *, block: int) -> jax.Array:
    """Softmax attention: a sequence at a time and in it a block of queries against the keys up to its end.

    What lies above the diagonal's blocks is never computed, what a sequence needs stays near (in a CPU's cache, a
    TPU's vector memory), and the backward pass makes the probs again from the logarithm of their sum (as flash
    attention does, arXiv 2205.14135).
    """
    batch, length, heads, width = q_BxTxHxK.shape
    groups = k_BxTxGxK.shape[2]
    scaled = (q_BxTxHxK / math.sqrt(width)).astype(q_BxTxHxK.dtype)
    grouped = scaled.reshape(batch, length, groups, heads // groups, width)
    attended: Any = _causal(grouped, k_BxTxGxK, v_BxTxGxK, block)
    return attended.reshape(q_BxTxHxK.shape)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _causal(q_BxTxGxRxK: jax.Array, k_BxTxGxK: jax.Array, v_BxTxGxK: jax.Array, block: int) -> jax.Array:
    return _causal_forward(q_BxTxGxRxK, k_BxTxGxK, v_BxTxGxK, block)[0]


def _causal_forward(q: jax.Array, k: jax.Array, v: jax.Array, block: int) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    out, logsum = jax.lax.map(partial(_sequence_forward, block), (q, k, v))
    out, logsum = checkpoint_name(out, SAVED_NAME), checkpoint_name(logsum, SAVED_NAME)
    return out, (q, k, v, out, logsum)


def _causal_backward(block: int, saved: tuple[jax.Array, ...], d_out: jax.Array) -> tuple[jax.Array, ...]:
    return jax.lax.map(partial(_sequence_backward, block), (*saved, d_out))


_causal.defvjp(_causal_forward, _causal_backward)


def _sequence_forward(block: int, qkv: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """One sequence: (attention [T, G, R, K], logarithm of the softmax's sum [G, R, T, 1])."""
    q_GxRxTxK, (k_GxTxK, v_GxTxK) = qkv[0].transpose(1, 2, 0, 3), (x.swapaxes(0, 1) for x in qkv[1:])
    outs, logsums = [], []
    for start, end in query_blocks(q_GxRxTxK.shape[2], block):
        scores_GxRxqxS = _scores(q_GxRxTxK, k_GxTxK, start, end)
        largest = jnp.max(scores_GxRxqxS, axis=-1, keepdims=True)
        weights = jnp.exp(scores_GxRxqxS - largest)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        out = _einsum("grqs,gsk->grqk", weights.astype(v_GxTxK.dtype), v_GxTxK[:, :end])
        outs.append((out / total).astype(q_GxRxTxK.dtype))
        logsums.append(largest + jnp.log(total))
    return jnp.concatenate(outs, axis=2).transpose(2, 0, 1, 3), jnp.concatenate(logsums, axis=2)


def _sequence_backward(block: int, saved: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One sequence: the gradients of q, k and v, shaped like them."""
    q, out, d_out = (saved[i].transpose(1, 2, 0, 3) for i in (0, 3, 5))
    k, v = (saved[i].swapaxes(0, 1) for i in (1, 2))
    logsum = saved[4]
    # Softmax's Jacobian needs sum_s prob_s * d_prob_s, which equals out . d_out.
    inner = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1, keepdims=True)
    d_queries, d_k, d_v = [], None, None
    for start, end in reversed(query_blocks(q.shape[2], block)):
        q_block, d_block = q[:, :, start:end], d_out[:, :, start:end]
        probs = jnp.exp(_scores(q, k, start, end) - logsum[:, :, start:end])
        d_probs = _einsum("grqk,gsk->grqs", d_block, v[:, :end])
        d_scores = (probs * (d_probs - inner[:, :, start:end])).astype(q.dtype)
        d_queries.append(_einsum("grqs,gsk->grqk", d_scores, k[:, :end]))
        # Keys and values come out as [K, S]: contracting over the rows of the large factor is slow.
        d_k = _add_prefix(d_k, _einsum("grqk,grqs->gks", q_block, d_scores))
        d_v = _add_prefix(d_v, _einsum("grqk,grqs->gks", d_block, probs.astype(v.dtype)))
    assert d_k is not None and d_v is not None
    d_q = jnp.concatenate(d_queries[::-1], axis=2).astype(q.dtype)
    return d_q.transpose(2, 0, 1, 3), d_k.transpose(2, 0, 1).astype(k.dtype), d_v.transpose(2, 0, 1).astype(v.dtype)


def _scores(q_GxRxTxK: jax.Array, k_GxTxK: jax.Array, start: int, end: int) -> jax.Array:
    scores = _einsum("grqk,gsk->grqs", q_GxRxTxK[:, :, start:end], k_GxTxK[:, :end])
    seen = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
    return jnp.where(seen[None, None], scores, -jnp.inf)


def _einsum(formula: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(formula, left, right, preferred_element_type=jnp.float32)


def _add_prefix(whole: jax.Array | None, part: jax.Array) -> jax.Array:
    return part if whole is None else whole.at[..., : part.shape[-1]].add(part)
