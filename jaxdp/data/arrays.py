"""A data source of arrays in memory: shuffled by epochs, with a held-out split (no JAX)."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from jaxdp.errors import BadInput

WEIGHT = "weight"  # a batch's own key: 1 for an example that counts, 0 for one that fills a batch up


def from_arrays(arrays: Mapping[str, np.ndarray], heldout: float = 0.1) -> "Callable[[int, int], ArraySource]":
    """`Task.open_data` over named arrays of equal leading dim, a share of whose examples is held out.

    A batch has the same names and `weight`, float32 [B].
    """
    lengths = {name: len(array) for name, array in arrays.items()}
    examples = next(iter(lengths.values()), 0)
    if len(set(lengths.values())) != 1 or WEIGHT in arrays:
        raise BadInput(f"task: arrays of one length are needed, none of them named {WEIGHT!r}; these have {lengths}")
    held = round(examples * heldout)
    if not 0 < held < examples:
        raise BadInput(f"task: {heldout:g} of {examples} examples held out leaves {examples - held} to train on")
    # Drawn once and for all, so that runs of different seeds are judged by the same examples.
    order = np.random.default_rng(0).permutation(examples)

    def open_data(global_batch: int, seed: int) -> ArraySource:
        return ArraySource(dict(arrays), np.sort(order[held:]), np.sort(order[:held]), global_batch, seed)

    return open_data


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Step s takes places `s * global_batch` onwards of an endless stream: one shuffled epoch after another."""

    arrays: dict[str, np.ndarray]
    train: np.ndarray  # which examples
    heldout: np.ndarray
    global_batch: int
    seed: int

    def rows(self, step: int, start: int, count: int) -> dict[str, np.ndarray]:
        if step < 0 or start < 0 or count < 0 or start + count > self.global_batch:
            raise ValueError(f"step {step}, rows {start} to {start + count}: outside a batch of {self.global_batch}")
        first = step * self.global_batch + start
        places = np.arange(first, first + count)
        epochs, within = places // len(self.train), places % len(self.train)
        taken = np.empty(count, np.int64)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            taken[inside] = self.train[_order(self.seed, int(epoch), len(self.train))[within[inside]]]
        return self._take(taken, count)

    def eval_batches(self, batch_size: int, rows: slice | None = None) -> Iterator[dict[str, np.ndarray]]:
        start, stop, _ = (rows or slice(None)).indices(batch_size)
        for first in range(0, len(self.heldout), batch_size):
            yield self._take(self.heldout[first + start : first + stop], stop - start)

    def describe(self) -> dict[str, Any]:
        return {
            "source": "arrays",
            "sha256": self._sha256,
            "train_examples": len(self.train),
            "heldout_examples": len(self.heldout),
        }

    def _take(self, examples: np.ndarray, count: int) -> dict[str, np.ndarray]:
        """These examples, and the first ones to fill up with."""
        filled = np.zeros(count, np.int64)
        filled[: len(examples)] = examples
        weight = (np.arange(count) < len(examples)).astype(np.float32)
        return {name: array[filled] for name, array in self.arrays.items()} | {WEIGHT: weight}

    @cached_property
    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for name, array in sorted(self.arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, examples: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(examples)
