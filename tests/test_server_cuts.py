"""Parameters over server shards: every element once, equally many each, and back together."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.server.partition import join, make_cuts, take

SHAPES = st.lists(st.lists(st.integers(1, 7), max_size=3).map(tuple), min_size=1, max_size=6)


@given(shapes=SHAPES, shards=st.integers(1, 9))
def test_shards_hold_every_element_once_and_equally_many(shapes: list[tuple[int, ...]], shards: int) -> None:
    leaves = {f"leaf{index}": np.random.default_rng(index).normal(size=shape) for index, shape in enumerate(shapes)}
    sizes = {name: leaf.size for name, leaf in leaves.items()}
    cuts = make_cuts(sizes, shards)
    held = [sum(last - first for first, last in cut.values()) for cut in cuts]
    assert sum(held) == sum(sizes.values())
    assert max(held) - min(held) <= 1
    parts = [take(leaves, cut) for cut in cuts]
    assert [sum(part.size for part in of_shard.values()) for of_shard in parts] == held
    whole = join(parts, {name: leaf.shape for name, leaf in leaves.items()})
    assert {name: leaf.shape for name, leaf in whole.items()} == {name: leaf.shape for name, leaf in leaves.items()}
    assert all(np.array_equal(whole[name], leaves[name]) for name in leaves)


def test_a_leaf_that_is_not_cut_is_neither_copied_nor_reshaped() -> None:
    leaf = np.arange(12.0).reshape(3, 4)
    (cut,) = make_cuts({"leaf": math.prod(leaf.shape)}, 1)
    assert take({"leaf": leaf}, cut)["leaf"] is leaf
    assert join([{"leaf": leaf}], {"leaf": (3, 4)})["leaf"] is leaf
