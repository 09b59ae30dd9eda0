"""Seconds that collectives and server transfers take (alpha-beta model).

`whole` is the size of the whole array in bytes (what a gather ends with, what a reduction starts from),
`n` the number of devices that take part, `Link.bandwidth` one way a device.
"""

import bisect
import math
from typing import NamedTuple

# The passes over its ring that a collective makes.
COLLECTIVES = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}


class Link(NamedTuple):
    """`rounds`, where a collective was measured, are its (bytes, seconds) of a round, by size, in place of the formula.

    Libraries change their protocol with the message's size, so that no line fits them all.
    """

    bandwidth: float  # bytes/s
    latency_s: float = 0.0
    rounds: tuple[tuple[float, float], ...] = ()

    def send(self, size: float) -> float:
        """Seconds of one round in which each device sends `size` bytes."""
        return interpolate(self.rounds, size) if self.rounds else self.latency_s + size / self.bandwidth

    def faster(self, factor: float) -> "Link":
        """The same latency, `factor` times the bandwidth."""
        least = self.rounds[0][1] if self.rounds else 0.0
        rounds = tuple((size, least + (spent - least) / factor) for size, spent in self.rounds)
        return Link(self.bandwidth * factor, self.latency_s, rounds)


def interpolate(points: tuple[tuple[float, float], ...], x: float) -> float:
    """y at x, linear between points of growing x and y: at least the first y, beyond the last as before it."""
    last = max(1, min(bisect.bisect_left(points, (x,)), len(points) - 1))
    (x0, y0), (x1, y1) = points[last - 1], points[last]
    return max(y0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def ring_pass(whole: float, n: int, link: Link) -> float:
    """An all-gather or a reduce-scatter: n-1 rounds in which each device passes on one n-th."""
    return (n - 1) * link.send(whole / n) if n > 1 else 0.0


def ring_all_reduce(whole: float, n: int, link: Link) -> float:
    """A reduce-scatter and an all-gather (Patarasu and Yuan, 2009): 2(n-1)(alpha + M/nB)."""
    return 2 * ring_pass(whole, n, link)


def tree_all_reduce(whole: float, n: int, link: Link) -> float:
    """A pipelined double binary tree (Sanders et al., 2009): about 2 log2(n) alpha + 2M/B."""
    return 2 * math.ceil(math.log2(n)) * link.latency_s + 2 * whole / link.bandwidth if n > 1 else 0.0


def all_reduce(whole: float, n: int, link: Link) -> float:
    """The faster of ring and tree, as communication libraries choose; what was measured is a ring's."""
    if link.rounds:
        return ring_all_reduce(whole, n, link)
    return min(ring_all_reduce(whole, n, link), tree_all_reduce(whole, n, link))


def two_level_pass(whole: float, g: int, m: int, inside: Link, across: Link) -> float:
    """An all-gather or a reduce-scatter over g devices on each of m hosts, one level after the other.

    Each of the g rings across hosts carries a g-th of the array, so that a host's NICs all work.
    """
    return ring_pass(whole, g, inside) + ring_pass(whole / g, m, across)


def two_level_all_reduce(whole: float, g: int, m: int, inside: Link, across: Link) -> float:
    """2(g-1)/g M/B_intra + 2(m-1)/m M/(g B_nic), and the latencies."""
    return 2 * ring_pass(whole, g, inside) + all_reduce(whole / g, m, across)


def server_transfer(size: float, n: int, servers: int, worker: Link, server: Link) -> float:
    """All n workers pull, or all push, `size` bytes at once: the slower of a worker's and the servers' NICs."""
    return worker.latency_s + max(size / worker.bandwidth, n * size / (servers * server.bandwidth))


def server_round(size: float, n: int, servers: int, worker: Link, server: Link) -> float:
    """Pull and push: 2 alpha + 2 max(M/B_worker, n M/(S B_server))."""
    return 2 * server_transfer(size, n, servers, worker, server)


def async_rate(cycles_s: list[float], size: float, servers: int, server_bandwidth: float, apply_s: float) -> float:
    """Updates a second that n workers reach, each bound by its own cycle, together by the servers' NICs or applying.

    Source: the operational bounds of closed queueing networks (Denning and Buzen, 1978).
    """
    workers = sum(1 / cycle for cycle in cycles_s)
    network = servers * server_bandwidth / size if size else math.inf
    return min(workers, network, 1 / apply_s if apply_s else math.inf)


def byteps_round(whole: float, n: int, extra_hosts: int, bandwidth: float) -> float:
    """Pull and push with k CPU hosts besides n workers, loads balanced: 2n(n-1)M / ((n^2 + kn - 2k)B).

    Source: Jiang et al., OSDI 2020. With k = 0 it equals the ring, with k = n it is M/B.
    """
    k = extra_hosts
    return 2 * n * (n - 1) * whole / ((n * n + k * n - 2 * k) * bandwidth)
