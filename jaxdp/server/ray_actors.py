"""What runs inside a Ray cluster's processes: one server shard, and one worker. No Ray in here.

Configs travel as JSON, parameters and gradients as NumPy arrays.
"""

import json
import time
from typing import Any

import jax
import numpy as np

from jaxdp.config import build
from jaxdp.recipe import make_recipe
from jaxdp.server.arrays import Shard, host_device, make_update, owned
from jaxdp.server.partition import Leaves
from jaxdp.server.shard_plan import ShardPlan, tree_like
from jaxdp.server.worker import Worker, rows_per_worker
from jaxdp.stragglers import delays as delay_models
from jaxdp.stragglers.injector import Injector
from jaxdp.task import by_path
from jaxdp.workload import open_data


class ShardActor:
    """One server shard. After a restart it holds nothing, until `load` gives it the saved state."""

    def __init__(self, config_json: str, index: int) -> None:
        config = build(json.loads(config_json))
        recipe = make_recipe(config, "cpu")
        plan = ShardPlan(recipe, config.server.shards)
        self._opt_state_like = plan.abstract_opt_state(plan.cuts[index])
        self._functions = make_update(recipe, config.server.compensation)
        self._keep = config.server.correction == "delay_compensation"
        self._shard: Shard | None = None

    def load(self, params: Leaves, opt_state: Leaves) -> None:
        tree = tree_like(self._opt_state_like, opt_state)
        self._shard = Shard(self._functions, *owned((params, tree), host_device()))

    def ready(self) -> bool:
        return True

    def read(self, version: int) -> Leaves:
        if self._keep:
            self.shard.keep(version)
        return {name: np.asarray(leaf) for name, leaf in self.shard.params.items()}

    def forget(self, before: int) -> None:
        self.shard.forget(before)

    def prepare(self, tokens: list[float], versions: list[int], *grads: Leaves) -> float:
        return self.shard.prepare(grads, tokens, versions)

    def commit(self, tokens: float, norm: float, step: float, scale: float) -> float:
        return self.shard.commit(tokens, norm, step, scale)

    def state(self) -> tuple[Leaves, Leaves]:
        """Parameters and optimizer state by name."""
        copied = jax.tree.map(np.array, (self.shard.params, by_path(self.shard.opt_state)))
        return copied[0], copied[1]

    @property
    def shard(self) -> Shard:
        if self._shard is None:
            raise RuntimeError("this shard was restarted and holds nothing yet")
        return self._shard


class WorkerActor:
    """One worker on the devices that its process sees."""

    def __init__(self, config_json: str, index: int, workers: int) -> None:
        config = build(json.loads(config_json))
        devices = jax.local_devices()[: config.server.devices_per_worker]
        recipe = make_recipe(config, devices[0].platform)
        self._index = index
        self._count = rows_per_worker(config, workers)
        self._data = open_data(config)
        self._worker = Worker(config, recipe, ShardPlan(recipe, config.server.shards), devices)
        self._worker.compile(self._rows(0))
        delays = delay_models.parse(config.stragglers, config.train.seed, "stragglers")
        self._injector = Injector(delays)

    def ready(self) -> bool:
        return True

    def step(self, sequence: int, at_s: float, *parts: Leaves) -> tuple[Any, ...]:
        """What is to be told of a step begun `at_s` into the run, then the gradient's part for each server shard."""
        start_s = time.perf_counter()
        self._injector.origin_s = start_s - at_s
        params = self._worker.load(parts)
        self._injector.slow_link(self._index, time.perf_counter() - start_s)
        loaded_s = time.perf_counter()
        batch = self._rows(sequence)
        rows_s = time.perf_counter()
        sums = self._worker.gradient(params, batch)
        intended_s, down = self._injector.hold(self._index, sequence, loaded_s)
        computed_s = time.perf_counter()
        if down:
            self._injector.recover(self._index)
        gradient = self._worker.to_host(sums)
        self._injector.slow_link(self._index, time.perf_counter() - computed_s)
        told = {
            "loss": gradient.loss,
            "tokens": gradient.tokens,
            "down": down,
            "target_s": intended_s,
            "data_wait_s": rows_s - loaded_s,
            "pull_s": loaded_s - start_s,
            "compute_s": computed_s - loaded_s,
            "push_s": time.perf_counter() - computed_s,
        }
        return (told, *gradient.parts)

    def _rows(self, sequence: int) -> Any:
        return self._data.rows(sequence, self._index * self._count, self._count)
