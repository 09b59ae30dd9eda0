"""The data pipeline of every strategy: the global batch is a function of the seed and the step alone.

The endless stream of training sequences is one shuffled pass over the corpus after another. Step s takes
`global_batch` of them, and a device, process or worker takes its rows of these. So batches know no device
count, resuming is arithmetic, and nothing about the data is saved.

Grain's random access gives the order (a permutation of the records for every epoch, without storing it).
The tokens are then gathered by NumPy in one go: taking each sequence through Grain costs twice as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdp.config import Config
from jaxdp.data.batch import Batch
from jaxdp.data.corpora import Corpus, open_corpus


@dataclass(frozen=True, eq=False)
class Data:
    """R records of W = context + 1 tokens each: the last token of one is the first of the next."""

    corpus: Corpus
    global_batch: int
    train_RxW: np.ndarray
    heldout_RxW: np.ndarray
    order: Any  # place in the endless stream -> record, by epochs, without end

    def batch(self, step: int) -> Batch:
        """The global batch of a step, as NumPy arrays (int32 tokens, float32 weights, uint32 positions)."""
        return self.rows(step, 0, self.global_batch)

    def rows(self, step: int, start: int, count: int) -> Batch:
        """Rows `start` to `start + count` of the step's global batch; reads no other row."""
        windows_BxW = self.train_RxW[self._records(step, start, count)]
        first = step * self.global_batch + start
        return _as_batch(windows_BxW, np.arange(first, first + count), valid=count)

    def record_ids(self, step: int) -> np.ndarray:
        """The records that the step consumes, row by row."""
        return self._records(step, 0, self.global_batch)

    def eval_batches(self, batch_size: int, rows: slice | None = None) -> Iterator[Batch]:
        """Every held-out sequence once, in order; the last batch is filled up with rows of weight zero.

        With `rows` those rows of each batch only, and no other is read.
        """
        if batch_size < 1:
            raise ValueError(f"a batch of {batch_size} sequences")
        start, stop, _ = (rows or slice(None)).indices(batch_size)
        for batch in range(0, len(self.heldout_RxW), batch_size):
            first, last = batch + start, batch + stop
            windows_BxW = self.heldout_RxW[first:last]
            missing = last - first - len(windows_BxW)
            padded_BxW = np.pad(windows_BxW, ((0, missing), (0, 0)))
            yield _as_batch(padded_BxW, np.arange(first, last), valid=len(windows_BxW))

    def describe(self) -> dict[str, Any]:
        """What a record of the run should say of its data (strict JSON)."""
        corpus = self.corpus
        return {
            "corpus": corpus.name,
            "sha256": corpus.sha256,
            "dtype": corpus.train_tokens.dtype.name,
            "vocab": corpus.vocab,
            "train_tokens": len(corpus.train_tokens),
            "train_sequences": len(self.train_RxW),
            "heldout_tokens": len(corpus.heldout_tokens),
            "heldout_sequences": len(self.heldout_RxW),
            "unigram_entropy_nats": corpus.unigram_entropy_nats,
            "best_loss_nats": corpus.best_loss_nats,
            "separator": corpus.separator,
        }

    def _records(self, step: int, start: int, count: int) -> np.ndarray:
        if step < 0 or start < 0 or count < 0 or start + count > self.global_batch:
            raise ValueError(f"step {step}, rows {start} to {start + count}: outside a batch of {self.global_batch}")
        first = step * self.global_batch + start
        return np.array([self.order[place] for place in range(first, first + count)], np.int64)


def open_data(config: Config, corpus: Corpus | None = None) -> Data:
    """The pipeline over `corpus`, by default the one that the config names; raises `BadInput` as it does."""
    corpus = corpus or open_corpus(config)
    train_RxW = _windows(corpus.train_tokens, config.model.context)
    heldout_RxW = _windows(corpus.heldout_tokens, config.model.context)
    order = _shuffled(len(train_RxW), config.train.seed)
    return Data(corpus, config.train.global_batch, train_RxW, heldout_RxW, order)


def _windows(tokens: np.ndarray, context: int) -> np.ndarray:
    """Views of context + 1 tokens, each beginning with the last token of the one before: each is a target once."""
    return np.lib.stride_tricks.sliding_window_view(tokens, context + 1)[::context]


def _shuffled(records: int, seed: int) -> Any:
    import grain  # here, since it imports JAX

    # Grain shuffles epoch e by seed + e: seeds that follow one another would share their epochs, shifted.
    spread = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return grain.MapDataset.range(records).shuffle(seed=spread)


def _as_batch(windows_BxW: np.ndarray, positions_B: np.ndarray, valid: int) -> Batch:
    inputs_BxT = np.ascontiguousarray(windows_BxW[:, :-1], np.int32)
    targets_BxT = np.ascontiguousarray(windows_BxW[:, 1:], np.int32)
    weights_BxT = np.zeros(targets_BxT.shape, np.float32)
    weights_BxT[:valid] = 1
    return Batch(inputs_BxT, targets_BxT, weights_BxT, positions_B.astype(np.uint32))  # positions wrap
