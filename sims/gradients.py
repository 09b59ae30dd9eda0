"""Real training in virtual time: the actual task, server core, server arrays and mesh step; only the clock is simulated.

A gradient is computed on the parameters that its worker pulled, so the loss against virtual time is a real
curve. Batches and initial values are those of a real run of the same config and seed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxdp.config import Config, load
from jaxdp.errors import BadInput
from jaxdp.learn.data import Data, open_data
from jaxdp.mesh.compile import build_step
from jaxdp.server.arrays import Gradient, LocalShards, Reading
from jaxdp.server.core import Update
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.server.worker import Worker, rows_per_worker
from sims import barrier, server
from sims.curve import Curve, Point
from sims.outcome import Outcome
from sims.setting import Setting
from sims.strategy import Strategy


@dataclass(frozen=True)
class Trained:
    """One strategy trained on one seed with one learning rate."""

    outcome: Outcome
    learning_rate: float
    points: tuple[Point, ...]


class ServerLearner:
    """`server_world.Learner` over the real arrays. All virtual workers share one compiled gradient."""

    def __init__(self, config: Config, data: Data, strategy: Strategy, curve: Curve) -> None:
        device = jax.devices()[0]
        workers = config.server.workers or 1
        self.task, _, step = build_step(_named(config, "ddp"), [device])
        plan = ShardPlan(self.task, strategy.server_shards)
        self.member = Worker(config, self.task, plan, [device])
        self.shards = LocalShards(
            plan,
            step.init(config.train.seed),
            keep_pulled=strategy.correction == "delay_compensation",
            compensation=config.server.compensation,
            skip_nonfinite=config.train.on_nonfinite == "skip",
        )
        self.data, self.curve = data, curve
        self.rows = rows_per_worker(config, workers)
        self.batch_tokens = config.train.global_batch * config.model.context
        self.pulls: list[tuple[int, Reading] | None] = [None] * workers

    def pulled(self, worker: int, sequence: int, version: int) -> None:
        self._give_back(worker)  # of a step that an outage undid
        self.pulls[worker] = (version, self.shards.read(version))

    def gradient(self, worker: int, sequence: int) -> Gradient:
        pull = self.pulls[worker]
        if pull is None:
            raise AssertionError("a worker pulls before it computes")
        params = self.member.load(pull[1].parts, own_buffers=False)
        self._give_back(worker)
        batch = self.data.rows(sequence, worker * self.rows, self.rows)
        return self.member.to_host(self.member.gradient(params, batch))

    def apply(self, update: Update, now_s: float) -> None:
        self.shards.apply(update, update.tokens / self.batch_tokens)
        self.shards.forget(min((pull[0] for pull in self.pulls if pull), default=update.version))
        gradients = [push.payload for push in update.pushes]
        loss = sum(gradient.loss for gradient in gradients)
        tokens = update.tokens + sum(push.tokens for push in update.pushes)
        self.curve.add(now_s, tokens, loss, sum(gradient.tokens for gradient in gradients))

    def _give_back(self, worker: int) -> None:
        pull = self.pulls[worker]
        if pull is not None:
            pull[1].give_back()
        self.pulls[worker] = None


class MeshLearner:
    """Steps of the real mesh step on one device, called at the barriers' virtual times."""

    def __init__(self, config: Config, data: Data, strategy: Strategy, curve: Curve, updates: int) -> None:
        name = "ddp" if strategy.name == "ddp_small_batch" else strategy.name
        _, _, self.step = build_step(_named(config, name), [jax.devices()[0]])
        self.state = self.step.init(config.train.seed)
        self.data, self.curve, self.updates = data, curve, updates
        self.tokens = config.train.global_batch * config.model.context
        self.count, self.last_s = 0, 0.0

    def round(self, end_s: float) -> None:
        """The updates of one global batch, spread evenly over its time."""
        for update in range(1, self.updates + 1):
            self.state, found = self.step.step(self.state, self.step.put(self.data.batch(self.count)))
            self.count += 1
            valid = float(found.tokens)
            at_s = self.last_s + (end_s - self.last_s) * update / self.updates
            self.curve.add(at_s, self.count * self.tokens, float(found.loss) * valid, valid)
        self.last_s = end_s


def training_config(setting: Setting, seed: int, learning_rate: float | None = None) -> Config:
    """The config that is trained: the setting's file or name, its steps, workers and seed."""
    flags = {
        "train.steps": setting.steps,
        "train.seed": seed,
        "server.workers": setting.workers,
        "optim.learning_rate": learning_rate,
    }
    return load([setting.train], (), flags)


def train(
    setting: Setting,
    strategy: Strategy,
    seed: int,
    learning_rate: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> Trained:
    """Trains `setting.steps` global batches; raises `BadInput` for a strategy that only throughput mode has."""
    if strategy.name in ("backup", "local_sgd"):
        remedy = "use ps with policy backup" if strategy.name == "backup" else "leave it out"
        raise BadInput(f"--gradients: {strategy.name} has no real training; {remedy}")
    config = training_config(setting, seed, learning_rate)
    batch_tokens = config.train.global_batch * config.model.context
    setting = setting.model_copy(update={"tokens_per_step": batch_tokens})
    curve, delays = Curve(batch_tokens), setting.delays_of(seed)
    rows_per_worker(config, setting.workers)  # refuses a batch that the workers don't divide
    if strategy.name == "ps":
        learner = ServerLearner(config, open_data(config), strategy, curve)
        outcome = server.simulate(setting, strategy, delays, learner=learner, progress=progress)
    else:
        updates = setting.workers if strategy.name == "ddp_small_batch" else 1
        config = _smaller_batches(config, updates)
        mesh = MeshLearner(config, open_data(config), strategy, curve, updates)
        outcome = barrier.simulate(setting, strategy, delays, progress=progress, on_round=mesh.round)
    return Trained(outcome, config.optim.learning_rate, tuple(curve.points))


def best_of_grid(
    setting: Setting, strategy: Strategy, seed: int, progress: Callable[[float], None] | None = None
) -> tuple[Trained, dict[float, float]]:
    """The training with the learning rate of the grid that ends lowest, and where each rate ended."""
    rates = setting.learning_rates or (training_config(setting, seed).optim.learning_rate,)
    ended: dict[float, float] = {}
    best: Trained | None = None
    for index, rate in enumerate(rates):
        told = (lambda share, done=index: progress((done + share) / len(rates))) if progress else None
        trained = train(setting, strategy, seed, rate, told)
        ended[rate] = final_loss(trained.points)
        if best is None or ended[rate] < ended[best.learning_rate]:
            best = trained
    if best is None:
        raise BadInput("learning_rates: the grid is empty")
    return best, ended


def final_loss(points: tuple[Point, ...]) -> float:
    """The mean of the last tenth; infinite for a training that diverged."""
    last = [point.loss for point in points[-max(1, len(points) // 10) :]]
    mean = sum(last) / len(last) if last else math.inf
    return mean if math.isfinite(mean) else math.inf


def _smaller_batches(config: Config, factor: int) -> Config:
    """The same tokens and schedule in `factor` times as many updates."""
    train = {
        "global_batch": config.train.global_batch // factor,
        "accumulation": 1 if factor > 1 else config.train.accumulation,
        "steps": config.train.steps * factor,
    }
    optim = {"warmup_steps": config.optim.warmup_steps * factor}
    return config.model_copy(
        update={"train": config.train.model_copy(update=train), "optim": config.optim.model_copy(update=optim)}
    )


def _named(config: Config, name: Any) -> Config:
    return config.model_copy(update={"strategy": config.strategy.model_copy(update={"name": name})})
