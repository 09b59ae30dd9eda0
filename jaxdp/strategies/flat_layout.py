"""Where the flat unit's cuts fall (no JAX): which devices own which part of which block.

Under `fsdp_flat` all blocks lie one after the other in one vector, padded at its end and cut
into equal pieces, one a device. A cut inside a block gives that block one more owner, and since its owners
send one after the other, one more round of communication.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxdp.parameter import Parameter


class Part(NamedTuple):
    """The elements `start:stop` of device `owner`'s piece."""

    owner: int
    start: int
    stop: int


@dataclass(frozen=True)
class FlatLayout:
    """`layers` blocks of `block_size` elements over `devices` equal pieces."""

    layers: int
    block_size: int
    devices: int

    @property
    def size(self) -> int:
        return self.layers * self.block_size

    @property
    def piece_size(self) -> int:
        return math.ceil(self.size / self.devices)

    @property
    def padding(self) -> int:
        return self.piece_size * self.devices - self.size

    def parts(self, layer: int) -> tuple[Part, ...]:
        """The parts that make up one block, in the order of its elements."""
        first, last, piece = layer * self.block_size, (layer + 1) * self.block_size, self.piece_size
        return tuple(
            Part(owner, max(first - owner * piece, 0), min(last - owner * piece, piece))
            for owner in range(first // piece, math.ceil(last / piece))
        )

    def rounds(self, layer: int) -> int:
        return len(self.parts(layer))

    def split_blocks(self) -> tuple[int, ...]:
        """The blocks whose fetch needs more rounds than the easiest block's."""
        rounds = [self.rounds(layer) for layer in range(self.layers)]
        return tuple(layer for layer, needed in enumerate(rounds) if needed > min(rounds))


def flat_layout(parameters: Sequence[Parameter], devices: int) -> FlatLayout:
    """The layout of those parameters that lie in blocks."""
    stacked = [parameter for parameter in parameters if parameter.in_blocks]
    layers = stacked[0].shape[0]
    return FlatLayout(layers, sum(parameter.size for parameter in stacked) // layers, devices)
