"""Measures collectives between devices, and fits the alpha-beta formula to them. Imports JAX when called.

Sizes double from a few KiB for as long as a call takes well below a second, so that a slow network is measured in
seconds and a fast one at messages large enough. Calls follow each other without a pause, as a step's do. Scatters are
timed behind a gather, as a step has them: alone in a row, processes fall out of step and get in each other's way.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from jaxdp.predict.network import COLLECTIVES, Link

REPEATS, MAX_REPEATS = 5, 25
WARM_UP = 2
SMALLEST_BYTES = 4 * 2**10
LARGEST_BYTES = {"cpu": 16 * 2**20, "other": 256 * 2**20}
GROWTH = 2
LONGEST_S = 0.6

T = TypeVar("T")
Gather = Callable[[T], list[T]]  # every process's value, in their order


def seconds(run: Callable[[], Any]) -> float:
    """The median time of a call and its results, after two calls to warm up."""
    return statistics.median(_times(run, REPEATS))


def _times(run: Callable[[], Any], repeats: int) -> list[float]:
    import jax

    times = []
    for repeat in range(repeats + WARM_UP):
        started = time.perf_counter()
        jax.block_until_ready(run())
        if repeat >= WARM_UP:
            times.append(time.perf_counter() - started)
    return times


def measure_links(devices: Sequence[Any], gather: Gather[Any]) -> dict[str, list[list[float]]]:
    """For each kind of collective over the devices its [whole bytes, seconds of the slowest process], by size.

    Every process must call this; one of whose devices none takes part only keeps step with the others.
    """
    import jax

    takes_part = len(devices) > 1 and any(device.process_index == jax.process_index() for device in devices)
    largest = LARGEST_BYTES["cpu" if jax.devices()[0].platform == "cpu" else "other"]
    found = {kind: _ladder(kind, devices if takes_part else (), gather, largest) for kind in COLLECTIVES}
    found["reduce-scatter"] = without_gather(found["reduce-scatter"], found["all-gather"])
    return found


def without_gather(pairs: list[list[float]], gathers: list[list[float]]) -> list[list[float]]:
    """A scatter's part of [whole bytes, seconds of a gather and a scatter]: at least a quarter, whatever the noise."""
    gather_s = {pair[0]: pair[1] for pair in gathers}
    return [[size, max(spent - gather_s[size], spent / 4)] for size, spent in pairs if size in gather_s]


def _ladder(kind: str, devices: Sequence[Any], gather: Gather[Any], largest: int) -> list[list[float]]:
    partners = {device.process_index for device in devices}
    taking_part = gather(bool(partners))
    found: list[list[float]] = []
    size, slowest = SMALLEST_BYTES, 0.0
    while any(taking_part) and size <= largest and slowest * GROWTH < LONGEST_S:
        repeats = round(min(max(LONGEST_S / GROWTH / max(slowest, 1e-9), REPEATS), MAX_REPEATS))
        run = _in_a_step(kind, devices, size) if devices else lambda: None
        everyone = gather(_times(run, repeats))
        if partners:
            found.append([size, _slowest([everyone[process] for process in partners])])
        slowest = _slowest([times for times, takes_part in zip(everyone, taking_part, strict=True) if takes_part])
        size *= GROWTH
    return found


def _slowest(everyone: list[list[float]]) -> float:
    """The median over calls of the process that took longest."""
    return statistics.median(map(max, zip(*everyone, strict=True)))


def _in_a_step(kind: str, devices: Sequence[Any], size: int) -> Callable[[], Any]:
    import jax

    run = _collective(kind, devices, size)
    if kind != "reduce-scatter":
        return run
    gather = _collective("all-gather", devices, size)
    return lambda: (jax.block_until_ready(gather()), run())


def _collective(kind: str, devices: Sequence[Any], size: int) -> Callable[[], Any]:
    """One collective; `size` is the whole array's: what a gather ends with, what a reduction begins with."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.asarray(devices, dtype=object), ("d",), axis_types=(AxisType.Auto,))
    whole, cut = PartitionSpec(), PartitionSpec("d")
    elements = size // 4 // len(devices) * len(devices)
    local, given, left = {
        "all-reduce": (lambda own: jax.lax.psum(own, "d"), whole, whole),
        "all-gather": (lambda own: jax.lax.all_gather(own, "d", tiled=True), cut, whole),
        "reduce-scatter": (lambda own: jax.lax.psum_scatter(own, "d", tiled=True), whole, cut),
    }[kind]
    make = jax.jit(lambda: jnp.ones(elements, jnp.float32), out_shardings=NamedSharding(mesh, given))
    values = make()
    # Unchecked: every device's sum is the same, which the types of a gather and of a sum of equals don't say.
    run = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=given, out_specs=left, check_vma=False))
    return lambda: run(values)


def rounds(kind: str, n: int, timed: Sequence[Sequence[float]]) -> list[list[float]]:
    """[bytes, seconds] of one round of the ring over n devices, from a collective's [whole bytes, seconds].

    What delays a call makes it longer, never shorter: a message takes no longer than a larger one did.
    """
    passes, least = COLLECTIVES[kind] * (n - 1), math.inf
    found = []
    for size, spent in reversed(timed):
        least = min(least, spent)
        found.append([size / n, least / passes])
    return found[::-1]


def fit_link(kind: str, n: int, timed: Sequence[Sequence[float]]) -> Link:
    """The latency of a round, and the bandwidth, by which the ring's formula meets [whole bytes, seconds] best.

    Weighted halfway between seconds, which large messages would decide alone, and relative errors, which noise in the
    small ones would. Neither is negative.
    """
    size, spent = np.asarray(rounds(kind, n, timed)).T
    weight = spent**-0.5
    terms = np.stack([weight, size * weight], axis=1)
    latency_s, per_byte = np.linalg.lstsq(terms, spent * weight, rcond=None)[0]
    if latency_s < 0:
        latency_s, per_byte = 0.0, 1 / np.mean(size / spent)
    if per_byte <= 0:  # messages in one process's memory, where none is large
        latency_s, per_byte = np.median(spent), 1e-15
    return Link(1 / float(per_byte), float(latency_s))
