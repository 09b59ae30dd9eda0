"""How one leaf is stored: whole, or as one flat vector a layer that its axis cuts evenly (no JAX).

A leaf that is cut is stored as `[layers, padded]` in blocks whose parameters are gathered layer by layer, and as
`[padded]` elsewhere: each layer's elements in their order, filled up with zeros to a multiple of the axis's size. So
every count of devices cuts it evenly, and a layer is gathered and scattered contiguously. Elementwise updates of zeros
by zero gradients stay zeros, and zeros add to no norm.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxdp.parameter import Parameter
from jaxdp.strategies.rules import Cut


@dataclass(frozen=True)
class Placement:
    """A leaf of logical `shape`, cut over `axis` into `pieces` vectors, or whole (`axis` None).

    `layered`: the first dim counts layers, each of which is a vector of its own.
    """

    shape: tuple[int, ...]
    layered: bool = False
    axis: str | None = None
    pieces: int = 1

    @property
    def layer_shape(self) -> tuple[int, ...]:
        return self.shape[1:] if self.layered else self.shape

    @property
    def layers(self) -> int:
        return self.shape[0] if self.layered else 1

    @property
    def layer_size(self) -> int:
        return math.prod(self.layer_shape)

    @property
    def piece_size(self) -> int:
        """Elements of one layer on one device."""
        return -(-self.layer_size // self.pieces)

    @property
    def padding(self) -> int:
        """Zeros that follow the elements of one layer."""
        return self.piece_size * self.pieces - self.layer_size

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The global shape of the stored array."""
        return self.shape if self.axis is None else (*self._layers, self.piece_size * self.pieces)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """What one device holds of the stored array."""
        return self.shape if self.axis is None else (*self._layers, self.piece_size)

    @property
    def spec(self) -> tuple[str | None, ...]:
        """The mesh axis of each dim of the stored array."""
        return (*(None,) * (len(self.stored_shape) - 1), self.axis) if self.axis else (None,) * len(self.shape)

    @property
    def layer(self) -> "Placement":
        """One layer of the leaf."""
        return Placement(self.layer_shape, False, self.axis, self.pieces)

    @property
    def _layers(self) -> tuple[int, ...]:
        return self.shape[:1] if self.layered else ()

    def store(self, array: Any) -> Any:
        """The stored array of a logical one: NumPy's or JAX's, traced ones among them."""
        if self.axis is None:
            return array
        flat = array.reshape(*self._layers, self.layer_size)
        return _pad(flat, [(0, 0)] * len(self._layers) + [(0, self.padding)]) if self.padding else flat

    def logical(self, stored: Any) -> Any:
        """The logical array of a stored one."""
        return stored if self.axis is None else stored[..., : self.layer_size].reshape(self.shape)


class Placed(NamedTuple):
    """Where a parameter and its optimizer state lie."""

    params: Placement
    optimizer: Placement


def place(parameter: Parameter, cut: Cut, axis_sizes: Mapping[str, int]) -> Placed:
    """An axis of size 1, or one that the mesh lacks, cuts nothing; nor is there anything to cut in a single element.

    Optimizer state beside whole parameters is one vector over all layers, since it is never gathered by layer.
    """

    params = _placement(parameter.shape, parameter.in_blocks, cut.params, axis_sizes)
    return Placed(params, params if params.axis else _placement(parameter.shape, False, cut.optimizer, axis_sizes))


def _placement(shape: tuple[int, ...], layered: bool, axis: str | None, axis_sizes: Mapping[str, int]) -> Placement:
    pieces = axis_sizes.get(axis, 1) if axis else 1
    if pieces == 1 or math.prod(shape[1:] if layered else shape) <= 1:
        return Placement(shape, layered)
    return Placement(shape, layered, axis, pieces)


def _pad(array: Any, widths: list[tuple[int, int]]) -> Any:
    import numpy as np

    if isinstance(array, np.ndarray):
        return np.pad(array, widths)
    import jax.numpy as jnp

    return jnp.pad(array, widths)
