"""Your own model: nested nnx modules that tell drawn shapes apart, trained under any strategy.

python examples/own_model.py                                                  # two strategies, the same losses
jaxdp bench --task examples.own_model:task --strategy all --devices 4         # from the project's folder
jaxdp train --task examples.own_model:task --set task.width=64 --strategy fsdp
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxdp.data.arrays import from_arrays
from jaxdp.task import Task, from_module

SIZE, SHAPES = 8, 3  # pixels across; a bar, a cross and a square


class ResidualBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.conv = nnx.Conv(width, width, (3, 3), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + nnx.relu(self.conv(self.norm(x)))


class Classifier(nnx.Module):
    """A stem, residual blocks in a list, and a head over the mean of all places."""

    def __init__(self, width: int, depth: int, rngs: nnx.Rngs) -> None:
        self.stem = nnx.Conv(1, width, (3, 3), rngs=rngs)
        self.blocks = nnx.List([ResidualBlock(width, rngs) for _ in range(depth)])
        self.head = nnx.Linear(width, SHAPES, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(jnp.mean(x, axis=(1, 2)))


def losses(model: Classifier, batch: dict[str, jax.Array]) -> jax.Array:
    """One cross-entropy for each image of the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"])


def drawn_shapes(count: int) -> dict[str, np.ndarray]:
    """Noisy images, float32 [count, SIZE, SIZE, 1], and which shape each shows, int32 [count]."""
    random = np.random.default_rng(0)
    shapes = np.zeros((SHAPES, SIZE, SIZE), np.float32)
    shapes[0, 3:5, :] = shapes[1, 3:5, :] = shapes[1, :, 3:5] = shapes[2, 2:6, 2:6] = 1
    label = random.integers(0, SHAPES, count).astype(np.int32)
    image = shapes[label] + random.normal(0, 0.5, (count, SIZE, SIZE)).astype(np.float32)
    return {"image": image[..., None], "label": label}


def task(width: int = 32, depth: int = 2, images: int = 2048) -> Task:
    data = from_arrays(drawn_shapes(images), heldout=0.1)
    return from_module(lambda rngs: Classifier(width, depth, rngs), losses, data, unit="images")


if __name__ == "__main__":
    from cli.main import main

    words = "bench --task own_model:task --strategy ddp,fsdp --devices 4 --set strategy.min_shard_bytes=0"
    sys.argv[1:] = [*words.split(), *sys.argv[1:]]
    main()
