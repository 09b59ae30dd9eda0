"""The Ray engine: workers and server shards as actors on one or many machines, the loop in the driver.

The driver calls every shard in one order, so that a reading issued between two updates has the same version
on all of them. Data moves through Ray's object store, from a worker straight to the shards; the driver sees
references only. A worker that dies is restarted and joins again. When a shard dies all shards go back to
their last saved state, which the driver holds. Ray's token authentication stays on.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import ray
from ray import exceptions

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.recipe import TrainState
from jaxdp.server.arrays import host_device, owned
from jaxdp.server.core import Push, Update
from jaxdp.server.messages import Applied, Arrived, Left, Message, PullGrant, PullRequest, ShardsLost
from jaxdp.server.metrics import Spans
from jaxdp.server.ray_cluster import MAX_RESTARTS, START_S, Cluster, answer
from jaxdp.server.shard_plan import ShardPlan, tree_like
from jaxdp.server.shards import Gradient, apply_update, prepared_norm
from jaxdp.task import by_path

PING_S = 2.0
PAUSE_S = 0.2  # before an actor that is being restarted is asked again


class RayReading:
    """Parameters of one version in the object store, a reference for each shard."""

    def __init__(self, refs: Sequence[Any]) -> None:
        self.refs = refs

    @property
    def parts(self) -> list[Any]:
        return ray.get(list(self.refs))

    def release(self) -> None:
        """The object store lets go of it with the last reference."""


class RayEngine:
    """The engine of `messages.Engine` over Ray actors: made, then `load`ed, then driven by a loop."""

    def __init__(self, config: Config, plan: ShardPlan, workers: int) -> None:
        self._config = config
        self._plan = plan
        self._cluster = Cluster(config, workers)
        self._shards, self._workers = self._cluster.shards, self._cluster.workers
        self._parts: dict[Any, list[Any]] = {}  # a step's gradients, by the reference to what it tells
        self._refs: dict[Any, PullGrant | int] = {}  # of a step, or of a worker's start
        self._asked_s = [time.perf_counter()] * workers
        self._inbox: deque[Message] = deque()
        self._saved: tuple[dict[str, Any], list[Any]] | None = None
        self._reading: tuple[int, RayReading] | None = None
        self._origin_s = time.perf_counter()
        self._wait_for([actor.ready.remote() for actor in [*self._shards, *self._workers]], "start")

    def load(self, state: TrainState) -> None:
        """Gives the shards their state; every worker asks for its first step."""
        params = self._plan.split(by_path(state.params))
        opt_states = [by_path(part) for part in self._plan.split_opt_state(state.opt_state)]
        self._load(list(zip(params, opt_states, strict=True)))
        self._inbox.extend(PullRequest(worker) for worker in range(self.workers))

    @property
    def workers(self) -> int:
        return len(self._workers)

    @property
    def parameter_bytes(self) -> int:
        return self._plan.bytes

    def give(self, grant: PullGrant) -> None:
        ready = self._submit(grant)
        self._refs[ready] = grant
        outstanding = sum(isinstance(each, PullGrant) and each.worker == grant.worker for each in self._refs.values())
        if self._config.server.pipeline and outstanding == 1:
            self._inbox.append(PullRequest(grant.worker))

    def take(self, timeout_s: float) -> Message | None:
        if self._inbox:
            return self._inbox.popleft()
        if not self._refs:
            time.sleep(timeout_s)
            return None
        done, _ = ray.wait(self._oldest(), timeout=timeout_s, fetch_local=False)
        return self._message(done[0]) if done else None

    def backlog(self) -> int:
        done, _ = ray.wait(list(self._refs), num_returns=len(self._refs), timeout=0) if self._refs else ([], [])
        return len(self._inbox) + len(done)

    def silent_s(self, worker: int) -> float:
        """0 if the worker's process answers."""
        try:
            ray.get(answer(self._workers[worker]), timeout=PING_S)
        except exceptions.RayError:
            return time.perf_counter() - self._asked_s[worker]
        return 0.0

    def read(self, version: int) -> RayReading:
        if self._reading is None or self._reading[0] != version:
            self._reading = version, RayReading([shard.read.remote(version) for shard in self._shards])
        return self._reading[1]

    def apply(self, update: Update, step: float) -> Applied:
        skip = self._config.train.on_nonfinite == "skip"
        self._reading = None
        return apply_update(update, step, skip, self._prepare, self._commit)

    def norm(self, push: Push) -> float:
        return prepared_norm([push], self._prepare)

    def forget(self, before: int) -> None:
        if self._config.server.correction == "delay_compensation":
            for shard in self._shards:
                shard.forget.remote(before)

    def save(self, core: dict[str, Any]) -> None:
        self._saved = core, self._states()

    def state(self, step: int) -> TrainState:
        params, opt_states = zip(*self._states(), strict=True)
        like = [self._plan.abstract_opt_state(cut) for cut in self._plan.cuts]
        opt_state = self._plan.join_opt_state([tree_like(*pair) for pair in zip(like, opt_states, strict=True)])
        return owned(TrainState(jnp.int32(step), self._plan.join(params), opt_state), host_device())

    def close(self) -> None:
        self._cluster.close()

    def _oldest(self) -> list[Any]:
        """Each worker's first reference: its pushes are taken in the order of its steps, however they finish."""
        oldest: dict[int, Any] = {}
        for ref, what in self._refs.items():
            oldest.setdefault(what if isinstance(what, int) else what.worker, ref)
        return list(oldest.values())

    def _submit(self, grant: PullGrant) -> Any:
        """Starts a step on its worker; returns the reference to what it tells."""
        step = self._workers[grant.worker].step.options(num_returns=1 + len(self._shards))
        told, *parts = step.remote(grant.sequence, time.perf_counter() - self._origin_s, *grant.reading.refs)
        self._parts[told] = parts
        return told

    def _message(self, ref: Any) -> Message | None:
        """What the end of a step, or of a worker's restart, means."""
        what = self._refs.pop(ref)
        parts = self._parts.pop(ref, [])
        worker = what if isinstance(what, int) else what.worker
        try:
            told: Any = ray.get(ref)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, exceptions.RayError):
                self._restore(error)  # its parameters were lost with a shard
            return Left(worker, f"{type(error.cause).__name__}: {error.cause}")
        except exceptions.ActorUnavailableError:
            return self._restarting(worker, first=isinstance(what, PullGrant))
        except exceptions.RayError as error:
            return Left(worker, f"{type(error).__name__}: it was restarted {MAX_RESTARTS} times, or cannot be")
        if isinstance(what, int):
            return PullRequest(worker)
        return self._arrived(what, told, parts)

    def _restarting(self, worker: int, first: bool) -> Message | None:
        """Ray starts the process again, and the worker asks once it is up; until then it is gone."""
        for ref in [ref for ref, each in self._refs.items() if isinstance(each, PullGrant) and each.worker == worker]:
            del self._refs[ref], self._parts[ref]
        self._refs[self._workers[worker].ready.remote()] = worker
        return Left(worker, "its process died") if first else None

    def _arrived(self, grant: PullGrant, told: dict[str, Any], parts: list[Any]) -> Message:
        """The step in the driver's clock: what the worker told of it ended now."""
        now_s = time.perf_counter()
        spans = Spans(self._asked_s[grant.worker])
        spans.push_s = now_s - told["push_s"], now_s
        spans.compute_s = spans.push_s[0] - told["compute_s"], spans.push_s[0]
        spans.pull_s = spans.compute_s[0] - told["pull_s"], spans.compute_s[0]
        spans.data_wait_s, spans.target_s = told["data_wait_s"], told["target_s"]
        self._asked_s[grant.worker] = now_s
        if told["down"]:
            self._inbox.append(PullRequest(grant.worker))
            return Left(grant.worker, None)
        payload = Gradient(parts, told["loss"], told["tokens"])
        return Arrived(grant.worker, grant.sequence, grant.version, payload, spans)

    def _prepare(self, parts: list[list[Any]], tokens: list[float], versions: list[int]) -> Sequence[float]:
        calls = zip(self._shards, parts, strict=True)
        return self._on_shards([shard.prepare.remote(tokens, versions, *part) for shard, part in calls])

    def _commit(self, tokens: float, norm: float, step: float, scale: float) -> Sequence[float]:
        return self._on_shards([shard.commit.remote(tokens, norm, step, scale) for shard in self._shards])

    def _states(self) -> list[Any]:
        return self._on_shards([shard.state.remote() for shard in self._shards])

    def _load(self, parts: Sequence[Any]) -> None:
        calls = zip(self._shards, parts, strict=True)
        self._wait_for([shard.load.remote(params, opt_state) for shard, (params, opt_state) in calls], "load")

    def _on_shards(self, refs: list[Any]) -> list[Any]:
        """What the shards answer; if one is dead or silent past the deadline, all go back to what was saved."""
        try:
            return ray.get(refs, timeout=self._config.server.deadline_s)
        except exceptions.RayError as error:
            self._restore(error)
            raise

    def _restore(self, error: exceptions.RayError) -> None:
        """Restarts the shards where need be and loads the saved state; raises `ShardsLost`."""
        cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
        lost = isinstance(cause, exceptions.RayError) or "holds nothing yet" in str(cause)
        if self._saved is None or not lost:
            raise JaxdpError(f"a server shard failed: {cause}") from error
        for shard in self._shards:
            try:
                ray.get(shard.ready.remote(), timeout=self._config.server.deadline_s)
            except exceptions.GetTimeoutError:
                ray.kill(shard, no_restart=False)
            except exceptions.ActorUnavailableError:
                continue
            except exceptions.RayError as dead:
                raise JaxdpError(f"a server shard died and cannot be restarted: {dead}") from error
        self._reading = None
        self._wait_for_restarts()
        self._load(self._saved[1])
        raise ShardsLost(self._saved[0])

    def _wait_for_restarts(self) -> None:
        end_s = time.perf_counter() + START_S
        waiting = list(self._shards)
        while waiting and time.perf_counter() < end_s:
            try:
                ray.get(waiting[-1].ready.remote(), timeout=end_s - time.perf_counter())
                waiting.pop()
            except exceptions.ActorUnavailableError:
                time.sleep(PAUSE_S)
        if waiting:
            raise JaxdpError(f"a server shard did not restart within {START_S:g} s")

    def _wait_for(self, refs: list[Any], what: str) -> None:
        try:
            ray.get(refs, timeout=START_S)
        except exceptions.GetTimeoutError:
            raise JaxdpError(f"actors did not {what} within {START_S:g} s; does the cluster have room?") from None
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, JaxdpError):
                raise error.cause from error
            raise JaxdpError(f"an actor failed to {what}: {error.cause}") from error
        except exceptions.RayError as error:
            raise JaxdpError(f"actors did not {what}: {error}") from error
