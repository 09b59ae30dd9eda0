"""Bytes that one device holds during a training step, from shapes and rules alone.

What lives from step to step follows from the rules exactly. What lives only inside a step is the largest of four
moments. On top of what the forward pass saved: the loss (logits), a block's MLP going backward, its attention
going backward (working set and all gradients). And by itself: the last reduction. On a TPU, whose compiler lets the
moments share nothing, it is their sum. The coefficients are fitted to the compiler's own bytes, one set a remat policy
(a GPU's are by definition); `benchmarks/memory_model.py` fits them and reports the error on other configurations.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from jaxdp.config import Config
from jaxdp.models.attention_form import form, query_blocks
from jaxdp.models.loss_form import loss_chunk
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.compute import COMPUTE_BYTES
from jaxdp.predict.memory_fit import FITTED, SAVED, AdditiveFit, Fit
from jaxdp.predict.sharding import Shards, mesh_config, mesh_devices, shards, workers
from jaxdp.workload import refuse_prediction

TOKEN_BYTES, ROW_BYTES = 12, 4  # of a batch: inputs, targets and weights a token, a position a row
COUNTER_BYTES = 8  # the step's and the optimizer's counters
# A TPU keeps a block's scores in its vector memory, unless long contexts (none was fitted) make them too large.
VECTOR_MEMORY_BYTES = 128 * 2**20
SCORE_COPIES = 4  # in bfloat16: two of float32, the probs and their gradients


@dataclass(frozen=True)
class Memory:
    """Bytes a device. `temporaries` lives only inside the step, the gradients among it."""

    parameters: int
    optimizer: int
    gradients: int
    batch: int
    temporaries: int

    @property
    def state(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def arguments(self) -> int:
        """What the compiled step is called with."""
        return self.parameters + self.optimizer + self.batch

    @property
    def activations(self) -> int:
        """What the step needs besides state and batch: activations, logits, gathered parameters."""
        return max(0, self.temporaries - self.gradients)

    @property
    def total(self) -> int:
        return self.arguments + max(self.temporaries, self.gradients)


class Parts(NamedTuple):
    """What the temporaries are made of, in bytes.

    `layer` is one block's activations, by kind: width, queries with keys and values, ffn (GELU), ffn (SwiGLU), and
    the attention scores where all are held at once; `scores` one sequence's for one block of queries, where they are
    not. Gradients are those that a device holds, `reduced` what the optimizer gets of them, in its own layout;
    `*_whole` are full parameters.
    """

    layers: int
    layer: tuple[float, ...]
    scores: float
    logits: float
    tied: bool
    block_gradients: float
    outer_gradients: float
    reduced: float
    block_whole: float
    block_gathered: float
    head_whole: float
    head_gathered: float
    accumulated: float


def memory(
    config: Config, devices: int, hosts: int = 1, compute_dtype: str | None = None, platform: str = "cpu"
) -> Memory:
    """What the step of `config` needs on each of `devices` of a platform ("cpu", "gpu" or "tpu")."""
    refuse_prediction(config, "memory")
    placed = shards(config, devices, hosts)
    held = sum(leaf.shard_bytes for leaf in placed.leaves)
    sequences = local_sequences(config, devices)
    chosen = config.train.compute_dtype
    default = "float32" if platform == "cpu" else "bfloat16"
    width = COMPUTE_BYTES[compute_dtype or (default if chosen == "auto" else chosen)]
    rows = sequences * config.train.accumulation
    return Memory(
        parameters=held,
        optimizer=sum(leaf.optimizer_shard_bytes for leaf in placed.leaves),
        gradients=held,
        batch=rows * (config.model.context * TOKEN_BYTES + ROW_BYTES) + COUNTER_BYTES,
        temporaries=round(temporaries(parts(config, placed, sequences, width, platform), fit(config, platform))),
    )


def fit(config: Config, platform: str) -> Fit | AdditiveFit:
    return FITTED[platform][mesh_config(config).train.remat]


def temporaries(of: Parts, fit: Fit | AdditiveFit) -> float:
    """What the largest of a step's four moments takes, or all of them where the compiler lays them side by side."""
    return _sum(of, fit) if isinstance(fit, AdditiveFit) else _largest(of, fit)


def _sum(of: Parts, fit: AdditiveFit) -> float:
    stacks = of.layers * (_dot(fit.saved, of.layer) + fit.stacked * of.layer[0])
    return (
        stacks
        + fit.working * _dot(SAVED["none"], of.layer)
        + (fit.logits if of.tied else fit.logits_untied) * of.logits
        + fit.block_gradients * of.block_gradients
        + fit.outer_gradients * of.outer_gradients
        + fit.reduced * of.reduced
        + fit.block_whole * of.block_whole
        + fit.accumulated * of.accumulated
        + max(0.0, SCORE_COPIES * of.scores - VECTOR_MEMORY_BYTES)
    )


def _largest(of: Parts, fit: Fit) -> float:
    saved = of.layers * _dot(fit.saved, of.layer)
    backward = (
        max(_dot(fit.mlp, of.layer), _dot(fit.attention, of.layer) + fit.scores * of.scores)
        + fit.block_gradients * of.block_gradients
        + fit.block_whole * of.block_whole
        + fit.block_gathered * of.block_gathered
        + fit.head_backward * of.head_whole
    )
    loss = (
        fit.loss_width * of.layer[0]
        + fit.logits * of.logits
        + fit.head_loss * of.head_whole
        + fit.loss_gradients * of.block_gradients
    )
    kept = fit.head_gathered * of.head_gathered + fit.accumulated * of.accumulated
    update = fit.update_gradients * (of.block_gradients + of.outer_gradients) + fit.update_reduced * of.reduced
    return max(saved + max(backward, loss) + kept, update)


def parts(config: Config, placed: Shards, sequences: int, value_bytes: int, platform: str) -> Parts:
    """One microbatch's arrays on one device of a platform."""
    model = config.model
    tokens = float(sequences * model.context * value_bytes)
    ffn = (0, model.ffn) if model.activation == "swiglu" else (model.ffn, 0)
    projected = (model.heads + 2 * model.key_value_heads) * model.head_dim
    blocks = [leaf for leaf in placed.leaves if leaf.path.startswith("blocks")]
    outer = [leaf for leaf in placed.leaves if not leaf.path.startswith("blocks")]
    head = max(outer, key=lambda leaf: leaf.parameter.bytes)  # of embedding and head the one in use at a time
    held = sum(leaf.shard_bytes for leaf in placed.leaves)
    attention = form(platform, value_bytes, model.head_dim)
    whole = model.heads * model.context if attention.kind == "whole" else 0
    return Parts(
        layers=model.layers,
        layer=tuple(tokens * size for size in (model.width, projected, *ffn, whole)),
        scores=model.heads * _largest_scores(model.context, attention.block) * value_bytes if attention.block else 0,
        logits=loss_chunk(platform, sequences * model.context, model.vocab) * model.vocab * PARAMETER_BYTES,
        tied=model.tied,
        block_gradients=sum(leaf.shard_bytes for leaf in blocks),
        outer_gradients=sum(leaf.shard_bytes for leaf in outer),
        reduced=sum(leaf.gradient_shard_bytes for leaf in placed.leaves),
        block_whole=sum(leaf.parameter.bytes for leaf in blocks) / model.layers,
        block_gathered=sum(leaf.parameter.bytes for leaf in blocks if leaf.params.axis) / model.layers,
        head_whole=head.parameter.bytes,
        head_gathered=head.parameter.bytes if head.params.axis else 0,
        accumulated=held if config.train.accumulation > 1 else 0,
    )


def _largest_scores(context: int, block: int) -> int:
    """The scores of the block of queries with the most."""
    return max((end - start) * end for start, end in query_blocks(context, block))


def local_sequences(config: Config, devices: int) -> int:
    """Sequences of one microbatch on one device, rounded up."""
    sharers = workers(config, devices) * mesh_devices(config, devices) * config.train.accumulation
    return -(-config.train.global_batch // sharers)


def state_bytes_per_parameter(
    cut: Collection[str],
    n: int,
    parameter_bytes: float = PARAMETER_BYTES,
    gradient_bytes: float = PARAMETER_BYTES,
    optimizer_bytes: float = 2 * PARAMETER_BYTES,
) -> float:
    """State bytes a device for each parameter, where `cut` names what is sharded n ways (all three: FSDP).

    The defaults are float32 AdamW; 2, 2 and 12 are mixed precision's. Source: ZeRO (arXiv 1910.02054), section 3.
    """
    held = {"parameters": parameter_bytes, "gradients": gradient_bytes, "optimizer": optimizer_bytes}
    return sum(size / (n if part in cut else 1) for part, size in held.items())


def _dot(coefficients: Collection[float], sizes: Collection[float]) -> float:
    return sum(c * size for c, size in zip(coefficients, sizes, strict=True))
