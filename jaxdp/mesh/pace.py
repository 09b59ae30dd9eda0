"""Stragglers in a real synchronous step: a device sleeps until its delays' time has passed (host devices only).

The start of a device's step is noted before its forward pass and the rest is slept after its gradients,
before their reduction, so that a `pace` absorbs the real computation. Sleeping inside a rematerialised block
would happen once a block and pass.
"""

import time
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxdp.delays import Delays
from jaxdp.learn.batch import Batch
from jaxdp.timeline import Span


class StepPace:
    """The delays of every device of a mesh, and what they came to. Called from the devices' own threads."""

    def __init__(self, delays: Delays, global_batch: int, keep_spans: bool = False) -> None:
        self.delays = delays
        self.global_batch = global_batch
        self.spans: list[Span] | None = [] if keep_spans else None
        self._origin_s = time.perf_counter()
        self._started_s: dict[int, float] = {}
        self.intended_s: defaultdict[int, float] = defaultdict(float)
        self.realised_s: defaultdict[int, float] = defaultdict(float)
        self.steps: defaultdict[int, int] = defaultdict(int)

    def begin(self, device: Any) -> np.ndarray:
        self._started_s[int(device)] = time.perf_counter()
        return np.zeros((), np.float32)

    def finish(self, device: Any, position: Any, _: Any) -> np.ndarray:
        worker, step = int(device), int(position) // self.global_batch
        started_s = self._started_s[worker]
        computed_s = time.perf_counter() - started_s
        intended_s = self.delays.step_seconds(worker, step, computed_s, started_s - self._origin_s)
        time.sleep(max(0.0, intended_s - computed_s))
        ended_s = time.perf_counter()
        self.intended_s[worker] += intended_s
        self.realised_s[worker] += ended_s - started_s
        self.steps[worker] += 1
        if self.spans is not None:
            self.spans.append(Span(worker, "compute", f"step {step}", started_s, ended_s))
        return np.zeros((), np.float32)

    def take_spans(self) -> list[Span]:
        """The spans since the last call: each device's own part of its steps, waiting for the others left out."""
        if self.spans is None:
            return []
        taken, self.spans = self.spans, []
        return taken

    def summary(self) -> dict[str, Any]:
        """Mean seconds of a device's own step: as its delays mean it, and as it came out (waiting left out)."""
        devices = sorted(self.steps)
        return {
            "intended_step_s": [self.intended_s[device] / self.steps[device] for device in devices],
            "realised_step_s": [self.realised_s[device] / self.steps[device] for device in devices],
        }


def note_start(pace: StepPace, batch: Batch, axes: tuple[str, ...]) -> Batch:
    """The same batch, available once the start has been noted."""
    zero = _call(pace.begin, jax.lax.axis_index(axes))
    return batch._replace(weights_BxT=batch.weights_BxT + zero)


def sleep_rest(pace: StepPace, loss: jax.Array, grads: Any, batch: Batch, axes: tuple[str, ...]) -> jax.Array:
    """The same loss, available once the gradients are and the device's time has passed."""
    done = jnp.stack([jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(grads)])
    return loss + _call(pace.finish, jax.lax.axis_index(axes), batch.positions_B[0], done)


def _call(function: Any, *arguments: jax.Array) -> jax.Array:
    return io_callback(function, jax.ShapeDtypeStruct((), jnp.float32), *arguments)
