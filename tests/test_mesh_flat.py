"""The flat unit: trains to the same losses, and its compiled program pays a round for every owner of a block."""

from collections import Counter

import jax
import numpy as np
import pytest

from jaxdp.config import Config, build
from jaxdp.data.batch import Batch
from jaxdp.hlo.collectives import Collective, collectives
from jaxdp.mesh.compile import build_step, compile_step
from jaxdp.mesh.flat import flat_unit, flatten, unflatten
from jaxdp.models.shapes import parameters
from jaxdp.predict.discrepancies import compare
from jaxdp.predict.sharding import shards
from jaxdp.predict.traffic import planned_collectives
from jaxdp.stragglers import injector
from jaxdp.strategies.flat_layout import flat_layout

# 6 blocks; 2, 3, 4 and 6 divide every size, 5 needs padding.
MODEL = {"layers": 6, "width": 24, "heads": 2, "ffn": 48, "context": 16, "vocab": 48}
BATCH = 60
SPLIT = {2: 0, 3: 0, 4: 2, 5: 4, 6: 0}  # devices: blocks with a second owner


def config(name: str = "fsdp_flat", latency_s: float = 0.0, layers: int = 6, optimizer: str = "adamw") -> Config:
    return build(
        {
            "model": {**MODEL, "layers": layers},
            "train": {"global_batch": BATCH, "compute_dtype": "float32"},
            "optim": {"name": optimizer, "learning_rate": 0.01, "warmup_steps": 1, "weight_decay": 0.5},
            "strategy": {"name": name, "min_shard_bytes": 0, "round_latency_s": latency_s},
        }
    )


def batch() -> Batch:
    tokens = np.random.default_rng(0).integers(0, MODEL["vocab"], (BATCH, MODEL["context"] + 1)).astype(np.int32)
    ones = np.ones((BATCH, MODEL["context"]), np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], ones, np.arange(BATCH, dtype=np.uint32))


def train(config: Config, devices: int, steps: int = 3):
    _, _, functions = build_step(config, jax.devices()[:devices])
    state, losses = functions.init(0), []
    for _ in range(steps):
        state, metrics = functions.step(state, functions.put(batch()))
        losses.append(float(metrics.loss))
    return losses, state


def rounds(found: list[Collective]) -> int:
    return sum(one.count or 0 for one in found if one.kind == "all-reduce")


@pytest.mark.parametrize("devices", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 5, 6))])
def test_a_split_block_pays_one_more_round_a_pass(devices):
    """Each owner costs a sum forward, one in the recomputed forward pass, and one for the gradient."""
    found = collectives(compile_step(config(), jax.devices()[:devices]).as_text())
    planned = planned_collectives(config(), shards(config(), devices), "float32")
    assert compare(planned, found) == []
    outside = sum(one.count for one in planned if one.kind == "all-reduce" and one.leaves != ("blocks",))
    scalars = 2  # loss and tokens; the gradient's norm
    assert rounds(found) == pytest.approx(3 * (6 + SPLIT[devices]) + outside + scalars, abs=1)
    split = flat_layout(parameters(config().model), devices).split_blocks()
    assert len(split) == SPLIT[devices]


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_the_flat_unit_trains_to_the_same_losses_and_parameters(optimizer):
    """Weight decay included: the norms inside the vector don't decay."""
    unit = flat_unit(config(layers=3), 4)
    losses, state = train(config(layers=3, optimizer=optimizer), 4)
    expected, reference = train(config("fsdp", layers=3, optimizer=optimizer), 4)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    found = jax.jit(lambda vector: unflatten(unit, vector[: unit.layout.size]))(state.params["blocks"])
    for name, leaf in reference.params["blocks"].items():
        np.testing.assert_allclose(np.asarray(found[name]).reshape(leaf.shape), np.asarray(leaf), atol=2e-6)
    assert state.params["blocks"].sharding.shard_shape(state.params["blocks"].shape) == (unit.layout.piece_size,)


def test_the_flat_unit_trains_on_one_device_too():
    losses, _ = train(config(layers=1), 1)
    expected, _ = train(config("fsdp", layers=1), 1)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 4, 5])
def test_flattening_is_undone(devices):
    unit = flat_unit(config(), devices)
    random = np.random.default_rng(0)
    blocks = {leaf.path.removeprefix("blocks."): random.normal(size=leaf.shape) for leaf in unit.leaves}
    vector = flatten(unit, blocks)
    assert vector.shape == (unit.layout.size,)
    for name, leaf in unflatten(unit, vector).items():
        np.testing.assert_array_equal(np.asarray(leaf), blocks[name].astype(np.float32))
    assert Counter(leaf.in_blocks for leaf in parameters(config().model))[True] == len(unit.leaves)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp_flat", "fsdp"])
def test_injected_latency_is_paid_once_a_round_on_every_device(name, monkeypatch):
    """2 unsplit blocks on 2 devices: each fetched forward and backward, its gradients returned once."""
    slept = []
    monkeypatch.setattr(injector, "sleep", slept.append)
    _, _, plain = build_step(config(name, layers=2), jax.devices()[:2])
    _, _, late = build_step(config(name, latency_s=0.02, layers=2), jax.devices()[:2])
    expected, reference = plain.step(plain.init(0), plain.put(batch()))
    state, metrics = late.step(late.init(0), late.put(batch()))
    jax.block_until_ready(state)
    assert slept == [0.02] * (2 * 3 * 2)
    np.testing.assert_allclose(metrics.loss, reference.loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.params, expected.params)
