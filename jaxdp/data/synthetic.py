"""A first-order Markov source whose entropy rate is known exactly: the best loss that any model can reach."""

import math

import numpy as np

SYMBOLS = 64
TOKENS = 2**22
DENOMINATOR = 2**16  # probabilities are multiples of 1/65536, so the sampled source is the computed one
DECAY = 0.85  # of a symbol's likeliest successors; gives 2.8 nats


def successor_counts() -> np.ndarray:
    """The probabilities of a symbol's successors, likeliest first, in units of 1/65536: geometric, none zero."""
    weights = DECAY ** np.arange(SYMBOLS)
    counts = 1 + np.floor(weights / weights.sum() * (DENOMINATOR - SYMBOLS)).astype(np.int64)
    counts[0] += DENOMINATOR - counts.sum()
    return counts


def transition_matrix(seed: int) -> np.ndarray:
    """`P[a, b]`, the probability that symbol `b` follows `a`."""
    name_of, steps = _source(seed)
    matrix = np.empty((SYMBOLS, SYMBOLS))
    places = np.arange(SYMBOLS)
    for step, count in zip(steps, successor_counts(), strict=True):
        matrix[name_of[places], name_of[(places + step) % SYMBOLS]] = count / DENOMINATOR
    return matrix


def entropy_rate_nats() -> float:
    """Of the source, whatever the seed.

    The rate is the sum over symbols of (stationary probability) * (entropy of its row). Every row holds
    the same probabilities in another order, so the sum is the entropy of any one row.
    """
    return -math.fsum(p * math.log(p) for p in successor_counts() / DENOMINATOR)


def markov_tokens(seed: int, count: int = TOKENS) -> np.ndarray:
    """`count` symbols (uint8) of the source, from its stationary (uniform) distribution on.

    The symbols sit on a circle in a seeded order and each step moves by an independent random distance, so
    that the whole walk is one cumulative sum instead of a loop over tokens.
    """
    name_of, steps = _source(seed)
    random = np.random.default_rng([seed, 1])
    step_of_draw = np.repeat(steps, successor_counts())
    walk = step_of_draw[random.integers(0, DENOMINATOR, count, dtype=np.uint16)]
    walk[0] = random.integers(SYMBOLS)
    np.cumsum(walk, out=walk)  # modulo 256, of which 64 is a divisor
    return name_of[walk % SYMBOLS]


def _source(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The symbol at each place of the circle, and the distances to its successors, likeliest first."""
    random = np.random.default_rng([seed, 0])
    return random.permutation(SYMBOLS).astype(np.uint8), random.permutation(SYMBOLS).astype(np.uint8)
