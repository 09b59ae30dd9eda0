"""One batch of training sequences (no JAX)."""

from typing import Any, NamedTuple


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
