"""What one worker computes: parameters onto its devices, the gradient of its rows, and back to the host.

Inside, a worker is a mesh strategy over its own devices (one device: the same program without collectives).
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import logical, make_layout, store
from jaxdp.mesh.step import make_evaluate, make_gradients
from jaxdp.recipe import Recipe
from jaxdp.server.partition import Leaves
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.server.shards import Gradient
from jaxdp.task import Batch, by_path

ALIGNMENT = 64  # bytes; XLA's CPU backend then uses a NumPy buffer as it is


class Worker:
    """The compiled gradient of one worker. The parameters of a load last until the second load after it."""

    def __init__(self, config: Config, recipe: Recipe, plan: ShardPlan, devices: Sequence[jax.Device]) -> None:
        strategy = config.strategy.model_copy(update={"name": config.server.worker_strategy})
        mesh = make_mesh(strategy.axis_sizes(len(devices)), devices)
        self.plan = plan
        self.device = devices[0]
        self.layout = make_layout(recipe, strategy.rule, mesh)
        self._shardings = self.layout.shardings(self.layout.params)
        self._batch_sharding = jax.NamedSharding(mesh, self.layout.batch)
        self._gradients = jax.jit(make_gradients(recipe, self.layout, config.train.accumulation))
        self.compiled: Any = self._gradients  # until compiled ahead of time
        self._evaluate = jax.jit(make_evaluate(recipe, self.layout))
        self._on_host = len(devices) == 1 and self.device.platform == "cpu"
        self._buffers: deque[Leaves] = deque(maxlen=2)  # one is loaded while the other is computed with

    def compile(self, batch: Batch) -> None:
        """Ahead of time, for the shapes of the worker's batches."""
        params = jax.tree.map(
            lambda leaf, placement, sharding: jax.ShapeDtypeStruct(
                placement.stored_shape, leaf.dtype, sharding=sharding
            ),
            self.plan.params,
            self.layout.params,
            self._shardings,
        )
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._batch_sharding), batch
        )
        self.compiled = self._gradients.lower(params, rows).compile()

    def load(self, parts: Sequence[Leaves], *, own_buffers: bool = True) -> Any:
        """A copy of the server's parameters on the worker's devices, laid out as its strategy wants them."""
        own_buffers = own_buffers and self._on_host
        if own_buffers:
            parts = [self._copy(parts)]
        leaves = self.plan.join([{name: np.asarray(leaf) for name, leaf in part.items()} for part in parts])
        return jax.block_until_ready(
            jax.device_put(store(leaves, self.layout.params), self._shardings, may_alias=own_buffers)
        )

    def _copy(self, parts: Sequence[Leaves]) -> Leaves:
        """Into buffers that stay: fresh memory would be paged in at a quarter of the speed."""
        if len(self._buffers) < 2:
            self._buffers.append({name: aligned_empty(shape) for name, shape in self.plan.shapes.items()})
        else:
            self._buffers.rotate()
        buffers = self._buffers[-1]
        for part, cut in zip(parts, self.plan.cuts, strict=True):
            for name, (first, last) in cut.items():
                np.copyto(buffers[name].reshape(-1)[first:last], np.asarray(part[name]).reshape(-1))
        return buffers

    def gradient(self, params: Any, batch: Batch) -> Any:
        """The sums over the batch, on the worker's devices; waits for them."""
        return jax.block_until_ready(self.compiled(params, self.put(batch)))

    def put(self, batch: Batch) -> Batch:
        return jax.device_put(batch, self._batch_sharding)

    def to_host(self, sums: Any) -> Gradient:
        """The payload of a push: NumPy arrays, cut as the server's shards are."""
        sums = jax.device_get(sums)
        grads = logical(sums.grads, self.layout.optimizer)
        return Gradient(self.plan.split(by_path(grads)), float(sums.loss), float(sums.units))

    def loss(self, params: Any, batch: Batch) -> tuple[float, float]:
        """The sum of the losses of a batch without training it, and the valid tokens."""
        total, tokens = jax.device_get(self._evaluate(params, self.put(batch)))
        return float(total), float(tokens)


def rows_per_worker(config: Config, workers: int) -> int:
    """Sequences in a push; raises `BadInput` where workers, devices or microbatches don't divide the batch."""
    batch, server = config.train.global_batch, config.server
    units = workers * server.devices_per_worker * config.train.accumulation
    if batch % units:
        raise BadInput(
            f"train.global_batch: {batch} sequences over {workers} workers x {server.devices_per_worker} devices x "
            f"{config.train.accumulation} microbatches leave a remainder; try {math.ceil(batch / units) * units}"
        )
    return batch // workers


def devices_of(config: Config, devices: Sequence[jax.Device]) -> list[list[jax.Device]]:
    """Each worker's devices: `server.workers` of them, by default as many as the devices suffice for.

    Workers of one device each may share devices; else raises `BadInput` if there are too few.
    """
    each = config.server.devices_per_worker
    workers = config.server.workers or len(devices) // each
    if workers < 1 or (each > 1 and workers * each > len(devices)):
        raise BadInput(
            f"{max(1, workers)} worker(s) of {each} devices: only {len(devices)} device(s) here; ask for fewer"
        )
    if each == 1:
        return [[devices[worker % len(devices)]] for worker in range(workers)]
    return [list(devices[worker * each : (worker + 1) * each]) for worker in range(workers)]


def aligned_empty(shape: tuple[int, ...]) -> np.ndarray:
    """A float32 array whose memory XLA can use as it is."""
    size = 4 * math.prod(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(np.float32).reshape(shape)
