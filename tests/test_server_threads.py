"""The threads engine: exactness against the same functions without a server, faults, staleness, resuming."""

import itertools
import json
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.data.batch import Batch
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.recipe import TrainState
from jaxdp.records import StepRecord
from jaxdp.server.arrays import make_update
from jaxdp.server.run import ServerRun
from jaxdp.task import by_path
from tests.server_cases import BATCH, Bigrams, config, plain_step, round_robin, server_run

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
    found, expected = by_path(left), by_path(right)
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
    member, update, data = run.members[0], make_update(run.recipe), Bigrams()
    params, opt_state = run.initial_state().params, run.plan.split_opt_state(run.initial_state().opt_state)[0]
    for step in range(8):
        sums = member.gradient(jax.device_put(params), data.batch(step))
        grads = (by_path(jax.device_get(sums.grads)),)
        norm = np.sqrt(float(update.square_norm(grads))) / float(sums.units)
        numbers = [np.float32(value) for value in (float(sums.units), norm, step, 1)]
        flat, opt_state, rate = update.beside(by_path(params), opt_state, grads, *numbers)
        params = run.plan.join([flat])
        assert records[step].loss == float(sums.loss) / float(sums.units)
        assert records[step].grad_norm == norm
        assert records[step].learning_rate == float(rate)
    assert_same(state, TrainState(jnp.int32(8), params, run.plan.join_opt_state([opt_state])))


@pytest.mark.parametrize(("optimizer", "shards"), [("sgd", 1), ("momentum", 3), ("adamw", 3)])
def test_sync_equals_ddp_on_the_same_uneven_batches(optimizer: str, shards: int) -> None:
    setting = config(4, optimizer=OPTIMIZERS[optimizer], policy="sync", shards=shards)
    with started(setting) as run:
        records = run.window(6).records
        state = run.state
    ddp = plain_step(setting, 4)
    expected = ddp.layout.put(run.initial_state(), ddp.layout.state)
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
    plain = plain_step(setting, 1)
    expected = plain.layout.put(run.initial_state(), plain.layout.state)
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
        run.window(1, settle=True)
        run.loop.metrics.reset()
        records = run.window(100).records
        records += [record for record in run.loop.settle() if isinstance(record, StepRecord)]  # however slow
        summary = run.loop.metrics.summary()
    assert summary["staleness"]["mean"] == pytest.approx(3, rel=0.02)
    assert summary["staleness"]["mean"] == pytest.approx(sum(r.staleness or 0 for r in records) / len(records))
    assert summary["updates_per_second"] == summary["worker_steps_per_second"]
    assert summary["bytes_pushed"] == len(records) * run.plan.bytes
    assert all(0 <= share < 1 for share in [*summary["idle_share"], summary["server_busy_share"]])
    first = records[0].tokens
    assert [record.tokens for record in records] == [first + push * 32 for push in range(len(records))]


def test_prefetching_raises_the_staleness_by_one_step() -> None:
    with started(config(2, pipeline=True)) as run:
        run.window(3)
        run.loop.metrics.reset()
        run.window(40)
        summary = run.loop.metrics.summary()
    assert 1.5 < summary["staleness"]["mean"] <= 7


def test_dividing_by_the_staleness_trains_where_a_fixed_rate_diverges() -> None:
    """Zhang et al. (2016) scaled down: 16 workers, a rate that one worker trains well with."""
    plain = {"name": "sgd", "learning_rate": 2.0, "clip": 0.0, "weight_decay": 0.0, "schedule": "constant"}
    losses = {}
    for workers, correction in ((1, "none"), (16, "none"), (16, "lr_over_staleness")):
        setting = config(workers, batch=workers * BATCH, optimizer=plain, correction=correction)
        records = [r for r in round_robin(setting, workers).serve(320 // workers) if isinstance(r, StepRecord)]
        losses[workers, correction] = np.mean([record.loss for record in records[-64:]])
    assert losses[1, "none"] < 2
    assert not losses[16, "none"] < 10
    assert losses[16, "lr_over_staleness"] < 2.2


def test_delay_compensation_is_the_formula_on_the_pulled_parameters() -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.5, "clip": 0.0, "weight_decay": 0.0, "warmup_steps": 0}
    setting = config(2, optimizer=optimizer, correction="delay_compensation", compensation=3.0)
    loop = round_robin(setting, 2, BATCH // 2)
    run: Any = loop.engine
    versions = [by_path(jax.device_get(run.state(0).params))]
    records = []
    for step in range(1, 4):
        for record in loop.serve(step):
            records.append(record)
            versions.append(by_path(jax.device_get(run.state(0).params)))
    member, data = run.run.members[0], run.run.data
    for version, record in enumerate(records):
        pulled, before = versions[record.version], versions[version]
        params = member.load([pulled])
        sums = jax.device_get(member.gradient(params, data.batch(record.sequence * 2 + record.worker)))
        assert record.staleness == version - record.version
        for name, total in by_path(sums.grads).items():
            mean = total / sums.units
            corrected = mean + 3.0 * mean**2 * (before[name] - pulled[name])
            expected = before[name] - record.learning_rate * corrected
            np.testing.assert_allclose(versions[version + 1][name], expected, rtol=1e-5, atol=1e-6)
    assert any(record.staleness for record in records)


@pytest.mark.parametrize("policy", ["async", "sync", "ssp"])
def test_a_worker_that_fails_is_counted_and_the_others_go_on(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    def rows(sequence: int, worker: int) -> Batch:
        if worker == 1 and sequence == 3:
            raise OSError("disk on fire")
        return Bigrams().rows(sequence, worker * BATCH // 4, BATCH // 4)

    options: dict[str, Any] = {"bound": 1} if policy == "ssp" else {}
    with started(config(4, policy=policy, **options), rows=rows) as run:
        records = run.window(12).records
        summary = run.loop.metrics.summary()
    assert summary["lost_workers"] == summary["lost_steps"] == 1
    assert "worker 1 is given up (OSError: disk on fire)" in caplog.text
    assert [record.sequence for record in records if record.worker == 1] == [0, 1, 2]
    applied = [(record.worker, record.sequence) for record in records if record.applied]
    assert len(set(applied)) == len(applied) == 48
    if policy == "sync":  # four pushes an update, then three
        assert [record.version for record in records] == [*np.repeat(range(3), 4), *np.repeat(range(3, 15), 3)]


def test_a_worker_that_hangs_is_given_up_by_the_deadline_and_may_come_back() -> None:
    wake = threading.Event()

    def rows(sequence: int, worker: int) -> Batch:
        if worker == 1 and sequence == 2:
            wake.wait(60)
        return Bigrams().rows(sequence, worker * BATCH // 4, BATCH // 4)

    with started(config(4, policy="sync", deadline_s=0.5), rows=rows) as run:
        first = run.window(6).records  # would never end if the others waited for worker 1
        assert run.loop.metrics.lost_workers == 1
        wake.set()
        later = run.window(30).records
    assert [record.sequence for record in first if record.worker == 1] == [0, 1]
    mine = [record for record in later if record.worker == 1]
    assert [record.applied for record in mine[:2]] == [False, True]
    assert (mine[0].sequence, mine[0].learning_rate) == (2, 0)
    versions = [record.version or 0 for record in [*first, *later] if record.applied]
    assert versions == sorted(versions)


def test_the_run_ends_with_the_reasons_when_no_worker_is_left() -> None:
    def rows(sequence: int, worker: int) -> Batch:
        raise ValueError(f"no rows for {worker}")

    with started(config(2), rows=rows) as run, pytest.raises(JaxdpError, match="worker 1: ValueError: no rows for 1"):
        run.window(1)


def test_an_outage_loses_the_step_and_the_worker_returns() -> None:
    with started(config(2, stragglers="pace(seconds=0.01),fail(mtbf_s=0.15,restart_s=0.05,worker=1)")) as run:
        records = run.window(60).records
        summary = run.loop.metrics.summary()
    assert summary["lost_steps"] > 0
    assert summary["lost_workers"] == 0
    mine = [record.sequence or 0 for record in records if record.worker == 1]
    assert mine == sorted(set(mine))  # the lost steps are computed again, none twice


def test_a_slowed_worker_delivers_less_and_the_others_do_not_wait() -> None:
    spec = "pace(seconds=0.06),persistent(worker=0,factor=4)"
    with started(config(4, stragglers=spec)) as run:
        run.window(2)
        run.loop.metrics.reset()
        run.window(15)
        summary = run.loop.metrics.summary()
    slow, *others = summary["worker_steps"]
    assert min(others) / slow > 2.5
    assert summary["intended_step_s"] == pytest.approx([0.24, 0.06, 0.06, 0.06])
    for intended, realised in zip(summary["intended_step_s"], summary["realised_step_s"], strict=True):
        assert realised >= intended


def test_a_jump_of_the_wall_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    with started(config(2, deadline_s=5.0)) as run:
        run.window(10)
        assert run.loop.metrics.lost_workers == 0
        assert 0 < run.loop.metrics.seconds < 600


@pytest.mark.parametrize(("optimizer", "shards"), [("momentum", 1), ("adamw", 3)])
def test_a_resumed_run_equals_the_uninterrupted_one(optimizer: str, shards: int) -> None:
    setting = config(1, optimizer=OPTIMIZERS[optimizer], shards=shards)
    with started(setting) as run:
        run.window(3)
        halfway, saved = run.state, json.loads(json.dumps(run.snapshot()))
        run.window(4)
        expected = run.state
    with server_run(setting) as run:
        run.start(halfway, saved)
        assert run.next_step == 3
        records = run.window(4).records
        assert [record.sequence for record in records] == [3, 4, 5, 6]
        assert_same(run.state, expected)


def test_ddp_opens_a_servers_state_and_the_reverse() -> None:
    setting = config(4, policy="sync", shards=2)
    with started(setting) as run:
        run.window(3)
        state = run.state
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), run.abstract_state()
        )
        run.window(2)
        expected = run.state
    ddp = plain_step(setting, 4)
    continued = ddp.layout.put(state, ddp.layout.state)
    for step in (3, 4):
        continued, _ = ddp.step(continued, ddp.put(Bigrams().batch(step)))
    assert_same(continued, expected, tolerance=1e-6)
    with server_run(setting) as run:
        run.start(continued)
        assert run.next_step == 5
        assert {record.sequence for record in run.window(1).records} == {5}


def test_a_state_saved_under_another_policy_continues_at_its_step() -> None:
    with started(config(4)) as run:
        run.window(3)
        state, saved = run.state, run.snapshot()
    with server_run(config(4, policy="sync")) as run:
        run.start(state, saved)
        assert {record.sequence for record in run.window(1).records} == {3}


def test_a_reading_stays_as_it_is_until_it_is_given_back() -> None:
    loop = round_robin(config(2), 2)
    engine: Any = loop.engine
    list(loop.serve(1))
    reading = engine.read(loop.core.version)
    before = {name: np.array(leaf) for name, leaf in reading.parts[0].items()}
    list(loop.serve(3))
    assert_same(reading.parts[0], before)
    assert not np.array_equal(before["embed"], engine.read(0).parts[0]["embed"])


def test_updates_are_made_in_place_when_nobody_reads() -> None:
    loop = round_robin(config(2), 2)
    engine: Any = loop.engine
    list(loop.serve(1))
    shard = engine.shards.shards[0]

    def address() -> int:
        return shard.params["embed"].unsafe_buffer_pointer()

    start = address()
    list(loop.serve(3))
    assert address() == start
    reading = engine.read(loop.core.version)
    list(loop.serve(4))
    assert address() != start
    reading.release()


def test_a_nonfinite_update_is_skipped_when_asked() -> None:
    def rows(sequence: int, worker: int) -> Batch:
        batch = Bigrams().rows(sequence, 0, BATCH)
        return batch._replace(weights_BxT=batch.weights_BxT * (np.nan if sequence == 2 else 1))

    setting = config(1)
    skipping = setting.model_copy(update={"train": setting.train.model_copy(update={"on_nonfinite": "skip"})})
    with started(skipping, rows=rows) as run:
        records = run.window(5).records
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.state.params))
    assert [record.finite for record in records] == [True, True, False, True, True]
    assert records[2].learning_rate == 0


def test_settled_windows_time_whole_steps_only() -> None:
    with started(config(2, stragglers="pace(seconds=0.05)", policy="sync")) as run:
        run.window(1)
        time.sleep(0.2)
        window = run.window(3, settle=True)
    assert window.seconds >= 3 * 0.05
    assert window.steps == 3
    assert len(window.records) == 8


def test_every_push_leaves_spans_in_its_lanes() -> None:
    with started(config(2, policy="sync"), spans=True) as run:
        window = run.window(5)
    lanes = {(span.worker, span.lane) for span in window.spans}
    assert lanes == {(-1, "apply")} | {(w, lane) for w in range(2) for lane in ("compute", "NIC in", "NIC out")}
    for worker, lane in lanes:
        own = [span for span in window.spans if (span.worker, span.lane) == (worker, lane)]
        assert all(span.start_s <= span.end_s for span in own)
        assert all(first.end_s <= second.start_s for first, second in itertools.pairwise(own))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 3}, "global_batch"),
        ({"workers": 4, "devices_per_worker": 4}, "device"),
        ({"workers": 2, "policy": "sync", "pipeline": True}, "prefetch"),
        ({"workers": 2, "pipeline": True, "stragglers": "fail(mtbf_s=1,restart_s=1)"}, "fail"),
        ({"workers": 2, "stragglers": "persistent(worker=2,factor=2)"}, "worker 2"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        server_run(config(**options))


def test_closing_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    cases: list[dict[str, Any]] = [{}, {"pipeline": True}, {"policy": "sync"}, {"stragglers": "pace(seconds=30)"}]
    for options in cases:
        run = started(config(2, **options))
        if "stragglers" not in options:
            run.window(2)
        run.close()
        assert threading.active_count() <= before


def test_a_worker_may_be_a_mesh_of_its_own() -> None:
    setting = config(2, worker_strategy="fsdp", devices_per_worker=2, policy="sync")
    with started(setting) as run, started(config(2, policy="sync")) as plain:
        run.window(3)
        plain.window(3)
        assert_same(run.state, plain.state, tolerance=1e-6)
        assert run.evaluate() == pytest.approx(plain.evaluate(), rel=1e-6)
