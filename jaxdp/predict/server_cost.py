"""Seconds of a step under the parameter server: workers' cycles, the servers' NICs and their applying.

A step is one global batch, that is n pushes of a worker's n-th. On one host parameters travel over the
device's link to the host's memory, between hosts over the NICs; several server shards share a host's NIC.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jaxdp.config import Config
from jaxdp.models.shapes import count
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.compute import compute_dtype, update_bytes
from jaxdp.predict.cost import StepCost, barrier_seconds, computing, exposed_seconds
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.network import Link, async_rate, server_transfer
from jaxdp.predict.sharding import optimizer_slots, workers
from jaxdp.predict.traffic import phases
from jaxdp.workload import units_per_batch

if TYPE_CHECKING:
    from jaxdp.stragglers.delays import Delays

SAMPLED_STEPS = 512  # for the mean of a step's k-th fastest worker


class Server(NamedTuple):
    """What workers share. `bandwidth` is all shards' together, each way."""

    message_bytes: int
    worker: Link
    bandwidth: float
    apply_s: float


def server(config: Config, hardware: Hardware) -> Server:
    size = count(config.model) * PARAMETER_BYTES
    first = hardware.groups[0]
    shards = min(config.server.shards, hardware.hosts)
    memory = min(group.host_memory_bandwidth for group in hardware.groups)
    if hardware.hosts == 1:
        worker, bandwidth = Link(first.host_bandwidth), memory / 2
    else:
        slowest = min(group.nic_bandwidth for group in hardware.groups)
        reach = min(slowest * config.server.devices_per_worker, min(g.host_bandwidth for g in hardware.groups))
        worker = Link(reach, max(group.nic_latency_s for group in hardware.groups))
        bandwidth = shards * min(group.nic_bandwidth * group.devices for group in hardware.groups)
    applied = update_bytes(count(config.model), optimizer_slots(config.optim)) / memory / shards
    return Server(size, worker, bandwidth, applied)


def worker_seconds(config: Config, hardware: Hardware) -> list[float]:
    """Seconds that each worker computes for one push, its own mesh's communication included."""
    n, devices = workers(config, hardware.devices), config.server.devices_per_worker
    tokens = units_per_batch(config) / (n * devices)
    seconds: list[float] = []
    for group in hardware.groups:
        mesh = Hardware((replace(group, count=1, devices=devices, speeds=()),))
        work = computing(config, group, mesh, tokens)
        comm = phases(config, mesh, compute_dtype(config, group))
        alone = work.total_s + exposed_seconds(work, comm, group.overlaps)
        speeds = group.speeds or (1.0,) * group.devices
        for first in range(0, group.devices - devices + 1, devices):
            slowest = min(speeds[first : first + devices])
            seconds += [alone / slowest] * group.count
    return seconds[:n]


def server_cost(config: Config, hardware: Hardware, delays: "Delays | None" = None) -> StepCost:
    """The mean step under the config's policy."""
    alone, shared = worker_seconds(config, hardware), server(config, hardware)
    if config.server.resolved_policy.lockstep:
        return _barrier_cost(config, alone, shared, delays)
    return _free_cost(config, alone, shared, delays)


def _barrier_cost(config: Config, alone: list[float], shared: Server, delays: "Delays | None") -> StepCost:
    n = len(alone)
    dropped = n - config.server.resolved_policy.needed(n)
    transfer = server_transfer(shared.message_bytes, n, 1, shared.worker, Link(shared.bandwidth))
    mean_s, slowest_s = barrier_seconds(alone, delays)
    if dropped:
        slowest_s = _kth_seconds(alone, n - dropped, delays)
    # Only n - dropped pushes of a step count: a global batch takes that many more steps.
    steps = n / (n - dropped)
    compute = min(mean_s, slowest_s)
    return _cost(
        steps * compute,
        steps * (2 * transfer + shared.apply_s),
        steps * (slowest_s - compute),
        2 * steps * shared.message_bytes,
    )


def _cost(compute_s: float, server_s: float, waiting_s: float, moved_bytes: float) -> StepCost:
    parts = {"worker": compute_s, "server": server_s, "waiting": waiting_s}
    return StepCost(compute_s, server_s, waiting_s, moved_bytes, parts)


def _kth_seconds(alone: list[float], k: int, delays: "Delays | None") -> float:
    """The mean time of a step's k-th fastest worker."""
    if not delays:
        return sorted(alone)[k - 1]
    at_s = total = 0.0
    for step in range(SAMPLED_STEPS):
        row = sorted(delays.step_seconds(worker, step, base, at_s) for worker, base in enumerate(alone))
        total += row[k - 1]
        at_s += row[k - 1]
    return total / SAMPLED_STEPS


def _free_cost(config: Config, alone: list[float], shared: Server, delays: "Delays | None") -> StepCost:
    """Workers that don't wait for each other: the sum of their rates, or what the server can take.

    A worker's cycle has its push applied, whose acknowledgement carries the next pull.
    """
    n = len(alone)
    means = worker_means(alone, delays)
    moving = [2 * _transfer_s(shared, worker, delays) + shared.apply_s for worker in range(n)]
    overlapped = config.server.pipeline
    cycles = [max(c, m) if overlapped else c + m for c, m in zip(means, moving, strict=True)]
    policy = config.server.resolved_policy
    free = async_rate(cycles, 0, 1, 0, 0)
    rate = async_rate(cycles, shared.message_bytes, 1, shared.bandwidth, shared.apply_s / policy.needed(n))
    if policy.bound is not None:  # no worker gets far ahead of the slowest
        rate = min(rate, n / max(cycles))
    busy = sum(c / cycle for c, cycle in zip(means, cycles, strict=True)) / n
    return _cost(n / free * busy, n / free * (1 - busy), n / rate - n / free, 2 * shared.message_bytes)


def worker_means(alone: list[float], delays: "Delays | None") -> list[float]:
    if not delays:
        return alone
    import numpy as np

    return delays.expected(len(alone), np.array(alone)).worker_s.tolist()


def _transfer_s(shared: Server, worker: int, delays: "Delays | None") -> float:
    divisor = delays.bandwidth_divisor(worker) if delays else 1.0
    slower = min(shared.worker.bandwidth / divisor, shared.bandwidth)
    return shared.worker.latency_s + shared.message_bytes / slower
