"""Stragglers inside a compiled step (host devices only): each device is held back between its gradients and their sum.

The start of a device's step is noted before its forward pass and the rest is slept after its gradients, before their
reduction, so that a `pace` absorbs the real computation. Sleeping inside a rematerialised block would happen once
a block and pass.

The same two calls tell who is late without any delay injected: a reduction makes all devices equally late, but
each *arrives* there in its own time.
"""

import time
from collections import defaultdict
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from jaxdp.stragglers import injector
from jaxdp.stragglers.delays import Delays
from jaxdp.stragglers.injector import Injector
from jaxdp.timeline import Span

_ZERO = np.zeros((), np.float32)


class DeviceClocks:
    """Each device's own part of its steps: what its delays make of it, and what came of it.

    Called from the devices' own threads; a process knows of its own devices only. Times of spans are seconds
    since `restart`.
    """

    def __init__(self, delays: Delays, keep_spans: bool = False) -> None:
        self._injector = Injector(delays)
        self._first_step = 0
        self.keep_spans = keep_spans
        self._spans: list[Span] = []
        self._arrivals_s: dict[int, float] = {}
        self._started_s: dict[int, float] = {}
        self._intended_s: defaultdict[int, float] = defaultdict(float)
        self._realised_s: defaultdict[int, float] = defaultdict(float)
        self._steps: defaultdict[int, int] = defaultdict(int)

    def restart(self, step: int) -> None:
        """The next step is `step`, and the clock starts."""
        self._first_step = step
        self._injector.origin_s = time.perf_counter()

    def begin(self, device: Any) -> np.ndarray:
        self._started_s[int(device)] = time.perf_counter()
        return _ZERO

    def finish(self, device: Any, _: Any) -> np.ndarray:
        worker = int(device)
        step = self._first_step + self._steps[worker]
        started_s = self._started_s[worker]
        intended_s, _ = self._injector.hold(worker, step, started_s)
        ended_s = time.perf_counter()
        self._intended_s[worker] += intended_s
        self._realised_s[worker] += ended_s - started_s
        self._steps[worker] += 1
        self._arrivals_s[step] = max(ended_s - started_s, self._arrivals_s.get(step, 0.0))
        if self.keep_spans:
            origin_s = self._injector.origin_s
            self._spans.append(Span(worker, "compute", f"step {step}", started_s - origin_s, ended_s - origin_s))
        return _ZERO

    def take_spans(self) -> list[Span]:
        """The spans since the last call: each device's own part of its steps, waiting for the others left out."""
        taken, self._spans = self._spans, []
        return taken

    def take_arrivals(self) -> list[float]:
        """Of each step since the last call, the seconds until the last of these devices had its gradients."""
        taken, self._arrivals_s = self._arrivals_s, {}
        return [taken[step] for step in sorted(taken)]

    def summary(self) -> list[tuple[int, float, float]]:
        """Device, and the mean seconds of its own step: as its delays mean it, and as it came out (no waiting)."""
        return [
            (device, self._intended_s[device] / steps, self._realised_s[device] / steps)
            for device, steps in sorted(self._steps.items())
        ]


def note_start(clocks: DeviceClocks, batch: Any, axes: tuple[str, ...]) -> Any:
    """The same batch, available once the start has been noted."""
    zero = _call(clocks.begin, jax.lax.axis_index(axes))
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), batch)


def sleep_rest(clocks: DeviceClocks, loss: jax.Array, grads: Any, axes: tuple[str, ...]) -> jax.Array:
    """The same loss, available once the gradients are and the device's time has passed."""
    done = jnp.stack([jnp.ravel(leaf)[0] for leaf in jax.tree.leaves(grads)])
    return loss + _call(clocks.finish, jax.lax.axis_index(axes), done)


def sleep_before(sent: jax.Array, seconds: float) -> jax.Array:
    """The same values, `seconds` later on each device (a round's latency); with 0 nothing is added to the program."""
    if not seconds:
        return sent
    first = sent.reshape(-1)[0].astype(np.float32)
    zero = jax.pure_callback(partial(_sleep, seconds), jax.ShapeDtypeStruct((), np.float32), first)
    return sent + zero.astype(sent.dtype)


def _sleep(seconds: float, _: Any) -> np.ndarray:
    injector.sleep(seconds)
    return _ZERO


def _call(function: Any, *arguments: jax.Array) -> jax.Array:
    return io_callback(function, jax.ShapeDtypeStruct((), jnp.float32), *arguments)
