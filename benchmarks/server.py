"""What the parameter server costs: python benchmarks/server.py [copies|overhead|uneven|ray ...] [--mebibytes 200]

copies    pulls and pushes on the threads engine into buffers of their own, over a plain memory copy (target 0.40)
ray       the same between processes of a Ray cluster on this machine (target 0.25)
overhead  tokens/s of one worker on the threads engine over the plain step's, in turns (target 0.95)
uneven    4 paced workers, one 4 times slower: the rate over the sum of the workers' own (target 0.95), and
          over that of a barrier, which waits for the slowest ((s(n-1)+1)/n = 3.25)

Run on a quiet machine. Writes benchmarks/results/server.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.config import load
from jaxdp.data.pipeline import open_data
from jaxdp.mesh.devices import claim
from jaxdp.recipe import make_recipe
from jaxdp.run.mesh_run import MeshRun
from jaxdp.server.partition import Leaves
from jaxdp.server.run import ServerRun
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.server.worker import Worker, aligned_empty
from jaxdp.task import Task

RESULT = Path(__file__).parent / "results" / "server.json"
REPEATS = 7


def seconds(action: Callable[[], Any]) -> float:
    """The median of several runs, after one that pages memory in."""
    action()
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def big_worker(mebibytes: int) -> Worker:
    """A worker of a model that is nothing but this many bytes, which is never computed with."""
    size = mebibytes * 2**18
    config = load(["nano"], ["strategy.name=ps"])
    task = Task(
        init_params=lambda key: {"blocks": {"w": jnp.zeros((1, size))}},
        loss_sum=lambda params, batch, unshard, *, train=True: (jnp.zeros(()), jnp.zeros(())),
        open_data=lambda global_batch, seed: open_data(config),
    )
    recipe = make_recipe(config, "cpu", task)
    return Worker(config, recipe, ShardPlan(recipe, 1), [jax.devices()[-1]])


def plain_copy_s(mebibytes: int) -> float:
    source, target = np.ones(mebibytes * 2**18, np.float32), np.zeros(mebibytes * 2**18, np.float32)
    return seconds(lambda: np.copyto(target, source))


def copies(mebibytes: int) -> dict[str, Any]:
    worker = big_worker(mebibytes)
    held = {"blocks.w": jax.device_put(jnp.ones((1, mebibytes * 2**18)), jax.devices()[0])}
    received = aligned_empty((1, mebibytes * 2**18))
    on_device = jax.device_put(held["blocks.w"], worker.device)
    plain = plain_copy_s(mebibytes)
    pull = seconds(lambda: worker.load([held]))
    push = seconds(lambda: np.copyto(received, jax.device_get(on_device)))
    return {"mebibytes": mebibytes, "plain_copy_s": plain, "pull_rate": plain / pull, "push_rate": plain / push}


class Holder:
    """An actor with a buffer of its own: what a shard or a worker does with what comes over the store."""

    def __init__(self, mebibytes: int) -> None:
        self.buffer = {"w": np.ones(mebibytes * 2**18, np.float32)}

    def read(self) -> Leaves:
        return self.buffer

    def write(self, leaves: Leaves) -> None:
        np.copyto(self.buffer["w"], leaves["w"])


def warm_store(action: Callable[[], Any], least_s: float = 4.0) -> None:
    """Until the object store hands out memory that was used before, as it does for all but a run's first seconds.

    Ray frees objects about once a second, so a new object meets fresh pages until that has gone round, and the
    kernel takes ten times longer to clear those than the copy takes.
    """
    until = time.perf_counter() + least_s
    while time.perf_counter() < until:
        action()


def on_ray(mebibytes: int) -> dict[str, Any]:
    import ray

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        server, worker = (ray.remote(Holder).remote(mebibytes) for _ in range(2))
        plain = plain_copy_s(mebibytes)
        warm_store(lambda: ray.get(worker.write.remote(server.read.remote())))
        pull = seconds(lambda: ray.get(worker.write.remote(server.read.remote())))
        push = seconds(lambda: ray.get(server.write.remote(worker.read.remote())))
    finally:
        ray.shutdown()
    return {"mebibytes": mebibytes, "plain_copy_s": plain, "pull_rate": plain / pull, "push_rate": plain / push}


def overhead(steps: int = 10, pairs: int = 7) -> dict[str, Any]:
    plain_config = load(["tiny"], ["strategy.name=ddp"])
    server_config = load(["tiny"], ["strategy.name=ps", "server.workers=1"])
    data, devices = open_data(plain_config), jax.devices()[:1]
    plain = MeshRun(plain_config, data, devices)
    with ServerRun(server_config, data, devices) as server:
        for run in (plain, server):
            run.compile()
            run.start()
            run.window(2)
        ratios = []
        for _ in range(pairs):
            bare = plain.window(steps)
            ours = server.window(steps, settle=True)
            ratios.append((bare.seconds / steps) / (ours.seconds / ours.steps))
        busy = server.loop.metrics.summary()["server_busy_share"]
    return {"rate_over_plain_step": statistics.median(ratios), "pairs": ratios, "server_busy_share": busy}


def uneven(workers: int = 4, factor: int = 4, pace_s: float = 0.5, steps: int = 40) -> dict[str, Any]:
    spec = f"pace(seconds={pace_s}),persistent(worker=0,factor={factor})"
    overrides = ["strategy.name=ps", f"server.workers={workers}", f'stragglers="{spec}"']
    config = load(["nano"], [*overrides, "model.layers=1", "model.width=32", "model.context=16"])
    with ServerRun(config, open_data(config), jax.devices()) as run:
        run.compile()
        run.start()
        run.window(2)
        run.loop.metrics.reset()
        window = run.window(steps, settle=True)
        summary = run.loop.metrics.summary()
    rate = window.steps * workers / window.seconds
    own = [1 / (pace_s * factor), *[1 / pace_s] * (workers - 1)]
    return {
        "rate_over_sum_of_own": rate / sum(own),
        "rate_over_barrier": rate / (workers * min(own)),
        "expected_over_barrier": (factor * (workers - 1) + 1) / workers,
        "staleness": summary["staleness"]["mean"],
        "idle_share": summary["idle_share"],
    }


def main() -> None:
    parts: dict[str, Callable[[int], dict[str, Any]]] = {
        "copies": copies,
        "ray": on_ray,
        "overhead": lambda _: overhead(),
        "uneven": lambda _: uneven(),
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--mebibytes", type=int, default=200)
    options = parser.parse_args()
    claim(None)
    found = {name: parts[name](options.mebibytes) for name in options.parts or parts}
    print(json.dumps(found, indent=2))
    RESULT.parent.mkdir(exist_ok=True)
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.write_text(json.dumps(kept | found, indent=2) + "\n")


if __name__ == "__main__":
    main()
