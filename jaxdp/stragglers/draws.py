"""Random numbers that are a function of (seed, cause, worker, step): no stream to advance, none to share.

Adding a worker, a step or a cause changes no other draw, and any block of draws can be made at once. Each
(seed, cause, worker) is a SplitMix64 sequence (Steele, Lea, Flood, OOPSLA 2014) of which a step is an index.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


class Draws(NamedTuple):
    """The draws of one cause. `workers` and `steps` are numbers or arrays, the result is [steps, workers]."""

    seed: int
    cause: str

    def of(self, part: str) -> "Draws":
        """Independent draws for a part of the cause."""
        return Draws(self.seed, f"{self.cause}/{part}")

    def uniform(self, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
        """Strictly between 0 and 1."""
        return uniform(self.seed, self.cause, workers, steps)

    def exponential(self, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
        """Of mean 1."""
        return exponential(self.seed, self.cause, workers, steps)

    def normal(self, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
        """Of mean 0 and standard deviation 1."""
        return normal(self.seed, self.cause, workers, steps)


def uniform(seed: int, cause: str, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
    """Draws strictly between 0 and 1, of shape [steps, workers]."""
    bits = _bits(seed, cause, workers, steps)
    bits >>= np.uint64(11)
    draws = bits.astype(np.float64)
    draws += 0.5
    draws *= 2.0**-53
    return draws


def exponential(seed: int, cause: str, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
    """Exponential draws of mean 1, of shape [steps, workers]."""
    draws = uniform(seed, cause, workers, steps)
    np.log(draws, out=draws)
    return np.negative(draws, out=draws)


def normal(seed: int, cause: str, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
    """Standard normal draws by Box-Muller, of shape [steps, workers]; the two uniforms have 32 bits each."""
    bits = _bits(seed, cause, workers, steps)
    angle = (bits & _LOW_HALF).astype(np.float64)
    angle *= 2 * np.pi * 2.0**-32
    np.cos(angle, out=angle)
    bits >>= _HALF
    radius = bits.astype(np.float64)
    radius += 0.5
    radius *= 2.0**-32
    np.log(radius, out=radius)
    radius *= -2.0
    np.sqrt(radius, out=radius)
    radius *= angle
    return radius


def _bits(seed: int, cause: str, workers: ArrayLike, steps: ArrayLike) -> np.ndarray:
    digest = hashlib.blake2b(f"{seed}/{cause}".encode(), digest_size=8).digest()
    keys = np.atleast_1d(np.asarray(workers, np.uint64)) * _GAMMA + np.uint64(int.from_bytes(digest, "little"))
    indices = np.atleast_1d(np.asarray(steps, np.uint64)) * _GAMMA
    bits = indices[:, None] + _mix(keys)[None, :]
    return _mix(bits)


def _mix(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, in place."""
    shifted = bits >> np.uint64(30)
    bits ^= shifted
    bits *= _MIX_A
    np.right_shift(bits, np.uint64(27), out=shifted)
    bits ^= shifted
    bits *= _MIX_B
    np.right_shift(bits, np.uint64(31), out=shifted)
    bits ^= shifted
    return bits
