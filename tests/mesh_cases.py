"""What the tests of the mesh strategies share: a small task, awkward batches, and a reference without a mesh."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp.config import build
from jaxdp.data.batch import Batch
from jaxdp.mesh.devices import make_mesh
from jaxdp.mesh.layout import logical, make_layout
from jaxdp.mesh.step import MeshStep, make_step
from jaxdp.recipe import TrainState, make_recipe
from jaxdp.strategies.rows import STRATEGIES, mesh_strategies
from jaxdp.task import Params

CONTEXT, VOCAB = 16, 64
# AdamW moves even a parameter whose gradient is nothing but rounding by its learning rate.
LEARNING_RATE = {"sgd": 0.05, "adamw": 1e-3}
MODEL = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "context": CONTEXT, "vocab": VOCAB}


def config(
    strategy: str = "ddp",
    *,
    optimizer: str = "adamw",
    accumulation: int = 1,
    dropout: float = 0.0,
    shard_devices: int | None = None,
    rows: int = 32,
    **model: Any,
) -> Any:  # a Config; checkers don't see that a frozen one can be hashed
    return build(
        {
            "model": {**MODEL, "dropout": dropout, **model},
            "optim": {"name": optimizer, "learning_rate": LEARNING_RATE[optimizer], "warmup_steps": 2, "clip": 0.5},
            "train": {"global_batch": rows, "accumulation": accumulation, "steps": 8, "compute_dtype": "float32"},
            "strategy": {"name": strategy, "min_shard_bytes": 0, "shard_devices": shard_devices},
        }
    )


# Those whose state is a tree of leaves: the flat unit, whose blocks are one vector, has tests of its own.
BY_LEAVES = [name for name in mesh_strategies() if not STRATEGIES[name].flat]


@functools.cache
def functions(config: Any, devices: int) -> MeshStep:
    """The functions of a config on the first devices; cached, since compiling them is what tests wait for."""
    recipe = make_recipe(config, "cpu")
    mesh = make_mesh(config.strategy.axis_sizes(devices), jax.devices()[:devices])
    layout = make_layout(recipe, config.strategy.rule, mesh)
    return make_step(recipe, layout, config.train.accumulation)


def rows_for(devices: int) -> int:
    """The rows of a batch that so many devices divide, in four microbatches too."""
    return {3: 48, 5: 40, 6: 48, 7: 56}.get(devices, 32)


def batch(step: int, rows: int = 32) -> Batch:
    """Unequal numbers of valid tokens a row, and first rows of padding only, so that one of 5 to 8 devices has none."""
    random = np.random.default_rng(step)
    tokens = random.integers(0, VOCAB, (rows, CONTEXT + 1)).astype(np.int32)
    valid = random.integers(1, CONTEXT + 1, rows)
    weights = (np.arange(CONTEXT)[None, :] < valid[:, None]).astype(np.float32)
    weights[: 4 if rows == 32 else 8] = 0
    return Batch(tokens[:, :-1], tokens[:, 1:], weights, (step * rows + np.arange(rows)).astype(np.uint32))


@functools.cache
def _initial(config: Any, seed: int) -> TrainState:
    return jax.device_get(functions(config, 1).init(seed))


def start(config: Any, step: MeshStep, seed: int) -> TrainState:
    """The seed's initial state in a layout, made on one device: drawing on eight takes longer to compile."""
    plain: Any = config.model_copy(update={"strategy": config.strategy.model_copy(update={"name": "ddp"})})
    return step.layout.put(_initial(plain, seed), step.layout.state)


def losses_and_norms(config: Any, devices: int, seed: int, steps: int) -> tuple[np.ndarray, TrainState]:
    """[steps, 2] losses and gradient norms, and the last state in its logical shapes."""
    step = functions(config, devices)
    state, found = start(config, step, seed), []
    for index in range(steps):
        state, metrics = step.step(state, step.put(batch(index, config.train.global_batch)))
        found.append((float(metrics.loss), float(metrics.grad_norm)))
    return np.array(found), logical(jax.device_get(state), step.layout.state)


@functools.cache
def reference(config: Any, seed: int, steps: int) -> tuple[np.ndarray, Params]:
    """The same training as textbook steps: one device, one microbatch, Optax's own optimizers and clipping."""
    recipe = make_recipe(config, "cpu")
    task = recipe.task
    optim = config.optim
    matrices = lambda params: jax.tree_util.tree_map_with_path(  # noqa: E731
        lambda path, leaf: "norm" not in str(path[-1]), params
    )
    rate: Any = recipe.learning_rate
    if optim.name == "adamw":
        tx = optax.adamw(rate, optim.beta1, optim.beta2, weight_decay=optim.weight_decay, mask=matrices)
    else:
        tx = optax.chain(optax.add_decayed_weights(optim.weight_decay, matrices), optax.sgd(rate))
    tx = optax.chain(optax.clip_by_global_norm(optim.clip), tx)

    def mean_loss(params: Params, part: Batch) -> jax.Array:
        total, tokens = task.loss_sum(params, part, lambda group, params: params)
        return total / tokens

    @jax.jit
    def step(params: Params, state: Any, part: Batch) -> Any:
        loss, grads = jax.value_and_grad(mean_loss)(params, part)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, optax.tree.norm(grads)

    params = jax.jit(task.init_params)(jax.random.key(seed))
    state, found = tx.init(params), []
    for index in range(steps):
        params, state, loss, norm = step(
            params, state, jax.tree.map(jnp.asarray, batch(index, config.train.global_batch))
        )
        found.append((float(loss), float(norm)))
    return np.array(found), params


def largest_difference(found: Any, expected: Any) -> float:
    """Over all leaves, the largest difference relative to the leaf's largest value."""
    pairs: Sequence[tuple[np.ndarray, np.ndarray]] = list(
        zip(map(np.asarray, jax.tree.leaves(found)), map(np.asarray, jax.tree.leaves(expected)), strict=True)
    )
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
