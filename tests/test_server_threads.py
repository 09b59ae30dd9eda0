"""The threads engine: exactness against the same functions without a server, faults, staleness, resuming."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.learn.batch import Batch
from jaxdp.learn.task import TrainState
from jaxdp.mesh import rules
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import make_layout
from jaxdp.mesh.step import make_step
from jaxdp.records import StepRecord
from jaxdp.server.arrays import make_update
from jaxdp.server.run import ServerRun
from jaxdp.server.shard_plan import names_of
from tests.server_cases import BATCH, Bigrams, config, server_run

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "learning_rate": 0.2},
    "momentum": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "clip": 0.0},
    "adamw": {"name": "adamw"},
}


def started(config: Any, **options: Any) -> ServerRun:
    run = server_run(config, **options)
    run.start()
    return run


def assert_same(left: Any, right: Any, tolerance: float = 0.0) -> None:
    found, expected = names_of(left), names_of(right)
    assert list(found) == list(expected)
    for name, leaf in found.items():
        assert leaf.dtype == expected[name].dtype
        np.testing.assert_allclose(leaf, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_asynchronous_worker_equals_its_two_functions_called_in_turn(optimizer: str) -> None:
    setting = config(1, optimizer=OPTIMIZERS[optimizer])
    with started(setting) as run:
        records = run.window(8).records
        state = run.state
    member, update, data = run.members[0], make_update(run.task), Bigrams()
    params, opt_state = run.initial_state().params, run.plan.split_opt_state(run.initial_state().opt_state)[0]
    for step in range(8):
        sums = member.gradient(jax.device_put(params), data.batch(step))
        grads = (names_of(jax.device_get(sums.grads)),)
        norm = np.sqrt(float(update.square_norm(grads))) / float(sums.tokens)
        numbers = [np.float32(value) for value in (float(sums.tokens), norm, step, 1)]
        flat, opt_state, rate = update.beside(names_of(params), opt_state, grads, *numbers)
        params = run.plan.join([flat])
        assert records[step].loss == float(sums.loss) / float(sums.tokens)
        assert records[step].grad_norm == norm
        assert records[step].learning_rate == float(rate)
    assert_same(state, TrainState(jnp.int32(8), params, run.plan.join_opt_state([opt_state])))


@pytest.mark.parametrize(("optimizer", "shards"), [("sgd", 1), ("momentum", 3), ("adamw", 3)])
def test_sync_equals_ddp_on_the_same_uneven_batches(optimizer: str, shards: int) -> None:
    setting = config(4, optimizer=OPTIMIZERS[optimizer], policy="sync", shards=shards)
    with started(setting) as run:
        records = run.window(6).records
        state = run.state
    mesh = make_mesh({rules.DATA_AXIS: 4}, jax.devices()[:4])
    ddp = make_step(run.task, make_layout(run.task, rules.STRATEGIES["ddp"].rule(setting.strategy), mesh))
    expected = jax.device_put(run.initial_state(), ddp.layout.state)
    for step in range(6):
        expected, metrics = ddp.step(expected, ddp.put(Bigrams().batch(step)))
        mine = [record for record in records if record.step == step]
        assert [record.sequence for record in mine] == [step] * 4
        np.testing.assert_allclose([record.grad_norm for record in mine], float(metrics.grad_norm), rtol=1e-6)
        np.testing.assert_allclose([r.learning_rate for r in mine], float(metrics.learning_rate), rtol=1e-6)
        assert float(metrics.grad_norm) > setting.optim.clip
    assert_same(state, expected, tolerance=1e-6)


def test_one_worker_equals_the_fused_plain_step() -> None:
    setting = config(1)
    with started(setting) as run:
        run.window(6)
        state = run.state
    mesh = make_mesh({rules.DATA_AXIS: 1}, jax.devices()[:1])
    plain = make_step(run.task, make_layout(run.task, rules.STRATEGIES["ddp"].rule(setting.strategy), mesh))
    expected = jax.device_put(run.initial_state(), plain.layout.state)
    for step in range(6):
        expected, _ = plain.step(expected, plain.put(Bigrams().batch(step)))
    assert_same(state, expected, tolerance=1e-6)


def test_every_worker_computes_on_its_device_on_rows_of_its_own() -> None:
    taken: list[tuple[int, int]] = []

    def rows(sequence: int, worker: int) -> Batch:
        taken.append((sequence, worker))
        assert threading.current_thread() is not threading.main_thread()
        assert next(iter(jnp.zeros(()).devices())) == jax.devices()[worker]
        return Bigrams().rows(sequence, worker * BATCH // 4, BATCH // 4)

    with started(config(4), rows=rows) as run:
        records = run.window(10, settle=True).records
    assert len(taken) == len(set(taken)) >= 40
    assert {record.worker for record in records} == set(range(4))


def test_mean_staleness_is_one_less_than_the_workers() -> None:
    with started(config(4)) as run:
        run.window(2)
        run.loop.metrics.reset()
        records = run.window(60).records
        summary = run.loop.metrics.summary()
    assert summary["staleness"]["mean"] == pytest.approx(3, rel=0.02)
    assert summary["staleness"]["mean"] == pytest.approx(np.mean([record.staleness for record in records]))
    assert summary["updates_per_second"] == summary["worker_steps_per_second"]
    assert summary["bytes_pushed"] == 240 * run.plan.bytes
    assert all(0 <= share < 1 for share in [*summary["idle_share"], summary["server_busy_share"]])
    assert [record.tokens for record in records] == [(8 + push + 1) * 32 for push in range(240)]


def test_prefetching_raises_the_staleness_by_one_step() -> None:
    with started(config(2, pipeline=True)) as run:
        run.window(3)
        run.loop.metrics.reset()
        run.window(40)
        summary = run.loop.metrics.summary()
    assert 1.5 < summary["staleness"]["mean"] <= 7
