"""Real training in virtual time: the actual task, server core, arrays and mesh step; only the clock is simulated.

A gradient is computed on the parameters that its worker pulled, so the loss against virtual time is a real
curve. Batches and initial values are those of a real run of the same config and seed.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.config import Config, load
from jaxdp.data.corpora import open_corpus
from jaxdp.data.pipeline import open_data
from jaxdp.errors import BadInput
from jaxdp.job.xla_flags import refuse_bad_flags
from jaxdp.mesh.compile import build_step
from jaxdp.mesh.devices import all_devices
from jaxdp.recipe import Recipe, TrainState
from jaxdp.server.core import Update
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.server.shards import Gradient, LocalShards, Reading
from jaxdp.server.worker import Worker, rows_per_worker
from jaxdp.timeline import Timeline
from jaxdp.workload import units_per_batch
from sims import barrier, server
from sims.curve import Curve, Point, Training
from sims.outcome import Outcome
from sims.scenario import Scenario
from sims.strategy import Strategy


class TrainingSetup:
    """What the trainings of one scenario and seed share: the data, the initial state, compiled functions."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        refuse_bad_flags()
        self.scenario = scenario
        self.config = training_config(scenario, seed)
        self.workers = scenario.workers
        self.rows = rows_per_worker(self.config, self.workers)
        self.corpus = open_corpus(self.config)
        self.data = open_data(self.config, self.corpus)
        self.batch_tokens = units_per_batch(self.config)
        self.device = all_devices()[0]
        self._members: dict[int, Worker] = {}

    @cached_property
    def initial(self) -> tuple[Recipe, TrainState]:
        recipe, _, step = build_step(_named(self.config, "ddp"), [self.device])
        return recipe, step.init(self.config.train.seed)

    def member(self, server_shards: int) -> Worker:
        """The compiled gradient, the same for all virtual workers and learning rates."""
        if server_shards not in self._members:
            plan = ShardPlan(self.initial[0], server_shards)
            self._members[server_shards] = Worker(self.config, self.initial[0], plan, [self.device])
        return self._members[server_shards]


class ServerLearner:
    """`server_world.Learner` over the real arrays; `rate_scale` is on top of the config's learning rate."""

    def __init__(self, setup: TrainingSetup, strategy: Strategy, rate_scale: float, curve: Curve) -> None:
        self.setup, self.rate_scale, self.curve = setup, rate_scale, curve
        self.member = setup.member(strategy.server_shards)
        self.shards = LocalShards(
            self.member.plan,
            setup.initial[1],
            keep_pulled=strategy.correction == "delay_compensation",
            compensation=setup.config.server.compensation,
            skip_nonfinite=setup.config.train.on_nonfinite == "skip",
        )
        self.lockstep = strategy.server_policy.lockstep
        self.pulls: list[tuple[int, Reading] | None] = [None] * setup.workers
        self.unapplied: dict[tuple[int, int], int] = {}  # pushes on their way: (worker, sequence) -> version

    def pulled(self, worker: int, sequence: int, version: int) -> None:
        self._release_pull(worker)  # of a step that an outage undid
        self.pulls[worker] = (version, self.shards.read(version))

    def gradient(self, worker: int, sequence: int) -> Gradient:
        pull = self.pulls[worker]
        if pull is None:
            raise AssertionError("a worker pulls before it computes")
        self.unapplied[worker, sequence] = pull[0]
        params = self.member.load(pull[1].parts, own_buffers=False)
        self._release_pull(worker)
        batch = self.setup.data.rows(sequence, worker * self.setup.rows, self.setup.rows)
        return self.member.to_host(self.member.gradient(params, batch))

    def apply(self, update: Update, now_s: float) -> None:
        scaled = update._replace(rate_scale=update.rate_scale * self.rate_scale)
        self.shards.apply(scaled, update.tokens / self.setup.batch_tokens)
        self._forget(update)
        gradients = [push.payload for push in update.pushes]
        loss = sum(gradient.loss for gradient in gradients)
        tokens = update.tokens + sum(push.tokens for push in update.pushes)
        self.curve.add(now_s, tokens, loss, sum(gradient.tokens for gradient in gradients))

    def _forget(self, update: Update) -> None:
        """Lets go of the versions that no pull or push still needs; in lockstep late pushes are dropped."""
        for push in update.pushes:
            del self.unapplied[push.worker, push.sequence]
        if self.lockstep:
            self.unapplied.clear()
        versions = [*self.unapplied.values(), *(pull[0] for pull in self.pulls if pull)]
        self.shards.forget(min(versions, default=update.version))

    def _release_pull(self, worker: int) -> None:
        pull = self.pulls[worker]
        if pull is not None:
            pull[1].release()
        self.pulls[worker] = None


class MeshLearner:
    """Steps of the real mesh step on one device, called at the barriers' virtual times."""

    def __init__(self, setup: TrainingSetup, config: Config, strategy: Strategy, curve: Curve, updates: int) -> None:
        name = "ddp" if strategy.name == "ddp_small_batch" else strategy.name
        _, layout, self.step = build_step(_named(config, name), [setup.device])
        # A copy, since the step overwrites its state.
        self.state = jax.tree.map(jnp.copy, layout.put(setup.initial[1], layout.state))
        self.data, self.curve, self.updates = open_data(config, setup.corpus), curve, updates
        self.tokens = units_per_batch(config)
        self.count, self.last_s = 0, 0.0

    def round(self, end_s: float) -> None:
        """The updates of one global batch, spread evenly over its time."""
        for update in range(1, self.updates + 1):
            self.state, found = self.step.step(self.state, self.step.put(self.data.batch(self.count)))
            self.count += 1
            valid = float(found.units)
            at_s = self.last_s + (end_s - self.last_s) * update / self.updates
            self.curve.add(at_s, self.count * self.tokens, float(found.loss) * valid, valid)
        self.last_s = end_s


def training_config(scenario: Scenario, seed: int, learning_rate: float | None = None) -> Config:
    """The config that is trained: the scenario's file or name, its steps, workers and seed."""
    flags = {
        "train.steps": scenario.steps,
        "train.seed": seed,
        "server.workers": scenario.workers,
        "optim.learning_rate": learning_rate,
    }
    return load([scenario.train], (), flags)


def train(
    setup: TrainingSetup,
    strategy: Strategy,
    learning_rate: float | None = None,
    timeline: Timeline | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Outcome, tuple[Point, ...]]:
    """Trains `scenario.steps` global batches; raises `BadInput` for a strategy that only throughput mode has."""
    refuse_untrainable(strategy)
    rate = learning_rate or setup.config.optim.learning_rate
    scenario = replace(setup.scenario, tokens_per_step=setup.batch_tokens)
    curve, delays = Curve(setup.batch_tokens), scenario.delays_of(setup.config.train.seed)
    if strategy.name == "ps":
        learner = ServerLearner(setup, strategy, rate / setup.config.optim.learning_rate, curve)
        outcome = server.simulate(scenario, strategy, delays, timeline, learner, progress)
    else:
        updates = scenario.workers if strategy.name == "ddp_small_batch" else 1
        config = _smaller_batches(training_config(scenario, setup.config.train.seed, rate), updates)
        mesh = MeshLearner(setup, config, strategy, curve, updates)
        outcome = barrier.simulate(scenario, strategy, delays, timeline, progress, mesh.round)
    return outcome, tuple(curve.points)


def refuse_untrainable(strategy: Strategy) -> None:
    if strategy.name in ("backup", "local_sgd"):
        remedy = "use ps with policy backup" if strategy.name == "backup" else "leave it out"
        raise BadInput(f"--gradients: {strategy.name} has no real training; {remedy}")


def best_of_grid(
    setup: TrainingSetup,
    strategy: Strategy,
    timeline: Timeline | None = None,
    progress: Callable[[float], None] | None = None,
) -> tuple[Outcome, Training]:
    """The training with the learning rate of the grid that ends lowest, and where each rate ended."""
    rates = setup.scenario.learning_rates or (setup.config.optim.learning_rate,)
    outcome: Outcome | None = None
    trainings: list[Training] = []
    for index, rate in enumerate(rates):
        told = partial(_tell, progress, index, len(rates)) if progress else None
        outcome, points = train(setup, strategy, rate, timeline if index == 0 else None, told)
        trainings.append(Training(rate, points))
    if outcome is None:
        raise BadInput("learning_rates: the grid is empty")
    best = min(trainings, key=lambda training: training.final_loss)
    ends = {training.learning_rate: training.final_loss for training in trainings}
    return outcome, replace(best, ends=ends)  # the learning rate changes no times


def _tell(progress: Callable[[float], None], index: int, count: int, share: float) -> None:
    progress((index + share) / count)


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
