"""All shards of a server together: one update over all of them, here in this process."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdp.recipe import TrainState
from jaxdp.server.arrays import Shard, host_device, make_update, owned
from jaxdp.server.core import Push, Update
from jaxdp.server.messages import Applied
from jaxdp.server.partition import Leaves
from jaxdp.server.shard_plan import ShardPlan
from jaxdp.task import by_path


class Gradient(NamedTuple):
    """The payload of a push: sums over its valid tokens. `parts` has one element for each server shard."""

    parts: Sequence[Any]
    loss: float
    tokens: float


# What all shards do at once: (their parts of the pushes, valid tokens, versions) -> squared norms; and
# (valid tokens, norm, step, scale) -> learning rates.
Prepare = Callable[[list[list[Any]], list[float], list[int]], Sequence[float]]
Commit = Callable[[float, float, float, float], Sequence[float]]


def apply_update(update: Update, step: float, skip_nonfinite: bool, prepare: Prepare, commit: Commit) -> Applied:
    """One update in two phases over all shards; `step` is the tokens consumed before, in global batches."""
    tokens = sum(push.payload.tokens for push in update.pushes)
    norm = prepared_norm(update.pushes, prepare)
    if skip_nonfinite and not math.isfinite(norm + sum(push.payload.loss for push in update.pushes)):
        return Applied(norm, 0.0)
    return Applied(norm, commit(tokens, norm, step, update.rate_scale)[0])


def prepared_norm(pushes: Sequence[Push], prepare: Prepare) -> float:
    """The norm of the mean gradient of these pushes, over all shards."""
    gradients: list[Gradient] = [push.payload for push in pushes]
    by_shard = [list(parts) for parts in zip(*(gradient.parts for gradient in gradients), strict=True)]
    tokens = [gradient.tokens for gradient in gradients]
    squares = sum(prepare(by_shard, tokens, [push.version for push in pushes]))
    return math.sqrt(squares) / max(sum(tokens), 1.0) if squares >= 0 else squares


class LocalShards:
    """The shards in this process: one version over all of them, since they are updated together."""

    def __init__(
        self, plan: ShardPlan, state: TrainState, *, keep_pulled: bool, compensation: float, skip_nonfinite: bool
    ) -> None:
        self.plan = plan
        self.keep_pulled = keep_pulled
        self.skip_nonfinite = skip_nonfinite
        functions = make_update(plan.recipe, compensation)
        params = plan.split(by_path(state.params))
        opt_states = plan.split_opt_state(state.opt_state)
        host = host_device()
        self.shards = [
            Shard(functions, *owned((part, opt_state), host))
            for part, opt_state in zip(params, opt_states, strict=True)
        ]

    def read(self, version: int) -> "Reading":
        """The parameters as they are, at `version`; to be given back once copied."""
        if self.keep_pulled:
            for shard in self.shards:
                shard.keep(version)
        return Reading(self.shards, [shard.read() for shard in self.shards])

    def forget(self, before: int) -> None:
        for shard in self.shards:
            shard.forget(before)

    def warm_up(self, pushes: int) -> None:
        """Compiles the update of this many pushes, by updates of zeros with zeros."""
        for shard in self.shards:
            shard.warm_up(pushes)

    def apply(self, update: Update, step: float) -> Applied:
        return apply_update(update, step, self.skip_nonfinite, self._prepare, self._commit)

    def norm(self, push: Push) -> float:
        """The norm of one push's mean gradient."""
        return prepared_norm([push], self._prepare)

    def state(self, step: int) -> TrainState:
        """A copy of the whole state, which later updates leave alone."""
        params = self.plan.join([shard.params for shard in self.shards])
        opt_state = self.plan.join_opt_state([shard.opt_state for shard in self.shards])
        return owned(TrainState(jnp.int32(step), params, opt_state), host_device())

    def _prepare(self, parts: list[list[Any]], tokens: list[float], versions: list[int]) -> Sequence[float]:
        return [shard.prepare(part, tokens, versions) for shard, part in zip(self.shards, parts, strict=True)]

    def _commit(self, tokens: float, norm: float, step: float, scale: float) -> Sequence[float]:
        return [shard.commit(tokens, norm, step, scale) for shard in self.shards]


class Reading:
    """Parameters of one version, shard by shard, that no update touches until they are given back."""

    def __init__(self, shards: Sequence[Shard], parts: list[Leaves]) -> None:
        self._shards, self.parts = shards, parts

    def release(self) -> None:
        for shard, part in zip(self._shards, self.parts, strict=True):
            shard.release(part)
