"""Whether a training went the wrong way (no JAX)."""

import math
from collections.abc import Sequence

from jaxdp.config import Config

LAST = 10  # steps whose mean counts, at most half of all
RISE, ABOVE_GUESSING = 1.05, 1.1  # beyond the noise of a batch, and of initial values


def guessing(config: Config) -> float | None:
    """The loss of guessing all tokens alike, in nats; None for a user's task."""
    return None if config.task else math.log(config.model.vocab)


def divergence(first: float | None, losses: Sequence[float | None], config: Config) -> str | None:
    """One sentence if the losses, of which `first` was the run's first, end above it or above guessing; else None."""
    if first is None or not losses:
        return None
    last = losses[-max(1, min(LAST, len(losses) // 2)) :]
    known = [loss for loss in last if loss is not None and math.isfinite(loss)]
    mean, guess = sum(known) / len(known) if known else math.inf, guessing(config)
    if len(known) == len(last) and mean <= RISE * first and (guess is None or mean <= ABOVE_GUESSING * guess):
        return None
    beside = "" if guess is None else f", guessing gives {guess:.2f}"
    return f"diverged: the loss went from {first:.2f} to {mean:.2f}{beside}; its speed is that of a training that fails"
