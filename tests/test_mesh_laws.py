"""Laws for every mesh strategy: the same training as one device's, whatever the devices, microbatches and padding.

Tolerance: 1e-5 relative, for losses and gradient norms over five steps. Float32 sums of the same terms in
another order differ by about 1e-7 each, AdamW's division by the root of a small second moment and five steps
of a high learning rate enlarge that some ten times; a wrong weight of one padded device or microbatch shows
as 1e-2 and more.
"""

import jax
import numpy as np
import pytest

from tests.mesh_cases import BY_LEAVES, batch, config, functions, largest_difference, losses_and_norms, reference, start

STEPS = 5
TOLERANCE = 1e-5

QUICK = [
    *[(name, devices, "sgd", 4, 0.1) for name in BY_LEAVES for devices in (2, 8)],
    *[(name, 4, "adamw", 1, 0.1) for name in BY_LEAVES],
]
WHOLE = [
    (name, devices, optimizer, accumulation, dropout)
    for name in BY_LEAVES
    for devices in (1, 2, 4, 8)
    for optimizer in ("sgd", "adamw")
    for accumulation, dropout in ((1, 0.0), (4, 0.1))
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in WHOLE if case not in QUICK)]


@pytest.mark.parametrize(("strategy", "devices", "optimizer", "accumulation", "dropout"), CASES)
def test_trains_as_one_device_does(
    strategy: str, devices: int, optimizer: str, accumulation: int, dropout: float
) -> None:
    case = config(strategy, optimizer=optimizer, accumulation=accumulation, dropout=dropout)
    found, state = losses_and_norms(case, devices, seed=3, steps=STEPS)
    losses, params = reference(config(optimizer=optimizer, dropout=dropout), seed=3, steps=STEPS)
    np.testing.assert_allclose(found, losses, rtol=TOLERANCE)
    assert largest_difference(state.params, params) < (1e-5 if optimizer == "sgd" else 1e-3)


def test_the_reference_sees_dropout_and_padding() -> None:
    """What the law above varies must matter, or the law could not fail."""
    dropped = reference(config(optimizer="sgd", dropout=0.1), 3, STEPS)[0]
    plain = reference(config(optimizer="sgd"), 3, STEPS)[0]
    assert abs(plain[0, 0] / dropped[0, 0] - 1) > 10 * TOLERANCE
    weights = batch(0).weights_BxT
    assert weights[:4].sum() == 0
    assert len({float(part.sum()) for part in np.split(weights, 8)}) > 4


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_same_seed_same_run(strategy: str) -> None:
    case = config(strategy, dropout=0.1)
    first, state = losses_and_norms(case, 4, seed=1, steps=3)
    again, other = losses_and_norms(case, 4, seed=1, steps=3)
    assert np.array_equal(first, again)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True))


def test_initial_values_do_not_depend_on_the_mesh() -> None:
    one = jax.device_get(functions(config("ddp"), 1).init(5).params)
    for strategy, devices in (("ddp", 2), ("fsdp", 8), ("hsdp", 4)):
        other = jax.device_get(functions(config(strategy), devices).init(5).params)
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_evaluation_is_the_exact_weighted_mean(strategy: str) -> None:
    case = config(strategy, dropout=0.1)
    step = functions(case, 4)
    state = start(case, step, 0)
    total, tokens = map(float, step.evaluate(state.params, step.put(batch(0))))
    rows = functions(config("ddp"), 1)
    single = start(config("ddp"), rows, 0)
    parts = []
    for row in range(0, 32, 8):
        part = jax.tree.map(lambda leaf, row=row: leaf[row : row + 8], batch(0))
        parts.append([float(value) for value in rows.evaluate(single.params, rows.put(part))])
    assert tokens == batch(0).weights_BxT.sum() == sum(count for _, count in parts)
    assert total == pytest.approx(sum(part for part, _ in parts), rel=1e-6)


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_a_batch_of_padding_changes_nothing_but_decay(strategy: str) -> None:
    case = config(strategy, dropout=0.1)
    step = functions(case, 4)
    state = start(case, step, 0)
    before = jax.device_get(state.params["final_norm"])
    empty = batch(0)._replace(weights_BxT=np.zeros_like(batch(0).weights_BxT))
    state, metrics = step.step(state, step.put(empty))
    assert float(metrics.loss) == 0 and float(metrics.grad_norm) == 0
    assert np.array_equal(before, jax.device_get(state.params["final_norm"]))
