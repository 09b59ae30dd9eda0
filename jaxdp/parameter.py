"""One leaf of a parameter tree, by its dotted path and shape (no JAX)."""

import math
from dataclasses import dataclass

PARAMETER_BYTES = 4  # parameters are float32 masters under every strategy
GRADIENT_BYTES = 4  # gradients are reduced in float32 under every strategy


@dataclass(frozen=True)
class Parameter:
    """One leaf of the parameter tree. In blocks the first dim counts the layers and is never sharded."""

    path: str
    shape: tuple[int, ...]
    in_blocks: bool = False

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape without the dim that counts layers."""
        return self.shape[1:] if self.in_blocks else self.shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * PARAMETER_BYTES
