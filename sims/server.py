"""The server world: how a parameter server does under uneven workers, by events in virtual time."""

from collections.abc import Callable
from functools import partial

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers.delays import Delays
from jaxdp.timeline import Timeline
from sims import server_fifo
from sims.outcome import Outcome
from sims.scenario import Scenario
from sims.server_world import NS, Learner, ServerSimulation
from sims.strategy import Strategy


def simulate(
    scenario: Scenario,
    strategy: Strategy,
    delays: Delays,
    timeline: Timeline | None = None,
    learner: Learner | None = None,
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """Runs until steps * workers pushes have arrived; the first tenth of them is warm-up."""
    world = ServerSimulation(scenario, strategy, delays, timeline, learner)
    total, warm = scenario.steps * scenario.workers, scenario.steps // 10 * scenario.workers
    run = partial(server_fifo.run, world) if world.plain else world.run
    run(warm)
    start, world.staleness = _Mark(world), {}
    for tenth in range(1, 11):
        run(warm + (total - warm) * tenth // 10)
        if progress:
            progress(tenth / 10)
    return _outcome(scenario, world, start, _Mark(world))


class _Mark:
    """The counters at one moment."""

    def __init__(self, world: ServerSimulation) -> None:
        self.now_ns = world.now_ns
        self.applied = world.applied
        self.updates = world.updates
        self.waited_ns = world.waited_ns
        self.stale = np.array([world.stale_sum, world.stale_count])
        self.applications = world.pushes
        ahead = [max(0, end - max(self.now_ns, start)) for start, end in zip(world.start, world.end, strict=True)]
        self.busy_ns = np.array(world.busy_ns) - np.array(ahead)


def _outcome(scenario: Scenario, world: ServerSimulation, start: _Mark, end: _Mark) -> Outcome:
    window_ns = end.now_ns - start.now_ns
    if window_ns <= 0:
        raise BadInput("compute_s: no time passed in the simulation; give compute_s or delays that take time")
    computed_ns = max(float(end.busy_ns.sum()), 1.0)
    return Outcome(
        virtual_time_s=end.now_ns * NS,
        steps=scenario.steps,
        window_s=window_ns * NS,
        updates=end.updates - start.updates,
        useful=end.applied - start.applied,
        wasted=min(1.0, world.wasted_ns / computed_ns),
        busy_s=(end.busy_ns - start.busy_ns) * NS,
        mean_step_s=np.array(world.step_ns) * NS / np.maximum(world.steps_begun, 1),
        staleness=dict(sorted(world.staleness.items())),
        worker_staleness=_mean_staleness(end.stale - start.stale),
        server_busy_share=(end.applications - start.applications) * world.apply_ns / window_ns,
        server_queue=(end.waited_ns - start.waited_ns) / window_ns,
    )


def _mean_staleness(stale: np.ndarray) -> list[float | None]:
    """Of each worker's applied gradients; None for a worker without any."""
    return [total / count if count else None for total, count in stale.T.tolist()]
