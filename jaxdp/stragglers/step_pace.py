"""Stragglers in a real synchronous step: a device sleeps until its delays' time has passed (host devices only).

The start of a device's step is noted before its forward pass and the rest is slept after its gradients,
before their reduction, so that a `pace` absorbs the real computation. Sleeping inside a rematerialised block
would happen once a block and pass.

The same two calls tell who is late without any delay injected: a reduction makes all devices equally late, but
each *arrives* there in its own time.
"""

import time
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxdp.stragglers.delays import Delays
from jaxdp.timeline import Span


class StepPace:
    """The delays of every device of a mesh, and what they came to. Called from the devices' own threads.

    A process knows of its own devices only. Times of spans are seconds since `restart`.
    """

    def __init__(self, delays: Delays, keep_spans: bool = False) -> None:
        self.delays = delays
        self.first_step = 0
        self.spans: list[Span] | None = [] if keep_spans else None
        self._arrivals_s: dict[int, float] = {}
        self._origin_s = time.perf_counter()
        self._started_s: dict[int, float] = {}
        self.intended_s: defaultdict[int, float] = defaultdict(float)
        self.realised_s: defaultdict[int, float] = defaultdict(float)
        self.steps: defaultdict[int, int] = defaultdict(int)

    def restart(self, step: int) -> None:
        """The next step is `step`, and the clock starts."""
        self.first_step = step
        self._origin_s = time.perf_counter()

    def begin(self, device: Any) -> np.ndarray:
        self._started_s[int(device)] = time.perf_counter()
        return np.zeros((), np.float32)

    def finish(self, device: Any, _: Any) -> np.ndarray:
        worker = int(device)
        step = self.first_step + self.steps[worker]
        started_s = self._started_s[worker]
        computed_s = time.perf_counter() - started_s
        intended_s = self.delays.step_seconds(worker, step, computed_s, started_s - self._origin_s)
        time.sleep(max(0.0, intended_s - computed_s))
        ended_s = time.perf_counter()
        self.intended_s[worker] += intended_s
        self.realised_s[worker] += ended_s - started_s
        self.steps[worker] += 1
        self._arrivals_s[step] = max(ended_s - started_s, self._arrivals_s.get(step, 0.0))
        if self.spans is not None:
            start_s, end_s = started_s - self._origin_s, ended_s - self._origin_s
            self.spans.append(Span(worker, "compute", f"step {step}", start_s, end_s))
        return np.zeros((), np.float32)

    def take_spans(self) -> list[Span]:
        """The spans since the last call: each device's own part of its steps, waiting for the others left out."""
        if self.spans is None:
            return []
        taken, self.spans = self.spans, []
        return taken

    def take_arrivals(self) -> list[float]:
        """Of each step since the last call, the seconds until the last of these devices had its gradients."""
        taken, self._arrivals_s = self._arrivals_s, {}
        return [taken[step] for step in sorted(taken)]

    def summary(self) -> list[tuple[int, float, float]]:
        """Device, and the mean seconds of its own step: as its delays mean it, and as it came out (no waiting)."""
        return [
            (device, self.intended_s[device] / steps, self.realised_s[device] / steps)
            for device, steps in sorted(self.steps.items())
        ]


def note_start(pace: StepPace, batch: Any, axes: tuple[str, ...]) -> Any:
    """The same batch, available once the start has been noted."""
    zero = _call(pace.begin, jax.lax.axis_index(axes))
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), batch)


def sleep_rest(pace: StepPace, loss: jax.Array, grads: Any, axes: tuple[str, ...]) -> jax.Array:
    """The same loss, available once the gradients are and the device's time has passed."""
    done = jnp.stack([jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(grads)])
    return loss + _call(pace.finish, jax.lax.axis_index(axes), done)


def _call(function: Any, *arguments: jax.Array) -> jax.Array:
    return io_callback(function, jax.ShapeDtypeStruct((), jnp.float32), *arguments)
