"""What is trained, as a user provides it: parameters, a loss and data. How it is trained is the config's matter.

    def task(width: int = 64) -> Task:                       # `--task my_package.my_module:task --set task.width=128`
        return from_module(lambda rngs: MyModule(width, rngs), losses, from_arrays({"image": ..., "label": ...}))

Every strategy, the parameter server and the checkpoints know a model through this seam alone; the built-in
transformer is one more task (`models.language`). `from_module` is enough for an `nnx.Module`; a `Task` made by hand may
have any pytree of parameters, and blocks that are unsharded layer by layer.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from jaxdp.errors import BadInput
from jaxdp.parameter import Parameter

if TYPE_CHECKING:
    import jax
    from flax import nnx

Params = Any  # any pytree of float32 arrays: nested dicts, lists, the state of an nnx module
Batch = Any  # any pytree of arrays whose leading dim counts examples


class Unshard(Protocol):
    """Turns shards into full parameters of the compute dtype; their gradients go back to the shards in float32.

    `subtree` is the dotted path of the subtree that `shards` is (a part of). "" is the root: what is not inside
    blocks, or everything where a task has no blocks. For a subtree named in `Task.blocks`, `shards` are those of
    one layer, without the dim that counts layers.
    """

    def __call__(self, subtree: str, shards: Params, /) -> Params: ...


class LossSum(Protocol):
    """The sum of a batch's losses (nats, for a cross-entropy) and the number of units that it sums over.

    Both are float32 scalars. The batch is a device's part of the global one, so neither may be a mean, and an example
    that does not count (padding) adds to neither. `train` is False in an evaluation.
    """

    def __call__(
        self, params: Params, batch: Batch, unshard: Unshard, /, *, train: bool = True
    ) -> "tuple[jax.Array, jax.Array]": ...


class DataSource(Protocol):
    """Batches of NumPy arrays as pure functions of the step, so that resuming is arithmetic (`data.arrays` is one)."""

    def rows(self, step: int, start: int, count: int) -> Batch:
        """Examples `start` to `start + count` of the step's global batch; reads no other."""
        ...

    def eval_batches(self, batch_size: int, rows: slice | None = None) -> Iterator[Batch]:
        """Every held-out example once, in batches of equal size; of each batch only `rows`, if given.

        The last batch is filled up with examples that do not count.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """What a record says of the data (strict JSON); `sha256` identifies it, so that a run resumes on the same."""
        ...


def decays_if_matrix(parameter: Parameter) -> bool:
    """Weight decay's usual rule: matrices decay, while biases and the scales of norms don't."""
    return len(parameter.layer_shape) >= 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What is trained.

    `init_params(key)` makes float32 parameters. `open_data(global_batch, seed)` opens the data. `unit` names what
    `loss_sum` counts, as every rate and record does; an example has `units_per_example` of them, padding included.

    `blocks` are the dotted paths of subtrees whose leaves are stacked over layers along dim 0, to be unsharded one
    layer at a time inside a scan; a sharding strategy never cuts that dim. A model without any is unsharded whole.

    `decays` says which parameters weight decay is for. `settings` must be equal for two results to be compared.
    `train_flops_per_unit` is what a forward and backward pass needs by `flops_formula`, which is printed
    (`causal_train_flops_per_unit`: with the unmasked half of attention only); without it there is no MFU.
    """

    init_params: "Callable[[jax.Array], Params]"
    loss_sum: LossSum
    open_data: Callable[[int, int], DataSource]
    unit: str = "examples"
    units_per_example: int = 1
    blocks: tuple[str, ...] = ()
    decays: Callable[[Parameter], bool] = decays_if_matrix
    settings: Mapping[str, Any] = field(default_factory=dict)
    train_flops_per_unit: int | None = None
    causal_train_flops_per_unit: int | None = None
    flops_formula: str = "train_flops_per_unit"

    @cached_property
    def abstract_params(self) -> Params:
        """The parameters' shapes; raises `BadInput` for a tree that cannot be trained."""
        import jax

        shapes = jax.eval_shape(self.init_params, jax.eval_shape(lambda: jax.random.key(0)))
        _refuse_untrainable(shapes, self.blocks)
        return shapes

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters in the order of their paths."""
        leaves = by_path(self.abstract_params)
        made = (Parameter(path, tuple(leaf.shape), in_blocks(path, self.blocks)) for path, leaf in leaves.items())
        return tuple(sorted(made, key=lambda parameter: parameter.path))


def from_module(
    make: "Callable[[nnx.Rngs], nnx.Module]",
    losses: "Callable[[Any, Batch], jax.Array]",
    open_data: Callable[[int, int], DataSource],
    *,
    unit: str = "examples",
    units_per_example: int = 1,
) -> Task:
    """The task of an `nnx.Module`, which is unsharded whole.

    `losses(module, batch)` gives each example's loss, [B], or each token's, [B, T]. Where the batch is a dict with
    `weight`, [B], as that of `data.arrays` is, examples of weight 0 do not count. Raises `BadInput` for a module that
    keeps other state than parameters.
    """
    import jax.numpy as jnp
    from flax import nnx

    graphdef, _, rest = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))), nnx.Param, ...)
    if others := by_path(nnx.to_pure_dict(rest)):
        raise BadInput(
            f"task: the module keeps {', '.join(list(others)[:4])}, which is no parameter: such state is neither "
            "reduced nor saved; leave batch statistics and random streams (dropout) out"
        )

    def loss_sum(
        params: Params, batch: Batch, unshard: Unshard, /, *, train: bool = True
    ) -> "tuple[jax.Array, jax.Array]":
        values = losses(nnx.merge(graphdef, unshard("", params)), batch).astype(jnp.float32)
        weight = batch["weight"] if isinstance(batch, Mapping) and "weight" in batch else jnp.ones(len(values))
        weights = jnp.broadcast_to(weight.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
        return jnp.sum(values * weights), jnp.sum(weights)

    return Task(
        init_params=lambda key: nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param)),
        loss_sum=loss_sum,
        open_data=open_data,
        unit=unit,
        units_per_example=units_per_example,
    )


def by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their dotted paths (keys of dicts, indices of lists, attributes), in the tree's order."""
    import jax

    leaves = jax.tree.leaves_with_path(tree)
    table = {path_text(path): leaf for path, leaf in leaves}
    if len(table) != len(leaves):
        raise BadInput("two leaves of the state have the same path; a key must not contain a dot")
    return table


def path_text(path: Any) -> str:
    """A path of JAX's, dotted: "blocks.qkv"."""
    import jax

    return jax.tree_util.keystr(path, simple=True, separator=".")


def in_blocks(path: str, blocks: tuple[str, ...]) -> bool:
    return any(path.startswith(f"{subtree}.") for subtree in blocks)


def _refuse_untrainable(shapes: Any, blocks: tuple[str, ...]) -> None:
    leaves = by_path(shapes)
    if not leaves or "" in leaves:
        raise BadInput("task: its parameters have no names; put them into a dict, a list or a module")
    for path, leaf in leaves.items():
        if leaf.dtype.name != "float32":
            raise BadInput(f"task: parameter {path} is {leaf.dtype.name}; parameters are float32, keep other state out")
    for subtree in blocks:
        stacked = {path: leaf.shape for path, leaf in leaves.items() if in_blocks(path, (subtree,))}
        if not stacked:
            raise BadInput(f"task: no subtree {subtree!r} in its parameters ({', '.join(list(leaves)[:8])})")
        if len({shape[:1] for shape in stacked.values()}) > 1 or () in stacked.values():
            raise BadInput(f"task: blocks {subtree!r} have leaves of different lengths along dim 0: {_shown(stacked)}")


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return json.dumps({path: list(shape) for path, shape in list(shapes.items())[:4]})
