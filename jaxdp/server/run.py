"""A parameter server made ready to run, with the calls of a mesh strategy's run: compile, start, windows, close."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

import jax

from jaxdp.config import Config
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.install import install_command
from jaxdp.policies import parse_policy
from jaxdp.recipe import Recipe, TrainState, make_recipe
from jaxdp.records import StepRecord, Window
from jaxdp.server.arrays import host_device
from jaxdp.server.core import Server
from jaxdp.server.loop import Loop, Record
from jaxdp.server.messages import Engine, Rows
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.server.shards import LocalShards
from jaxdp.server.threads import ThreadsEngine
from jaxdp.server.worker import Worker, devices_of, rows_per_worker
from jaxdp.stragglers import delays as delay_models
from jaxdp.task import DataSource
from jaxdp.timeline import Span
from jaxdp.workload import units_per_batch


class ServerRun:
    """`compile`, `start`, then `window` after `window`, and `close` (or use it as a context manager).

    Between windows the server stands still: each worker finishes the step it is at and waits. `recipe` and
    `rows` default to the config's.
    """

    def __init__(
        self,
        config: Config,
        data: DataSource,
        devices: Sequence[jax.Device],
        *,
        recipe: Recipe | None = None,
        rows: Rows | None = None,
        spans: bool = False,
    ) -> None:
        self.config = config
        self.data = data
        self.policy = config.server.resolved_policy
        self._policy_name = parse_policy(config.server.policy)[0].name
        if config.server.pipeline and self.policy.lockstep:
            raise BadInput(f"server.pipeline: policy {config.server.policy!r} leaves no step to prefetch")
        self.on_ray = config.server.engine == "ray"
        if self.on_ray and config.server.workers is None:
            raise BadInput("server.workers: a cluster needs to be told how many (--workers N)")
        groups = [[devices[0]]] if self.on_ray else devices_of(config, devices)
        self.workers = config.server.workers or len(groups)
        # On a cluster the driver's device stands for each of the workers' own.
        each = config.server.devices_per_worker
        used = {device.id: device for group in groups for device in group}
        self.devices = [devices[0]] * (self.workers * each) if self.on_ray else list(used.values())
        self.delays = delay_models.parse(config.stragglers, config.train.seed, "stragglers")
        self.delays.check(self.workers)
        if config.server.pipeline and self.delays.failing:
            raise BadInput("server.pipeline: prefetched steps don't survive the outages of fail(...); use one of them")
        count = rows_per_worker(config, self.workers)
        self.rows = rows or (lambda sequence, worker: data.rows(sequence, worker * count, count))
        self.recipe = recipe or make_recipe(config, devices[0].platform)
        self.plan = ShardPlan(self.recipe, config.server.shards)
        self.members = [Worker(config, self.recipe, self.plan, group) for group in groups]
        self.compile_s = 0.0
        self._spans = spans
        self._loop: Loop | None = None
        self._cluster: Any = None  # a RayEngine

    def compile(self) -> None:
        """Compiles every worker's gradient ahead of time, for its devices and the shapes of its rows.

        On a cluster this starts the actors, which do the same; the member here is for what is said of the
        program, and for evaluation.
        """
        started = time.perf_counter()
        if self.on_ray:
            self._cluster = _ray_engine(self.config, self.plan, self.workers)
        batch = self.rows(0, 0)
        with ThreadPoolExecutor(len(self.members)) as pool:
            list(pool.map(lambda member: member.compile(batch), self.members))
        self.compile_s = time.perf_counter() - started

    def start(self, state: TrainState | None = None, server: dict[str, Any] | None = None) -> None:
        """Begins from a train state (any strategy's), or from the seed's initial values.

        `server` is the `snapshot` that was saved with the state. It counts if policy and workers are the
        same; else every worker takes up the state's step.
        """
        state = self.initial_state() if state is None else state
        core = self._core(int(state.step), server)
        self._loop = Loop(self.config, core, self._engine(state), spans=self._spans)

    def _engine(self, state: TrainState) -> Engine:
        if self.on_ray:
            self._cluster = self._cluster or _ray_engine(self.config, self.plan, self.workers)
            self._cluster.load(state)
            return self._cluster
        server = self.config.server
        host = LocalShards(
            self.plan,
            state,
            keep_pulled=server.correction == "delay_compensation",
            compensation=server.compensation,
            skip_nonfinite=self.config.train.on_nonfinite == "skip",
        )
        host.warm_up(self.policy.needed(self.workers))
        return ThreadsEngine(self.members, host, self.rows, self.delays, pipeline=server.pipeline)

    @property
    def loop(self) -> Loop:
        if self._loop is None:
            raise JaxdpError("the server has not been started")
        return self._loop

    @property
    def next_step(self) -> int:
        """Whole global batches consumed so far."""
        return int(self.loop.step)

    @property
    def state(self) -> TrainState:
        """A copy of the state as it stands, on the host."""
        return self.loop.engine.state(self.next_step)

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint has to remember beside the state (plain JSON)."""
        return {"policy": self._policy_name, "workers": self.workers, "core": self.loop.core.snapshot()}

    def window(self, steps: int, *, settle: bool = False) -> Window:
        """Serves until `steps` more global batches are consumed.

        `settle` first lets every worker finish what it was at, untimed, so that windows of several
        strategies can take turns; those records come first.
        """
        loop = self.loop
        records: list[Record] = list(loop.settle()) if settle else []
        loop.metrics.begin()
        before, started = loop.step, time.perf_counter()
        timed = list(loop.serve(self.next_step + steps))
        seconds, done = time.perf_counter() - started, loop.step - before
        loop.metrics.end()
        records += [
            replace(record, step_time_s=seconds / done) if isinstance(record, StepRecord) else record
            for record in timed
        ]
        lines = [record for record in records if isinstance(record, StepRecord)]
        return Window(lines, seconds, done, [record for record in records if isinstance(record, Span)])

    def evaluate(self, stop: object = False) -> float | None:
        """The mean loss over every held-out token of the parameters as they stand; None if `stop` became true."""
        reading = self.loop.engine.read(self.loop.core.version)
        member = self.members[0]
        params = member.load(reading.parts, own_buffers=False)
        reading.release()
        total = tokens = 0.0
        for batch in self.data.eval_batches(self.config.train.global_batch):
            if stop:
                return None
            part = member.loss(params, batch)
            total, tokens = total + part[0], tokens + part[1]
        return total / tokens

    def initial_state(self) -> TrainState:
        with jax.default_device(host_device()):
            return jax.jit(self.recipe.init_state)(jax.random.key(self.config.train.seed))

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state, for restoring onto the host."""
        where = jax.sharding.SingleDeviceSharding(host_device())
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), self.recipe.abstract_state()
        )

    def close(self) -> None:
        engine = self._cluster if self._loop is None else self._loop.engine
        if engine is not None:
            engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _core(self, step: int, saved: dict[str, Any] | None) -> Server:
        if saved and (saved.get("policy"), saved.get("workers")) == (self._policy_name, self.workers):
            return Server.restore(self.policy, saved["core"], self.config.server.correction)
        counters = {"version": step, "tokens": step * units_per_batch(self.config)}
        sequences = [[worker, step] for worker in range(self.workers)]
        state = {**counters, "applied": step * self.workers, "dropped": 0, "duplicates": 0, "lost_versions": 0}
        return Server.restore(self.policy, {**state, "sequences": sequences}, self.config.server.correction)


def _ray_engine(config: Config, plan: ShardPlan, workers: int) -> Any:
    try:
        from jaxdp.server.ray import RayEngine  # Ray takes seconds to import and may not be installed
    except ImportError:
        raise BadInput(f"server.engine: ray is not installed; {install_command('ray')}") from None
    return RayEngine(config, plan, workers)
