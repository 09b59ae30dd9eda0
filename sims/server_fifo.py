"""Asynchronous updates through FIFO queues, one heap operation each: the quick way through a `ServerSimulation`.

Pushes are applied in the order they arrive, and each acknowledgement carries the next pull, so all that
follows from a push is known when it arrives. A test holds it equal to the event loop and its state machine.
"""

import heapq

from sims.server_world import DRAWN_STEPS, PUSH, ServerSimulation


def run(world: ServerSimulation, pushes: int) -> None:
    """Goes on until that many pushes have been applied; see `ServerSimulation.run`."""
    events, replace = world.events, heapq.heapreplace
    server_ns, apply_ns, latency_ns = world.server_ns, world.apply_ns, world.latency_ns
    worker_ns, sequence, version = world.worker_ns, world.sequence, world.version
    started, ended, busy_ns, duration = world.start, world.end, world.busy_ns, world.duration
    out_free, in_free, apply_free = world.out_free_ns, world.in_free_ns, world.apply_free_ns
    staleness, waited, count, drawn = world.staleness, world.waited_ns, world.count, world.drawn
    first_drawn, updates, stale_sum = world.first_drawn, world.updates, world.stale_sum
    for update in range(updates, pushes):
        now, _, _, worker = events[0]
        begun = in_free if in_free > now else now
        in_free = begun + server_ns
        received = begun + worker_ns[worker]
        apply_free = (apply_free if apply_free > received else received) + apply_ns
        waited += apply_free - received
        stale = update - version[worker]
        staleness[stale] = staleness.get(stale, 0) + 1
        stale_sum[worker] += stale

        version[worker] = update + 1
        step = sequence[worker] = sequence[worker] + 1
        begun = out_free if out_free > apply_free else apply_free
        out_free = begun + server_ns
        started[worker] = start = begun + worker_ns[worker] + latency_ns
        place = step - first_drawn[worker]
        nanoseconds = drawn[worker][place] if place < DRAWN_STEPS else duration(worker, start)
        ended[worker] = end = start + nanoseconds
        busy_ns[worker] += nanoseconds
        count += 1
        replace(events, (end + latency_ns, PUSH, count, worker))
    if pushes > updates:
        world.now_ns = apply_free
    world.out_free_ns, world.in_free_ns, world.apply_free_ns = out_free, in_free, apply_free
    world.pushes = world.applied = world.updates = max(updates, pushes)
    world.waited_ns, world.count = waited, count
    world.stale_count = list(sequence)
    world.step_ns = list(busy_ns)
    world.steps_begun = [step + 1 for step in sequence]
