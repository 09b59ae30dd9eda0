"""What the tests of the parameter server share: a small bigram model whose compiling takes no time, and its data."""

import functools
import json
import time
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.config import Config, StrategyConfig, build
from jaxdp.data.batch import Batch
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import make_layout
from jaxdp.mesh.step import MeshStep, make_step
from jaxdp.models.loss import cross_entropy_sum
from jaxdp.recipe import Recipe, TrainState, make_recipe
from jaxdp.server.core import Push, Server, Update
from jaxdp.server.loop import Loop
from jaxdp.server.messages import Applied, Arrived, Message, PullGrant, PullRequest
from jaxdp.server.metrics import Spans
from jaxdp.server.run import ServerRun
from jaxdp.server.shards import LocalShards
from jaxdp.server.worker import Worker
from jaxdp.strategies import rules
from jaxdp.task import Params, Task, Unshard

VOCAB, WIDTH, CONTEXT, BATCH = 32, 8, 16, 8


def config(workers: int, *, batch: int = BATCH, optimizer: dict[str, Any] | None = None, **server: Any) -> Config:
    stragglers = server.pop("stragglers", "")
    return build(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32, "context": CONTEXT, "vocab": 256},
            "optim": {"learning_rate": 1e-2, "warmup_steps": 4, "clip": 0.1, **(optimizer or {})},
            "train": {"global_batch": batch, "steps": 60, "compute_dtype": "float32"},
            "strategy": {"name": "ps", "min_shard_bytes": 0},
            "server": {"workers": workers, **server},
            "stragglers": stragglers,
        }
    )


def server_run(config: Config, **options: Any) -> ServerRun:
    """A run of the bigram model over the host's devices; compiled functions are shared between the tests."""
    data: Any = Bigrams(config.train.global_batch)
    run = ServerRun(config, data, jax.devices(), recipe=bigram_recipe(config), **options)
    key = (run.workers, config.train.global_batch, config.server.shards, config.server.devices_per_worker)
    if key not in _COMPILED:
        run.compile()
        _COMPILED[key] = run.members
    run.members = _COMPILED[key]
    optimizer = config.optim.model_dump_json()
    if optimizer not in _INITIAL:
        _INITIAL[optimizer] = run.initial_state()
    run.initial_state = lambda: jax.tree.map(jnp.copy, _INITIAL[optimizer])  # the taker may donate it
    return run


_COMPILED: dict[Any, list[Worker]] = {}
_INITIAL: dict[str, TrainState] = {}


def plain_step(config: Config, devices: int) -> MeshStep:
    """The same task's step under DDP."""
    return _plain_step(config.optim.model_dump_json(), config.train.steps, devices)


@functools.cache
def _plain_step(optimizer_json: str, steps: int, devices: int) -> MeshStep:
    mesh = make_mesh({rules.DATA_AXIS: devices}, jax.devices()[:devices])
    recipe = _bigram_recipe(optimizer_json, steps)
    return make_step(recipe, make_layout(recipe, StrategyConfig().rule, mesh))


def bigram_recipe(config: Config) -> Recipe:
    return _bigram_recipe(config.optim.model_dump_json(), config.train.steps)


@functools.cache
def _bigram_recipe(optimizer_json: str, steps: int) -> Recipe:
    """Embedding, two layers of tanh, and the embedding again; blocks and a root as the real model has."""

    def init_params(key: jax.Array) -> Params:
        embed, layers = jax.random.split(key)
        return {
            "blocks": {"w": jax.random.normal(layers, (2, WIDTH, WIDTH)) * 0.3},
            "embed": jax.random.normal(embed, (VOCAB, WIDTH)) * 0.3,
            "final_norm": jnp.ones((WIDTH,)),
        }

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, *, train: bool = True) -> tuple[jax.Array, jax.Array]:
        root = unshard("", {name: leaf for name, leaf in params.items() if name != "blocks"})

        def layer(x_NxD: jax.Array, shards: Params) -> tuple[jax.Array, None]:
            return x_NxD + jnp.tanh(x_NxD @ unshard("blocks", shards)["w"]), None

        x_NxD, _ = jax.lax.scan(layer, root["embed"][batch.inputs_BxT.reshape(-1)], params["blocks"])
        logits_NxV = (x_NxD * root["final_norm"][None, :]) @ root["embed"].T
        return cross_entropy_sum(logits_NxV, batch.targets_BxT.reshape(-1), batch.weights_BxT.reshape(-1))

    task = Task(
        init_params=init_params,
        loss_sum=loss_sum,
        open_data=lambda global_batch, seed: Bigrams(global_batch),
        unit="tokens",
        units_per_example=CONTEXT,
        blocks=("blocks",),
    )
    return make_recipe(build({"optim": json.loads(optimizer_json), "train": {"steps": steps}}), "cpu", task)


class Bigrams:
    """A stream like `data.pipeline.Data`: the next token is mostly 3x + 1, and rows are padded unevenly."""

    def __init__(self, batch: int = BATCH) -> None:
        self.global_batch = batch

    def batch(self, step: int) -> Batch:
        random = np.random.default_rng(step)
        tokens = np.empty((self.global_batch, CONTEXT + 1), np.int32)
        tokens[:, 0] = random.integers(0, VOCAB, self.global_batch)
        for place in range(CONTEXT):
            noise = random.integers(0, VOCAB, self.global_batch)
            follows = (3 * tokens[:, place] + 1) % VOCAB
            tokens[:, place + 1] = np.where(random.random(self.global_batch) < 0.8, follows, noise)
        valid = random.integers(0, CONTEXT + 1, self.global_batch)
        weights = (np.arange(CONTEXT)[None, :] < valid[:, None]).astype(np.float32)
        positions = step * self.global_batch + np.arange(self.global_batch)
        return Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), weights, positions.astype(np.uint32))

    def rows(self, step: int, start: int, count: int) -> Batch:
        return Batch(*(leaf[start : start + count] for leaf in self.batch(step)))

    def eval_batches(self, batch_size: int, rows: slice | None = None) -> Any:
        yield self.batch(2**20)

    def describe(self) -> dict[str, Any]:
        return {"corpus": "bigrams", "sha256": "0"}


class RoundRobin:
    """An engine without threads or time: a worker computes at once, and pushes arrive in the order of the grants."""

    def __init__(self, run: ServerRun, shards: LocalShards, workers: int) -> None:
        self.workers = workers
        self.parameter_bytes = run.plan.bytes
        self.run = run
        self.shards = shards
        self.queue: deque[Message] = deque(PullRequest(worker) for worker in range(workers))

    def give(self, grant: PullGrant) -> None:
        member = self.run.members[0]
        params = member.load(grant.reading.parts)
        grant.reading.release()
        place = grant.sequence * self.workers + grant.worker
        sums = member.gradient(params, self.run.data.rows(place, 0, BATCH))
        spans = Spans(time.perf_counter())
        self.queue.append(Arrived(grant.worker, grant.sequence, grant.version, member.to_host(sums), spans))

    def take(self, timeout_s: float) -> Message | None:
        return self.queue.popleft() if self.queue else None

    def backlog(self) -> int:
        return len(self.queue)

    def silent_s(self, worker: int) -> float:
        return 0.0

    def read(self, version: int) -> Any:
        return self.shards.read(version)

    def apply(self, update: Update, step: float) -> Applied:
        return self.shards.apply(update, step)

    def norm(self, push: Push) -> float:
        return self.shards.norm(push)

    def forget(self, before: int) -> None:
        self.shards.forget(before)

    def save(self, core: dict[str, Any]) -> None:
        pass

    def state(self, step: int) -> Any:
        return self.shards.state(step)

    def close(self) -> None:
        pass


def round_robin(setting: Config, workers: int, batch: int = BATCH) -> Loop:
    """A loop over `workers` equal workers, each with batches of `batch` rows, deterministic and in no time."""
    one = setting.model_copy(update={"server": setting.server.model_copy(update={"workers": 1})})
    run = server_run(one.model_copy(update={"train": one.train.model_copy(update={"global_batch": batch})}))
    server = setting.server
    shards = LocalShards(
        run.plan,
        run.initial_state(),
        keep_pulled=server.correction == "delay_compensation",
        compensation=server.compensation,
        skip_nonfinite=False,
    )
    core = Server(server.resolved_policy, correction=server.correction)
    return Loop(setting, core, RoundRobin(run, shards, workers))
