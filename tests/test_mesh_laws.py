"""Laws for every mesh strategy: the same training as one device's, whatever the devices, microbatches and padding.

Tolerance: 1e-5 relative, for losses and gradient norms over five steps. Float32 sums of the same terms in
another order differ by about 1e-7 each, AdamW's division by the root of a small second moment and five steps
of a high learning rate enlarge that some ten times; a wrong weight of one padded device or microbatch shows
as 1e-2 and more.
"""

import jax
import numpy as np
import pytest

from jaxdp.mesh.layout import logical
from tests.mesh_cases import (
    BY_LEAVES,
    batch,
    config,
    functions,
    largest_difference,
    losses_and_norms,
    reference,
    rows_for,
    start,
)

STEPS = 5
TOLERANCE = 1e-5

ODD = {name: 6 if name == "hsdp" else 5 for name in BY_LEAVES}  # counts that divide no dim: HSDP's groups of 3
QUICK = [
    *[(name, devices, "sgd", 4, 0.1) for name in BY_LEAVES for devices in (7 if name == "fsdp" else 2, 8)],
    *[(name, ODD[name], "adamw", 1, 0.1) for name in BY_LEAVES],
]
# Every strategy on every count, and every pair of strategy, optimizer and accumulation on even and odd counts.
WHOLE = [
    (name, devices, optimizer, *((1, 0.0) if (index + place + devices // 2) % 2 else (4, 0.1)))
    for index, name in enumerate(BY_LEAVES)
    for devices in range(1, 9)
    for place, optimizer in enumerate(("sgd", "adamw"))
]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in WHOLE if case not in QUICK)]


@pytest.mark.parametrize(("strategy", "devices", "optimizer", "accumulation", "dropout"), CASES)
def test_trains_as_one_device_does(
    strategy: str, devices: int, optimizer: str, accumulation: int, dropout: float
) -> None:
    rows = rows_for(devices)
    group = devices if strategy == "hsdp" and devices in (5, 7) else None  # primes have no half
    shared = {"optimizer": optimizer, "dropout": dropout, "rows": rows}
    case = config(strategy, accumulation=accumulation, shard_devices=group, **shared)
    found, state = losses_and_norms(case, devices, seed=3, steps=STEPS)
    losses, params = reference(config(**shared), seed=3, steps=STEPS)
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
    case = config(strategy, dropout=0.1, rows=rows_for(ODD[strategy]))
    first, state = losses_and_norms(case, ODD[strategy], seed=1, steps=3)
    again, other = losses_and_norms(case, ODD[strategy], seed=1, steps=3)
    assert np.array_equal(first, again)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True))


def test_initial_values_do_not_depend_on_the_mesh() -> None:
    one = jax.device_get(functions(config("ddp"), 1).init(5).params)
    for strategy, devices in (("ddp", 2), ("fsdp", 7), ("hsdp", 6), ("zero1", 5)):
        made = functions(config(strategy, rows=rows_for(devices)), devices)
        other = logical(jax.device_get(made.init(5).params), made.layout.params)
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_evaluation_is_the_exact_weighted_mean(strategy: str) -> None:
    rows = rows_for(ODD[strategy])
    case = config(strategy, dropout=0.1, rows=rows)
    step = functions(case, ODD[strategy])
    state = start(case, step, 0)
    whole = batch(0, rows)
    total, tokens = map(float, step.evaluate(state.params, step.put(whole)))
    single = functions(config("ddp"), 1)
    params = start(config("ddp"), single, 0).params
    parts = []
    for row in range(0, rows, 8):
        part = jax.tree.map(lambda leaf, row=row: leaf[row : row + 8], whole)
        parts.append([float(value) for value in single.evaluate(params, single.put(part))])
    assert tokens == whole.weights_BxT.sum() == sum(count for _, count in parts)
    assert total == pytest.approx(sum(part for part, _ in parts), rel=1e-6)


@pytest.mark.parametrize("strategy", BY_LEAVES)
def test_a_batch_of_padding_changes_nothing_but_decay(strategy: str) -> None:
    rows = rows_for(ODD[strategy])
    case = config(strategy, dropout=0.1, rows=rows)
    step = functions(case, ODD[strategy])
    state = start(case, step, 0)
    before = jax.device_get(state.params["final_norm"])
    empty = batch(0, rows)._replace(weights_BxT=np.zeros((rows, 16), np.float32))
    state, metrics = step.step(state, step.put(empty))
    assert float(metrics.loss) == 0 and float(metrics.grad_norm) == 0
    assert np.array_equal(before, jax.device_get(state.params["final_norm"]))
