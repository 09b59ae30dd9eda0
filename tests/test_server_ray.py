"""The Ray engine on a real cluster of processes on this machine: exactness, kills, stops, restarts."""

import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from jaxdp.config import Config, build
from jaxdp.errors import BadInput
from jaxdp.server.run import ServerRun
from jaxdp.task import by_path
from jaxdp.workload import open_data

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,  # a cluster's processes take their time to start
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


def config(**server: Any) -> Config:
    model = {"layers": 1, "width": 16, "heads": 2, "ffn": 32, "context": 16}
    return build(
        {
            "model": model,
            "optim": {"clip": 0.1, "warmup_steps": 4},
            "train": {"global_batch": 8, "compute_dtype": "float32"},
            "data": {"corpus": "synthetic"},
            "strategy": {"name": "ps"},
            "server": {"workers": 2, "shards": 2, "engine": "ray", "deadline_s": 20, "snapshot_every": 5, **server},
        }
    )


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def server_run(setting: Config) -> ServerRun:
    return ServerRun(setting, open_data(setting), jax.devices())


def process_of(actor: Any) -> psutil.Process:
    """The actor's process, asked from the actor itself."""
    return psutil.Process(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))


def assert_close(left: Any, right: Any, tolerance: float) -> None:
    expected = by_path(right)
    for name, leaf in by_path(left).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def applied(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.worker, record.sequence) for record in records if record.applied]


@pytest.mark.parametrize("task", [None, "tests.task_cases:module"])
def test_sync_on_a_cluster_equals_sync_on_threads(task: str | None) -> None:
    setting = build({**config(policy="sync").model_dump(exclude_none=True), **({"task": task} if task else {})})
    threads = setting.model_copy(update={"server": setting.server.model_copy(update={"engine": "threads"})})
    with server_run(setting) as on_ray, server_run(threads) as here:
        on_ray.start()
        here.start()
        records, expected = on_ray.window(5).records, here.window(5).records
        assert [r.to_json() | {"step_time_s": 0, "data_wait_s": 0} for r in records] == [
            pytest.approx(r.to_json() | {"step_time_s": 0, "data_wait_s": 0}, rel=1e-6) for r in expected
        ]
        assert_close(on_ray.state, here.state, 1e-6)
        assert on_ray.evaluate() == pytest.approx(here.evaluate(), rel=1e-6)
        summary = on_ray.loop.metrics.summary()
        assert summary["bytes_pushed"] == 10 * on_ray.plan.bytes


def serve_until(run: ServerRun, done: Any, seconds: float = 120) -> list[Any]:
    """Serves steps until `done(records)`."""
    records, end = [], time.monotonic() + seconds
    while not done(records):
        assert time.monotonic() < end, "it never came"
        records += run.window(1).records
    return records


def assert_accounted_for(run: ServerRun, records: list[Any]) -> None:
    """Every push that was applied was applied once, none of a worker's was left out, and versions only rise."""
    assert len(set(applied(records))) == len(applied(records)) == run.loop.core.applied
    for worker in range(run.workers):
        sequences = [sequence for w, sequence in applied(records) if w == worker]
        assert sequences == list(range(len(sequences)))
    tokens = [record.tokens for record in records if record.applied]
    assert tokens == sorted(set(tokens))


def test_a_killed_worker_comes_back_and_every_push_is_accounted_for() -> None:
    with server_run(config()) as run:
        run.start()
        records = run.window(3).records
        engine: Any = run.loop.engine
        process_of(engine._workers[1]).kill()
        records += serve_until(run, lambda _: run.loop.metrics.lost_workers == 1)
        records += serve_until(run, lambda later: 1 in {record.worker for record in later})
        assert (run.loop.metrics.lost_workers, run.loop.metrics.lost_steps) == (1, 1)
        assert_accounted_for(run, records)


def test_a_stopped_worker_is_given_up_by_the_deadline_and_its_late_push_is_dropped() -> None:
    with server_run(config(deadline_s=4)) as run:
        run.start()
        records = run.window(3).records
        engine: Any = run.loop.engine
        stopped = process_of(engine._workers[0])
        stopped.suspend()
        records += serve_until(run, lambda _: run.loop.metrics.lost_workers == 1)
        assert {record.worker for record in run.loop.serve(run.next_step + 5)} == {1}
        # A busy machine may have made pushes late before: they are not this one's.
        records, dropped = [], run.loop.metrics.dropped
        stopped.resume()
        records += serve_until(run, lambda later: 0 in {record.worker for record in later if record.applied})
        own = [record for record in records if record.worker == 0]
        again = next(record for record in own if record.applied)
        assert not own[0].applied
        # On a busy machine it may be late more than once: each such push is dropped, and counted.
        assert run.loop.metrics.dropped - dropped == sum(not record.applied for record in records)
        assert again.sequence == own[0].sequence  # computed again, on newer parameters
        assert again.version > own[0].version


def test_a_killed_shard_goes_back_to_what_was_saved_and_the_version_never_does() -> None:
    with server_run(config(policy="ssp", bound=2, snapshot_every=4)) as run:
        run.start()
        records = run.window(5).records  # ten updates: saved at eight
        engine: Any = run.loop.engine
        version = run.loop.core.version
        process_of(engine._shards[1]).kill()
        later = run.window(8).records
        assert run.loop.core.lost_versions in (version - 8, version + 1 - 8)  # one was being applied
        assert min(record.version or 0 for record in later if record.applied) >= version
        assert run.loop.core.applied == 8 + len(applied(later))
        # What was undone is computed again, and nothing else is.
        for worker in (0, 1):
            kept = [sequence for w, sequence in applied(records)[:8] if w == worker]
            again = [sequence for w, sequence in applied(later) if w == worker]
            assert kept + again == list(range(len(kept) + len(again)))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.state.params))


def test_prefetching_works_on_a_cluster_too() -> None:
    with server_run(config(pipeline=True)) as run:
        run.start()
        run.window(3)
        run.loop.metrics.reset()
        records = run.window(20).records
        assert np.mean([record.staleness or 0 for record in records if record.applied]) > 1.5


def test_a_cluster_must_be_told_how_many_workers() -> None:
    with pytest.raises(BadInput, match="workers"):
        server_run(config(workers=None))


def test_a_server_of_its_own_needs_a_node_of_its_own() -> None:
    with pytest.raises(BadInput, match="dedicated"):
        server_run(config(placement="dedicated")).start()
