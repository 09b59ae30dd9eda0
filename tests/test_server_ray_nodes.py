"""The Ray engine over two nodes, and with workers that each hold several devices."""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxdp.config import Config, build
from jaxdp.data.pipeline import open_data
from jaxdp.server.run import ServerRun
from jaxdp.task import by_path

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.slow,  # a cluster's processes take their time to start
    pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def two_nodes() -> Iterator[None]:
    """Two nodes of one cluster, each with a scheduler, an object store and an address of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
        cluster.add_node(num_cpus=4)
        ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown()
    cluster.shutdown()


def config(**server: Any) -> Config:
    return build(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32, "context": 16},
            "train": {"global_batch": 8, "compute_dtype": "float32"},
            "data": {"corpus": "synthetic"},
            "strategy": {"name": "ps", "min_shard_bytes": 0},
            "server": {"workers": 2, "shards": 2, "policy": "sync", **server},
        }
    )


def trained(setting: Config, steps: int = 4) -> tuple[list[float], dict[str, Any]]:
    with ServerRun(setting, open_data(setting), jax.devices()) as run:
        run.start()
        losses = [record.loss for record in run.window(steps).records]
        return losses, {name: np.array(leaf) for name, leaf in by_path(run.state.params).items()}


def assert_same(found: tuple[list[float], dict[str, Any]], expected: tuple[list[float], dict[str, Any]]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for name, leaf in found[1].items():
        np.testing.assert_allclose(leaf, expected[1][name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_workers_of_two_devices_train_as_workers_of_one() -> None:
    expected = trained(config(engine="threads"))
    assert_same(trained(config(engine="ray", devices_per_worker=2, worker_strategy="fsdp")), expected)


def test_a_dedicated_server_lies_on_a_node_without_workers() -> None:
    setting = config(engine="ray", placement="dedicated")
    with ServerRun(setting, open_data(setting), jax.devices()) as run:
        run.start()
        run.window(2)
        engine: Any = run.loop.engine
        nodes = [
            {ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())) for actor in part}
            for part in (engine._shards, engine._workers)
        ]
    assert len(nodes[0]) == len(nodes[1]) == 1
    assert not nodes[0] & nodes[1]
