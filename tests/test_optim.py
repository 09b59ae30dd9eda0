"""Laws of the optimizers and the schedule, against NumPy."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.config import OptimConfig
from jaxdp.optim import learning_rate_schedule, make_tx

DECAYING = ("embed", "blocks.qkv")


def params_and_gradients(steps: int) -> tuple[Any, list[Any]]:
    random = np.random.default_rng(0)
    draw = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    tree = lambda: {  # noqa: E731
        "embed": draw(5, 4),
        "blocks": {"qkv": draw(2, 4, 3), "attention_norm": draw(2, 4)},
        "final_norm": draw(4),
    }
    return tree(), [tree() for _ in range(steps)]


def run(optim: OptimConfig, steps: int) -> tuple[Any, list[Any], Any]:
    """The initial parameters, the gradients, and the parameters after the steps (rate 0.1)."""
    first, gradients = params_and_gradients(steps)
    tx = make_tx(optim, DECAYING)
    params, state = jax.tree.map(jnp.asarray, first), tx.init(first)
    for gradient in gradients:
        direction, state = tx.update(gradient, state, params)
        params = jax.tree.map(lambda p, d: p - 0.1 * d, params, direction)
    return first, gradients, params


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw_is_the_papers(decay: float) -> None:
    beta1, beta2 = 0.8, 0.95
    first, gradients, found = run(OptimConfig(beta1=beta1, beta2=beta2, weight_decay=decay), steps=4)

    def by_hand(p: np.ndarray, grads: list[np.ndarray], decays: bool) -> np.ndarray:
        p = p.astype(np.float64)
        m, v = np.zeros_like(p), np.zeros_like(p)
        for t, g in enumerate(grads, start=1):
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g.astype(np.float64) ** 2
            step = (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
            p = p - 0.1 * (step + (decay * p if decays else 0))
        return p

    for path, leaf in jax.tree.leaves_with_path(first):
        pick = lambda tree, path=path: _at(tree, path)  # noqa: E731
        expected = by_hand(leaf, [pick(g) for g in gradients], "norm" not in jax.tree_util.keystr(path))
        np.testing.assert_allclose(pick(found), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_the_textbooks(momentum: float) -> None:
    first, gradients, found = run(OptimConfig(name="sgd", momentum=momentum, weight_decay=0.2), steps=3)
    for path, leaf in jax.tree.leaves_with_path(first):
        p, velocity = leaf.astype(np.float64), np.zeros_like(leaf, np.float64)
        decay = 0.0 if "norm" in jax.tree_util.keystr(path) else 0.2
        for gradient in gradients:
            velocity = momentum * velocity + _at(gradient, path) + decay * p
            p = p - 0.1 * velocity
        np.testing.assert_allclose(_at(found, path), p, rtol=2e-5, atol=1e-6)


def _at(tree: Any, path: Any) -> Any:
    for key in path:
        tree = tree[key.key]
    return tree


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_shard_is_updated_as_in_the_whole(name: Any) -> None:
    tx = make_tx(OptimConfig(name=name, momentum=0.9 if name == "sgd" else 0.0), DECAYING)
    params, (gradient,) = params_and_gradients(1)
    whole, _ = tx.update(gradient, tx.init(params), params)
    half = lambda tree: jax.tree.map(lambda leaf: leaf[..., :2], tree)  # noqa: E731
    part, _ = tx.update(half(gradient), tx.init(half(params)), half(params))
    jax.tree.map(np.testing.assert_array_equal, part, half(whole))


def test_the_schedule_rises_and_falls() -> None:
    optim = OptimConfig(learning_rate=2.0, warmup_steps=4)
    rate = learning_rate_schedule(optim, 24)
    values = [float(rate(jnp.asarray(step))) for step in range(25)]
    np.testing.assert_allclose(values[:4], [0.5, 1.0, 1.5, 2.0], rtol=1e-6)
    expected = [1 + math.cos(math.pi * (step - 4) / 20) for step in range(4, 25)]
    np.testing.assert_allclose(values[4:], expected, atol=1e-6)
    assert float(rate(jnp.asarray(1000))) == pytest.approx(0, abs=1e-6)
    halfway = float(rate(jnp.asarray(10.5)))
    assert values[11] < halfway < values[10]


def test_the_constant_schedule_without_warm_up() -> None:
    rate = learning_rate_schedule(OptimConfig(schedule="constant", warmup_steps=0, learning_rate=0.5), 3)
    assert [float(rate(jnp.asarray(step))) for step in (0, 1, 100)] == [0.5] * 3


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    rate = learning_rate_schedule(OptimConfig(warmup_steps=10, learning_rate=1.0), 5)
    np.testing.assert_allclose([float(rate(jnp.asarray(s))) for s in range(5)], np.arange(1, 6) / 10, rtol=1e-6)
