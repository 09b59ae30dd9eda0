"""The tree of parameters, and how a model gets at those that lie in shards."""

from typing import Any, Protocol

Params = Any  # a tree of dicts: {"embed", "blocks": {...}, "final_norm", "head"}


class Fetch(Protocol):
    """Turns the shards of one group of parameters ("outer" or "block") into the full parameters."""

    def __call__(self, group: str, params: Params) -> Params: ...
