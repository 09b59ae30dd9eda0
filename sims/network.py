"""How long messages take: collectives over the slowest link, and the server's link shared fairly."""

import math
from collections import deque

import numpy as np

from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.network import Link, ring_pass
from jaxdp.stragglers.delays import Delays
from jaxdp.strategies.rows import STRATEGIES
from jaxdp.strategies.rules import DATA_AXIS
from jaxdp.strategies.volume import Step
from sims.scenario import Scenario
from sims.strategy import Strategy


def ring_passes(strategy: Strategy) -> float:
    """Over the message in a step, by the strategy's own formula."""
    step = Step(block_parameters=1, root_parameters=0, axis_sizes={DATA_AXIS: 2})
    return STRATEGIES[strategy.like].least_bytes(step) / (step.share(DATA_AXIS) * PARAMETER_BYTES)


def bytes_per_second(gbps: float) -> float:
    return gbps * 1e9 / 8


def worker_bandwidths(scenario: Scenario, delays: Delays) -> np.ndarray:
    """Bytes per second of each worker's link, its `link` delays applied."""
    nic = bytes_per_second(scenario.nic_gbps)
    return np.array([nic / delays.bandwidth_divisor(worker) for worker in range(scenario.workers)])


def collective_s(strategy: Strategy, scenario: Scenario, delays: Delays) -> float:
    """Seconds of a mesh strategy's collectives in a step that no computing hides.

    By the cost model where the scenario has hardware; on a bare network rings over the slowest link, hiding nothing.
    """
    updates = scenario.workers if strategy.name == "ddp_small_batch" else 1
    if scenario.predicted:
        return updates * scenario.predicted.exposed_s(strategy.like, scenario.base_s(strategy), delays)
    slowest = Link(float(worker_bandwidths(scenario, delays).min()), scenario.latency_s)
    return updates * ring_passes(strategy) * ring_pass(scenario.message_bytes, scenario.workers, slowest)


def transfer_ns(message_bytes: float, bandwidth: float) -> int:
    return 0 if math.isinf(bandwidth) else round(message_bytes / bandwidth * 1e9)


class SharedLink:
    """A link whose transfers, all of one size, share its bandwidth equally (processor sharing).

    With k under way each advances at rate 1/k, so they end in the order they began, and a fluid clock that
    runs at rate 1/k tells when: a transfer ends when the clock has advanced by its duration alone.
    """

    def __init__(self, alone_ns: int) -> None:
        self.alone_ns = alone_ns
        self.fluid = 0.0
        self.now_ns = 0
        self.under_way: deque[tuple[float, int, int]] = deque()  # (fluid end, start_ns, worker)

    def begin(self, now_ns: int, worker: int) -> None:
        self._advance(now_ns)
        self.under_way.append((self.fluid + self.alone_ns, now_ns, worker))

    def next_end_ns(self) -> int | None:
        """When the oldest transfer ends if none begins before."""
        if not self.under_way:
            return None
        remaining = max(0.0, self.under_way[0][0] - self.fluid)
        return self.now_ns + math.ceil(remaining * len(self.under_way))

    def end(self, now_ns: int) -> tuple[int, int]:
        """Ends the oldest transfer; its (start_ns, worker)."""
        self._advance(now_ns)
        _, start_ns, worker = self.under_way.popleft()
        return start_ns, worker

    def _advance(self, now_ns: int) -> None:
        if self.under_way:
            self.fluid += (now_ns - self.now_ns) / len(self.under_way)
        self.now_ns = now_ns
