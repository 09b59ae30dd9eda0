"""Speed of the simulator against SimPy with the same model, in one run; needs `pip install simpy`.

    python benchmarks/sim_speed.py            # about half a minute on a laptop
    python benchmarks/sim_speed.py --json

Both simulate an asynchronous parameter server of S shards: compute, push through the server's link, serial
application, acknowledgement that carries the next pull through the server's other link. SimPy's shards are
resources of their own. End time and staleness must agree before any speed is printed.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from jaxdp.stragglers.delays import parse
from sims import barrier, server
from sims.scenario import Scenario
from sims.strategy import Strategy

LATENCY_S, LINK_S, APPLY_S, MEAN_S = 10e-6, 2e-3, 3e-3, 0.1
MESSAGE_BYTES = 10**6
GBPS = MESSAGE_BYTES * 8 / LINK_S / 1e9


def scenario(workers: int, steps: int, shards: int) -> Scenario:
    return Scenario(
        workers=workers,
        steps=steps,
        stragglers=f"exponential(mean_s={MEAN_S})",
        latency_s=LATENCY_S,
        apply_s=APPLY_S,
        message_bytes=MESSAGE_BYTES,
        server_nic_gbps=GBPS,
        strategies=(Strategy(name="ps", server_shards=shards),),
    )


def simulate_with_simpy(workers: int, steps: int, shards: int) -> tuple[float, float]:
    """(virtual seconds of steps * workers pushes, their mean staleness after a tenth), with SimPy."""
    delays = parse(f"exponential(mean_s={MEAN_S})")
    sums, _ = delays.block(np.arange(workers), np.arange(4 * steps + 64), 0.0)
    draws = [[round(seconds * 1e9) for seconds in column] for column in sums.T.tolist()]
    latency, link, apply = round(LATENCY_S * 1e9), round(LINK_S / shards * 1e9), round(APPLY_S / shards * 1e9)
    env = simpy.Environment()
    outs, ins, applies = ([simpy.Resource(env, 1) for _ in range(shards)] for _ in range(3))
    total, warm = steps * workers, steps // 10 * workers
    versions, staleness, finished = [0] * shards, [], env.event()

    def hold(resource: simpy.Resource, duration: int) -> Generator[simpy.Event, Any, None]:
        with resource.request() as request:
            yield request
            yield env.timeout(duration)

    def push(shard: int, seen: int) -> Generator[simpy.Event, Any, None]:
        yield from hold(ins[shard], link)
        yield from hold(applies[shard], apply)
        if shard == 0:
            staleness.append(versions[0] - seen)
        versions[shard] += 1
        if versions[-1] == total and not finished.triggered:
            finished.succeed()

    def together(make: Callable[[int], Generator[simpy.Event, Any, None]]) -> Generator[simpy.Event, Any, None]:
        if shards == 1:
            yield from make(0)
        else:
            yield env.all_of([env.process(make(shard)) for shard in range(shards)])

    def worker(index: int) -> Generator[simpy.Event, Any, None]:
        for duration in draws[index]:
            seen = versions[0]
            yield from together(lambda shard: hold(outs[shard], link))
            yield env.timeout(latency + duration + latency)  # one event where three would be natural
            yield from together(lambda shard, seen=seen: push(shard, seen))

    for index in range(workers):
        env.process(worker(index))
    env.run(until=finished)
    return env.now * 1e-9, statistics.fmean(staleness[warm:total])


def simulate_here(workers: int, steps: int, shards: int) -> tuple[float, float]:
    case = scenario(workers, steps, shards)
    outcome = server.simulate(case, case.strategies[0], case.delays_of(0))
    mean = sum(stale * count for stale, count in outcome.staleness.items()) / sum(outcome.staleness.values())
    return outcome.virtual_time_s, mean


def barrier_world(workers: int, steps: int) -> float:
    """Worker-steps per second of DDP under exponential delays."""
    case = Scenario(
        workers=workers, steps=steps, stragglers="exponential(mean_s=1)", strategies=(Strategy(name="ddp"),)
    )
    return workers * steps / best_of(lambda: barrier.simulate(case, case.strategies[0], case.delays_of(0)))


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """The least processor seconds of a few runs (not wall-clock: other work on the machine would count)."""
    seconds = []
    for _ in range(times):
        gc.collect()
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--updates", type=int, default=20_000, help="server updates in a run")
    arguments = parser.parse_args()
    rows = []
    for workers, shards in ((8, 1), (64, 1), (8, 4), (64, 4)):
        steps = max(20, arguments.updates // workers)
        ours, theirs = (f(workers, steps, shards) for f in (simulate_here, simulate_with_simpy))
        agree = abs(ours[0] / theirs[0] - 1) < 1e-9 and abs(ours[1] - theirs[1]) < 1e-9
        here = best_of(lambda w=workers, k=steps, s=shards: simulate_here(w, k, s))
        simpy_s = best_of(lambda w=workers, k=steps, s=shards: simulate_with_simpy(w, k, s))
        rows.append(
            {
                "workers": workers,
                "shards": shards,
                "updates_per_second": steps * workers / here,
                "simpy_updates_per_second": steps * workers / simpy_s,
                "ratio": simpy_s / here,
                "same_result": agree,
            }
        )
    barriers = {str(workers): barrier_world(workers, 2**21 // workers) for workers in (8, 32, 256)}
    if arguments.json:
        json.dump({"server": rows, "barrier_worker_steps_per_second": barriers}, sys.stdout, indent=2)
        print()
    else:
        for row in rows:
            print(
                f"{row['workers']:3d} workers, {row['shards']} shards: {row['updates_per_second']:9,.0f} updates/s, "
                f"SimPy {row['simpy_updates_per_second']:7,.0f}: {row['ratio']:5.1f} times"
                + ("" if row["same_result"] else "  RESULTS DIFFER")
            )
        for workers, rate in barriers.items():
            print(f"{workers:>3} workers: {rate / 1e6:5.1f} million worker-steps/s in the barrier world")
    return 0 if all(row["same_result"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
