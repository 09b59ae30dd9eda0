"""One batch of training sequences (no JAX)."""

from typing import Any, NamedTuple

import numpy as np


class Batch(NamedTuple):
    """B sequences of T tokens.

    `weights_BxT` is 0 where the target is padding. `positions_B` is each sequence's place in the endless
    stream of training sequences (step * global_batch + row): it keys dropout, so that masks belong to a
    sequence and not to a device.
    """

    inputs_BxT: Any
    targets_BxT: Any
    weights_BxT: Any
    positions_B: Any


def blank_batch(rows: int, context: int) -> Batch:
    """A batch of zeros that all count."""
    tokens = np.zeros((rows, context), np.int32)
    return Batch(tokens, tokens, np.ones((rows, context), np.float32), np.arange(rows, dtype=np.uint32))
