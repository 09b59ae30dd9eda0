"""A mesh strategy made ready to run: compiled ahead of time, then driven in windows of steps."""

import time
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import jax

from jaxdp.config import Config
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.job import processes, watchdog
from jaxdp.mesh.compile import abstract_batch, abstract_state, build_step
from jaxdp.mesh.logical import from_logical, logical_state, to_logical
from jaxdp.recipe import TrainState
from jaxdp.records import StepRecord, Window
from jaxdp.stragglers import delays
from jaxdp.stragglers.in_step import DeviceClocks
from jaxdp.task import DataSource
from jaxdp.timeline import Span
from jaxdp.workload import reduces_by_block, units_per_batch

# XLA's CPU client admits 32 programs to a device; beyond, the launches of one step wait for each other's places while
# its collectives wait for all: the process aborts. A few steps hide the dispatch as well as many do.
RUN_AHEAD = 8


class MeshRun:
    """One mesh strategy: lay out, `compile`, `start`, then `window` after `window`."""

    def __init__(
        self,
        config: Config,
        data: DataSource,
        devices: Sequence[jax.Device],
        hosts: int = 1,
        *,
        spans: bool = False,
        arrivals: bool = False,
    ):
        self.config = config
        self.data = data
        self.devices = list(devices)
        self.arrivals = arrivals
        self.clocks = _clocks(config, self.devices, spans, arrivals)
        if self.clocks and reduces_by_block(config):
            raise BadInput(
                "strategy.reduce: block sums gradients while the backward pass goes on, so nobody's lateness can be "
                "injected before it or measured; use strategy.reduce=end"
            )
        self.recipe, self.layout, self.functions = build_step(config, devices, hosts, clocks=self.clocks)
        self.rows = self.layout.local_rows(config.train.global_batch)
        self.compile_s = 0.0
        self.compiled: Any = None
        self._stored: TrainState | None = None
        self.next_step = 0

    def compile(self) -> None:
        """Compiles the step ahead of time, for the shapes of the data's batches."""
        watchdog.progress(f"compiling {self.config.strategy.name}")
        started = time.perf_counter()
        batch = abstract_batch(self.config, self.layout, self.data.rows(0, self.rows.start, 1))
        self.compiled = self.functions.step.lower(abstract_state(self.recipe, self.layout), batch).compile()
        self.compile_s = time.perf_counter() - started

    def start(self, state: TrainState | None = None, server: dict[str, Any] | None = None) -> None:
        """Begins from a logical state, taking it over, or from the seed's initial values; it needs no snapshot."""
        initial = self.functions.init
        self._stored = initial(self.config.train.seed) if state is None else from_logical(state, self.layout)
        self.next_step = int(self._stored.step)
        if self.clocks:
            processes.gather("the same moment")
            self.clocks.restart(self.next_step)

    @property
    def started(self) -> TrainState:
        """The state as it is stored; raises `JaxdpError` before `start`."""
        if self._stored is None:
            raise JaxdpError("the run has not been started")
        return self._stored

    @property
    def state(self) -> TrainState:
        """The state in its logical shapes, for a checkpoint: any strategy on any devices can go on from it."""
        return to_logical(self.started, self.layout)

    def abstract_state(self) -> TrainState:
        """Shapes, dtypes and shardings of `state`, for restoring into this layout."""
        return logical_state(self.recipe, self.layout)

    def snapshot(self) -> dict[str, Any] | None:
        """What a checkpoint must remember beside the state: nothing."""
        return None

    def window(self, steps: int, *, settle: bool = False) -> Window:
        """Runs `steps` steps; dispatch runs up to `RUN_AHEAD` steps ahead inside the window, and its edges wait."""
        metrics, waits = [], []
        watchdog.progress(f"steps from {self.next_step} of {self.config.strategy.name}")
        jax.block_until_ready(self.started)
        started = time.perf_counter()
        for step in range(self.next_step, self.next_step + steps):
            if len(metrics) >= RUN_AHEAD:
                jax.block_until_ready(metrics[-RUN_AHEAD])
            fetching = time.perf_counter()
            rows = self.data.rows(step, self.rows.start, self.rows.stop - self.rows.start)
            batch = self.functions.put(rows)
            waits.append(time.perf_counter() - fetching)
            self._stored, found = self.compiled(self.started, batch)
            metrics.append(found)
        jax.block_until_ready((self._stored, metrics[-1]))
        seconds = time.perf_counter() - started
        first, self.next_step = self.next_step, self.next_step + steps
        records = self._records(first, jax.device_get(metrics), waits, seconds / steps)
        return Window(records, seconds, steps, self._spans(), self._arrivals_s())

    def evaluate(self, stop: object = False) -> float | None:
        """The mean loss over every held-out unit, exact whatever the batch; None if `stop` became true meanwhile."""
        params = self.started.params
        total = units = 0.0
        for batch in self.data.eval_batches(self.config.train.global_batch, self.rows):
            if stop:
                return None
            watchdog.progress("evaluating")
            part = jax.device_get(self.functions.evaluate(params, self.functions.put(batch)))
            total, units = total + float(part[0]), units + float(part[1])
        return total / units

    def _spans(self) -> list[Span]:
        if self.clocks is None or not self.clocks.keep_spans:
            return []
        parts = processes.gather([astuple(span) for span in self.clocks.take_spans()])
        return [Span(*values) for part in parts for values in part]

    def _arrivals_s(self) -> list[tuple[float, ...]]:
        if self.clocks is None or not self.arrivals:
            return []
        return list(zip(*processes.gather(self.clocks.take_arrivals()), strict=True))

    def close(self) -> None:
        """Lets go of the state."""
        self._stored = None

    def _records(self, first: int, metrics: list[Any], waits: list[float], step_time_s: float) -> list[StepRecord]:
        units = units_per_batch(self.config)
        return [
            StepRecord(
                step=first + index,
                tokens=(first + index + 1) * units,
                loss=float(found.loss),
                grad_norm=float(found.grad_norm),
                step_time_s=step_time_s,
                data_wait_s=waits[index],
                learning_rate=float(found.learning_rate),
            )
            for index, found in enumerate(metrics)
        ]


def _clocks(config: Config, devices: Sequence[jax.Device], spans: bool, arrivals: bool) -> DeviceClocks | None:
    """The delays of a mesh's devices; a compiled step of an accelerator cannot be held back from inside."""
    uneven = delays.parse(config.stragglers, config.train.seed, "stragglers")
    if not uneven and not spans and not arrivals:
        return None
    uneven.check(len(devices))
    if devices[0].platform != "cpu" and (uneven or spans):
        asked = "stragglers" if uneven else "--trace"
        raise BadInput(f"{asked}: a mesh strategy's steps are delayed and traced on host devices only; try --profile")
    if uneven.failing:
        raise BadInput("stragglers: fail(...) would end a synchronous run; it is for the parameter server and `sim`")
    return DeviceClocks(uneven, spans)
