"""A mesh strategy made ready to run: compiled ahead of time, then driven in windows of steps."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.learn.data import Data
from jaxdp.learn.task import TrainState, make_task
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import Layout, make_layout
from jaxdp.mesh.rules import STRATEGIES, axis_sizes
from jaxdp.mesh.step import MeshStep, make_step
from jaxdp.records import StepRecord


class Window(NamedTuple):
    """Consecutive steps timed together: from a wait for all earlier work to a wait for the last step's outputs."""

    records: list[StepRecord]
    seconds: float


class MeshRun:
    """One mesh strategy: lay out, `compile`, `start`, then `window` after `window`."""

    def __init__(self, config: Config, data: Data, devices: Sequence[jax.Device], hosts: int = 1):
        self.config = config
        self.data = data
        self.devices = list(devices)
        strategy = STRATEGIES[config.strategy.name]
        mesh = make_mesh(axis_sizes(config.strategy, len(devices), hosts), devices)
        self.task = make_task(config, devices[0].platform)
        self.layout: Layout = make_layout(self.task, strategy.rule(config.strategy), mesh)
        self.functions: MeshStep = make_step(
            self.task,
            self.layout,
            accumulation=config.train.accumulation,
            skip_nonfinite=config.train.on_nonfinite == "skip",
        )
        self.compile_s = 0.0
        self.state: TrainState | None = None
        self.next_step = 0

    def compile(self) -> None:
        """Compiles the step ahead of time, for the shapes of the data's batches."""
        started = time.perf_counter()
        batch_sharding = jax.NamedSharding(self.layout.mesh, self.layout.batch)
        batch = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=batch_sharding), self.data.batch(0)
        )
        self.compiled = self.functions.step.lower(self.abstract_state(), batch).compile()
        self.compile_s = time.perf_counter() - started

    def start(self, state: TrainState | None = None) -> None:
        """Begins from a state in this layout, or from the seed's initial values."""
        self.state = self.functions.init(self.config.train.seed) if state is None else state
        self.next_step = int(self.state.step)

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of the state, for compiling and for restoring into this layout."""

        def make(key: jax.Array) -> TrainState:
            params = self.task.init_params(key)
            return TrainState(jax.numpy.zeros((), jax.numpy.int32), params, self.task.tx.init(params))

        shapes = jax.eval_shape(make, jax.random.key(0))
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            shapes,
            self.layout.state,
        )

    def window(self, steps: int) -> Window:
        """Runs `steps` steps; dispatch runs ahead inside the window, and only its edges wait."""
        if self.state is None:
            raise JaxdpError("window: the run has not been started")
        metrics, waits = [], []
        jax.block_until_ready(self.state)
        started = time.perf_counter()
        for step in range(self.next_step, self.next_step + steps):
            fetching = time.perf_counter()
            batch = self.functions.put(self.data.batch(step))
            waits.append(time.perf_counter() - fetching)
            self.state, found = self.compiled(self.state, batch)
            metrics.append(found)
        jax.block_until_ready((self.state, metrics[-1]))
        seconds = time.perf_counter() - started
        first, self.next_step = self.next_step, self.next_step + steps
        return Window(self._records(first, jax.device_get(metrics), waits, seconds / steps), seconds)

    def evaluate(self, stop: object = False) -> float | None:
        """The mean loss over every held-out token, exact whatever the batch; None if `stop` became true meanwhile."""
        if self.state is None:
            raise JaxdpError("evaluate: the run has not been started")
        total = tokens = 0.0
        for batch in self.data.eval_batches(self.config.train.global_batch):
            if stop:
                return None
            part = jax.device_get(self.functions.evaluate(self.state.params, self.functions.put(batch)))
            total, tokens = total + float(part[0]), tokens + float(part[1])
        return total / tokens

    def _records(self, first: int, metrics: list[Any], waits: list[float], step_time_s: float) -> list[StepRecord]:
        tokens = self.config.train.global_batch * self.config.model.context
        return [
            StepRecord(
                step=first + index,
                tokens=(first + index + 1) * tokens,
                loss=float(found.loss),
                grad_norm=float(found.grad_norm),
                step_time_s=step_time_s,
                data_wait_s=waits[index],
                learning_rate=float(found.learning_rate),
            )
            for index, found in enumerate(metrics)
        ]
