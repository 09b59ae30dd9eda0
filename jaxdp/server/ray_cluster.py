"""The actors of a run and where they are placed; Ray's token authentication stays on."""

import os
import socket
from typing import Any

import ray
from ray import exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from jaxdp.config import Config
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.server.ray_actors import ShardActor, WorkerActor

START_S = 300.0  # to start or restart an actor, its compiling included
PROBE_S = 10.0  # to reach the head
MAX_RESTARTS = 10  # of one actor
HEALTH = "health"  # the concurrency group that answers while a step is computed


class Cluster:
    """`shards` and `workers` are handles of restartable actors. Workers take GPUs if the cluster has enough."""

    def __init__(self, config: Config, workers: int) -> None:
        server = config.server
        self._started_here = connect(server.address, workers + server.shards)
        self._groups: list[Any] = []
        gpus = ray.cluster_resources().get("GPU", 0) >= workers * server.devices_per_worker
        takes = {"CPU": 1.0, "GPU": float(server.devices_per_worker)} if gpus else {"CPU": 1.0}
        if server.placement == "colocated":
            places = self._packed([{"CPU": 1.0}] * server.shards + [takes] * workers)
        else:
            places = _apart(server.shards, workers)
        text = config.model_dump_json()
        on_host = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(server.devices_per_worker)}
        inside = {"JAX_PLATFORMS": "cuda,cpu"} if gpus else on_host
        self.shards = [
            _actor(ShardActor, {"CPU": 1.0}, on_host, places[index], text, index) for index in range(server.shards)
        ]
        self.workers = [
            _actor(WorkerActor, takes, inside, places[server.shards + index], text, index, workers, health=True)
            for index in range(workers)
        ]

    def close(self) -> None:
        """Ends the actors, and the cluster if it was started for them."""
        for actor in [*self.workers, *self.shards]:
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
        if self._started_here:
            ray.shutdown()

    def _packed(self, bundles: list[dict[str, float]]) -> list[Any]:
        """On as few nodes as can be."""
        group = placement_group(bundles, strategy="PACK")
        self._groups.append(group)
        try:
            ray.get(group.ready(), timeout=START_S)
        except exceptions.GetTimeoutError:
            raise JaxdpError(f"the cluster has no room for {len(bundles)} actors ({bundles[-1]} a worker)") from None
        return [PlacementGroupSchedulingStrategy(group, index) for index in range(len(bundles))]


def _apart(shards: int, workers: int) -> list[Any]:
    """The server's shards on nodes of their own, preferably without GPUs, and the workers on the others."""
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]),
        key=lambda node: (node["Resources"].get("GPU", 0), node["NodeID"]),
    )
    if len(nodes) < 2:
        raise BadInput("server.placement: dedicated needs a node for the server beside those of the workers")
    own = nodes[: min(shards, len(nodes) - 1)]
    others = nodes[len(own) :]
    chosen = [own[index % len(own)] for index in range(shards)]
    chosen += [others[index % len(others)] for index in range(workers)]
    return [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in chosen]


def connect(address: str | None, room: int) -> bool:
    """Joins the cluster at `address`, or starts one here with room for the actors; says if it is to be shut down."""
    if ray.is_initialized():
        return False
    if address:
        _refuse_absent(address)
    try:
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            cpus = max(room, os.cpu_count() or 1)
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise JaxdpError(
            f"no Ray cluster at {address or 'this host'} ({reason}); start one: ray start --head"
        ) from None
    return True


def _refuse_absent(address: str) -> None:
    """Raises if nothing listens there: Ray itself asks on for minutes."""
    asked = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host, _, port = asked.removeprefix("ray://").rpartition(":")
    if asked in ("", "auto", "local"):
        return  # Ray looks for a cluster on this host, which takes no time
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise BadInput(f"--address {asked}: expected HOST:PORT of the head, as `ray start --head` tells it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise JaxdpError(
            f"no Ray cluster at {asked} ({reason}); start one there: ray start --head --port={port}, "
            "or correct --address"
        ) from None


def answer(actor: Any) -> Any:
    """A reference that is ready as soon as the worker's process answers, whatever it computes."""
    return actor.ready.options(concurrency_group=HEALTH).remote()


def _actor(
    body: type, takes: dict[str, float], environment: dict[str, str], place: Any, *args: Any, health: bool = False
) -> Any:
    """The class as an actor that Ray restarts. Its JAX must see the environment before it starts.

    With `health` a second thread answers; such an actor may run calls out of order, which a shard must not.
    """
    options: dict[str, Any] = {
        "num_cpus": takes["CPU"],
        "num_gpus": takes.get("GPU", 0.0),
        "max_restarts": MAX_RESTARTS,
        "concurrency_groups": {HEALTH: 1} if health else None,
        "runtime_env": {"env_vars": environment},
        "scheduling_strategy": place,
    }
    return ray.remote(**options)(body).remote(*args)
