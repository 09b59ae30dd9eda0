"""The Ray engine on a real cluster of processes on this machine: exactness, kills, stops, restarts."""

import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import psutil
import pytest

from jaxdp.config import Config, build
from jaxdp.learn.data import open_data
from jaxdp.server.run import ServerRun
from jaxdp.server.shard_plan import names_of

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
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def server_run(setting: Config) -> ServerRun:
    return ServerRun(setting, open_data(setting), jax.devices())


def process_of(actor: Any) -> psutil.Process:
    """The actor's process, asked from the actor itself."""
    return psutil.Process(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))


def assert_close(left: Any, right: Any, tolerance: float) -> None:
    expected = names_of(right)
    for name, leaf in names_of(left).items():
        np.testing.assert_allclose(leaf, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def applied(records: list[Any]) -> list[tuple[int, int]]:
    return [(record.worker, record.sequence) for record in records if record.applied]


def test_sync_on_a_cluster_equals_sync_on_threads() -> None:
    setting = config(policy="sync")
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


def test_a_killed_worker_comes_back_and_every_push_is_accounted_for() -> None:
    with server_run(config()) as run:
        run.start()
        first = run.window(3).records
        engine: Any = run.loop.engine
        process_of(engine._workers[1]).kill()
        later = run.window(60).records
        rest = run.window(60).records if 1 not in {r.worker for r in later[-40:]} else []
        records = [*first, *later, *rest]
        assert run.loop.metrics.lost_workers == 1
        assert len(set(applied(records))) == len(applied(records))
        for worker in (0, 1):
            assert [s for w, s in applied(records) if w == worker] == list(
                range(sum(w == worker for w, _ in applied(records)))
            )
        versions = [record.version for record in records]
        assert all(version <= index for index, version in enumerate(versions))
        assert run.loop.core.applied == len(applied(records))
