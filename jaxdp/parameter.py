"""One leaf of a parameter tree, by its dotted path and shape (no JAX)."""

import math
from dataclasses import dataclass

PARAMETER_BYTES = 4  # parameters are float32 masters under every strategy


@dataclass(frozen=True)
class Parameter:
    """One leaf of the parameter tree. In `blocks` the first dim counts the layers and is never sharded."""

    path: str
    shape: tuple[int, ...]

    @property
    def in_blocks(self) -> bool:
        return self.path.startswith("blocks.")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * PARAMETER_BYTES
