"""Tasks that are not the built-in one, for the tests: a nested module, a list of dicts, named blocks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxdp.data.arrays import from_arrays
from jaxdp.task import Batch, Params, Task, Unshard, from_module

EXAMPLES, PIXELS, LABELS, WIDTH, LAYERS = 72, 4, 4, 8, 3


def images() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    image = random.normal(size=(EXAMPLES, PIXELS, PIXELS)).astype(np.float32)
    return {"image": image, "label": (image.sum(axis=(1, 2)) > 0).astype(np.int32)}


class Head(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.out = nnx.Linear(width, LABELS, rngs=rngs)


class Nested(nnx.Module):
    """Modules inside a list inside a module."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Linear(PIXELS * PIXELS, width, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(2)])
        self.head = Head(width, rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        x = self.stem(image.reshape(len(image), -1))
        for layer in self.layers:
            x = x + jnp.tanh(layer(x))
        return self.head.out(self.head.norm(x))


class WithDropout(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(PIXELS, PIXELS, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def label_losses(model: Any, batch: Batch) -> jax.Array:
    logits = jax.nn.log_softmax(model(batch["image"]))
    return -jnp.take_along_axis(logits, batch["label"][:, None], axis=-1)[:, 0]


def module(width: int = WIDTH) -> Task:
    return from_module(lambda rngs: Nested(width, rngs), label_losses, from_arrays(images()), unit="images")


def dropout() -> Task:
    return from_module(WithDropout, label_losses, from_arrays(images()))


def list_of_dicts() -> Task:
    """Two dense layers, whose loss is a squared error and whose count is Python's."""

    def init_params(key: jax.Array) -> Params:
        first, second = jax.random.split(key)
        return [
            {"w": 0.3 * jax.random.normal(first, (PIXELS * PIXELS, WIDTH)), "b": jnp.zeros(WIDTH)},
            {"w": 0.3 * jax.random.normal(second, (WIDTH, 1)), "b": jnp.zeros(1)},
        ]

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, /, *, train: bool = True) -> Any:
        (first, second), count = unshard("", params), len(batch["label"])
        hidden = jnp.tanh(batch["image"].reshape(count, -1) @ first["w"] + first["b"][None])
        error = (hidden @ second["w"] + second["b"][None])[:, 0] - batch["label"]
        return jnp.sum(jnp.square(error)), count

    return Task(init_params=init_params, loss_sum=loss_sum, open_data=from_arrays(images(), heldout=8 / EXAMPLES))


def named_blocks(subtree: str = "encoder.layers") -> Task:
    """A stack below a nested name, unsharded layer by layer inside a scan; the rest at once."""

    def init_params(key: jax.Array) -> Params:
        stem, layers, head = jax.random.split(key, 3)
        stack = {"w": 0.3 * jax.random.normal(layers, (LAYERS, WIDTH, WIDTH)), "scale": jnp.ones((LAYERS, WIDTH))}
        return {
            "encoder": {"layers": stack, "stem": 0.3 * jax.random.normal(stem, (PIXELS * PIXELS, WIDTH))},
            "head": 0.3 * jax.random.normal(head, (WIDTH, LABELS)),
        }

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, /, *, train: bool = True) -> Any:
        root = unshard("", {"encoder": {"stem": params["encoder"]["stem"]}, "head": params["head"]})

        @jax.checkpoint
        def body(x: jax.Array, shards: Params) -> tuple[jax.Array, None]:
            layer = unshard("encoder.layers", shards)
            return x + jnp.tanh((x * layer["scale"][None]) @ layer["w"]), None

        image = batch["image"].reshape(len(batch["label"]), -1)
        x, _ = jax.lax.scan(body, image @ root["encoder"]["stem"], params["encoder"]["layers"])
        logits = jax.nn.log_softmax(x @ root["head"])
        losses = -jnp.take_along_axis(logits, batch["label"][:, None], axis=-1)[:, 0]
        return jnp.sum(losses * batch["weight"]), jnp.sum(batch["weight"])

    blocks = (subtree,) if subtree else ()
    return Task(init_params=init_params, loss_sum=loss_sum, open_data=from_arrays(images()), blocks=blocks)


def half_precision() -> Task:
    task = list_of_dicts()
    return Task(
        init_params=lambda key: jax.tree.map(jnp.bfloat16, task.init_params(key)),
        loss_sum=task.loss_sum,
        open_data=task.open_data,
    )


def broken() -> Task:
    raise RuntimeError("no such file")


def no_task() -> int:
    return 3
