"""Where the leaves of a task's state lie over the server's shards, and how they come together again."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdp.recipe import Recipe
from jaxdp.server.partition import Cut, Leaves, join, make_cuts, take
from jaxdp.task import by_path, path_text


class ShardPlan:
    """The parameters and the optimizer state of a recipe over `shards` server shards, equal in elements."""

    def __init__(self, recipe: Recipe, shards: int) -> None:
        self.recipe = recipe
        self.params = recipe.task.abstract_params
        self.opt_state = recipe.abstract_state().opt_state
        self.shapes = {name: leaf.shape for name, leaf in by_path(self.params).items()}
        self.cuts = make_cuts({name: math.prod(shape) for name, shape in self.shapes.items()}, shards)

    @property
    def bytes(self) -> int:
        """Of all parameters; gradients have as many."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.params))

    def split(self, leaves: Leaves) -> list[Leaves]:
        """Each shard's part of parameters or gradients, by name."""
        return [take(leaves, cut) for cut in self.cuts]

    def join(self, parts: Sequence[Leaves]) -> Any:
        """The tree of parameters of all shards' parts."""
        return tree_like(self.params, join(parts, self.shapes))

    def split_opt_state(self, opt_state: Any) -> list[Any]:
        """Each shard's optimizer state: what follows a parameter is cut like it, counters are everywhere."""
        table = by_path(opt_state)
        return [self._part_of(table, cut) for cut in self.cuts]

    def join_opt_state(self, parts: Sequence[Any]) -> Any:
        tables = [by_path(part) for part in parts]
        leaves = {}
        for name, leaf in by_path(self.opt_state).items():
            pieces = [table[name] for table in tables if name in table]
            whole = pieces[0].shape == leaf.shape
            leaves[name] = pieces[0] if whole else np.concatenate(pieces).reshape(leaf.shape)
        return tree_like(self.opt_state, leaves)

    def _part_of(self, table: Mapping[str, Any], cut: Cut) -> Any:
        like = self.abstract_opt_state(cut)
        leaves = {}
        for name, leaf in by_path(like).items():
            leaves[name] = table[name]
            if leaves[name].shape != leaf.shape:
                parameter = max((known for known in cut if name.endswith(f".{known}")), key=len)
                first, last = cut[parameter]
                leaves[name] = table[name].reshape(-1)[first:last]
        return tree_like(like, leaves)

    def abstract_opt_state(self, cut: Cut) -> Any:
        """The shapes of one shard's optimizer state."""
        return jax.eval_shape(lambda leaves: self.recipe.tx.init(take(leaves, cut)), by_path(self.params))


def tree_like(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """A tree of the same structure with the leaves of these names."""
    return jax.tree.map_with_path(lambda path, _: leaves[path_text(path)], tree)
