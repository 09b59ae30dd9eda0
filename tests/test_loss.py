"""The loss by chunks of tokens is the loss of all at once: sums, gradients, and under a mesh."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdp.mesh.compile import build_step
from jaxdp.mesh.step import make_step
from jaxdp.models.attention import choose
from jaxdp.models.loss import head_loss_sum
from jaxdp.models.loss_form import MAX_LOGITS_BYTES, loss_chunk
from jaxdp.models.transformer import make_loss_sum
from tests.mesh_cases import batch, config

N, D, V = 24, 8, 33


def inputs(dtype: jax.typing.DTypeLike = jnp.float32) -> tuple[jax.Array, ...]:
    x, head, targets, weights = jax.random.split(jax.random.key(0), 4)
    return (
        jax.random.normal(x, (N, D)).astype(dtype),
        jax.random.normal(head, (D, V)).astype(dtype),
        jax.random.randint(targets, (N,), 0, V),
        jax.random.bernoulli(weights, 0.7, (N,)).astype(jnp.float32) * jnp.arange(N),
    )


@pytest.mark.parametrize("chunk", [1, 3, 8, 12, 24])
def test_chunks_have_the_sums_and_gradients_of_the_whole(chunk: int) -> None:
    x_NxD, head_DxV, targets_N, weights_N = inputs()

    def reference(x_NxD: jax.Array, head_DxV: jax.Array) -> jax.Array:
        losses_N = optax.softmax_cross_entropy_with_integer_labels(x_NxD @ head_DxV, targets_N)
        return 3.0 * jnp.sum(losses_N * weights_N)

    def chunked(x_NxD: jax.Array, head_DxV: jax.Array) -> jax.Array:
        return 3.0 * head_loss_sum(x_NxD, head_DxV, targets_N, weights_N, chunk)[0]

    expected = jax.value_and_grad(reference, (0, 1))(x_NxD, head_DxV)
    found = jax.jit(jax.value_and_grad(chunked, (0, 1)))(x_NxD, head_DxV)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-6)
    assert float(chunked(x_NxD, head_DxV)) == pytest.approx(float(expected[0]), rel=1e-6)  # not differentiated
    assert float(head_loss_sum(x_NxD, head_DxV, targets_N, weights_N, chunk)[1]) == float(weights_N.sum())


def test_narrow_values_have_gradients_of_their_own_type() -> None:
    x_NxD, head_DxV, targets_N, weights_N = inputs(jnp.bfloat16)

    def grads(chunk: int) -> tuple[jax.Array, jax.Array]:
        return jax.grad(lambda x, head: head_loss_sum(x, head, targets_N, weights_N, chunk)[0], (0, 1))(x_NxD, head_DxV)

    for one, other in zip(grads(6), grads(N), strict=True):
        assert one.dtype == jnp.bfloat16
        difference = jnp.abs(one.astype(jnp.float32) - other.astype(jnp.float32))
        assert float(difference.max()) < 0.03 * float(jnp.abs(other).max())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_a_step_by_chunks_is_the_step(strategy: str) -> None:
    """Padding, accumulation and a mesh whose scan carries vary over its devices."""
    case = config(strategy, accumulation=2)
    chosen = choose("cpu", "float32", case.model.head_dim)
    losses = []
    recipe, layout, whole = build_step(case, jax.devices()[:4])
    chunks = make_loss_sum(case.model, chosen, case.train.remat, case.train.seed, lambda tokens: 16)
    recipe = replace(recipe, task=replace(recipe.task, loss_sum=chunks))
    for functions in (whole, make_step(recipe, layout, case.train.accumulation)):
        state, seen = functions.init(0), []
        for step in range(3):
            state, metrics = functions.step(state, functions.put(batch(step)))
            seen.append((float(metrics.loss), float(metrics.grad_norm)))
        losses.append(seen)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_a_chunk_divides_the_tokens_and_holds_few_logits() -> None:
    assert loss_chunk("cpu", 8192, 128_256) == 8192
    assert loss_chunk("gpu", 512, 256) == 512
    chunk = loss_chunk("gpu", 8192, 128_256)
    assert 8192 % chunk == 0 and MAX_LOGITS_BYTES / 4 < chunk * 128_256 * 4 <= MAX_LOGITS_BYTES
    assert 6000 % loss_chunk("gpu", 6000, 50_257) == 0
    assert loss_chunk("gpu", 8191, 128_256) in (1, 8191)
