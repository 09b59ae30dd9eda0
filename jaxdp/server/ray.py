"""The Ray engine: workers and server shards as actors on one or many machines, the loop in the driver.

The driver calls every shard in one order, so that a reading issued between two updates has the same version
on all of them. Data moves through Ray's object store, from a worker straight to the shards; the driver sees
references only. A worker that dies is restarted and joins again. When a shard dies all shards go back to
their last saved state, which the driver holds. Ray's token authentication stays on.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import ray
from ray import exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from jaxdp.config import Config
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.learn.task import TrainState
from jaxdp.server.arrays import host_device, owned
from jaxdp.server.core import Push, Update
from jaxdp.server.messages import Applied, Arrived, Asks, Grant, Left, Message, ShardsLost
from jaxdp.server.metrics import Spans
from jaxdp.server.ray_actors import ShardActor, WorkerActor
from jaxdp.server.shard_plan import ShardPlan, names_of, tree_like
from jaxdp.server.shards import Gradient, apply_update, prepared_norm

START_S = 300.0  # to start or restart an actor, its compiling included
PING_S = 2.0
MAX_RESTARTS = 10  # of one actor

log = logging.getLogger(__name__)


class RayReading:
    """Parameters of one version in the object store, a reference for each shard."""

    def __init__(self, refs: Sequence[Any]) -> None:
        self.refs = refs

    @property
    def parts(self) -> list[Any]:
        return ray.get(list(self.refs))

    def give_back(self) -> None:
        """The object store lets go of it with the last reference."""


class RayEngine:
    """The engine of `messages.Engine` over Ray actors: made, then `load`ed, then driven by a loop."""

    def __init__(self, config: Config, plan: ShardPlan, workers: int) -> None:
        self._config = config
        self._plan = plan
        self._started_here = connect(config, workers)
        self._groups: list[Any] = []
        self._make_actors(workers)
        self._refs: dict[Any, Grant | int] = {}  # of a step, or of a worker's start
        self._asked_s = [time.perf_counter()] * workers
        self._inbox: deque[Message] = deque()
        self._saved: tuple[dict[str, Any], list[Any]] | None = None
        self._reading: tuple[int, RayReading] | None = None
        self._origin_s = time.perf_counter()
        self._wait_for([actor.ready.remote() for actor in [*self._shards, *self._workers]], "start")

    def load(self, state: TrainState) -> None:
        """Gives the shards their state; every worker asks for its first step."""
        params = self._plan.split(names_of(state.params))
        opt_states = [names_of(part) for part in self._plan.split_opt_state(state.opt_state)]
        self._load(list(zip(params, opt_states, strict=True)))
        self._inbox.extend(Asks(worker) for worker in range(self.workers))

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def parameter_bytes(self) -> int:
        return self._plan.bytes

    def give(self, grant: Grant) -> None:
        ready = self._submit(grant)
        self._refs[ready] = grant
        outstanding = sum(isinstance(each, Grant) and each.worker == grant.worker for each in self._refs.values())
        if self._config.server.pipeline and outstanding == 1:
            self._inbox.append(Asks(grant.worker))

    def take(self, timeout_s: float) -> Message | None:
        if self._inbox:
            return self._inbox.popleft()
        if not self._refs:
            time.sleep(timeout_s)
            return None
        done, _ = ray.wait(list(self._refs), timeout=timeout_s, fetch_local=False)
        return self._message(done[0]) if done else None

    def backlog(self) -> int:
        done, _ = ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0) if self._refs else ([], [])
        return len(self._inbox) + len(done)

    def silent_s(self, worker: int) -> float:
        """0 if the worker's process answers."""
        try:
            ray.get(self._workers[worker].ping.remote(), timeout=PING_S)
        except exceptions.RayError:
            return time.perf_counter() - self._asked_s[worker]
        return 0.0

    def read(self, version: int) -> RayReading:
        if self._reading is None or self._reading[0] != version:
            self._reading = version, RayReading([shard.read.remote(version) for shard in self._shards])
        return self._reading[1]
