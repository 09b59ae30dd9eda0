"""The coefficients of `predict.memory`, as fitted by `benchmarks/memory_model.py --fit` (CPUs and TPUs)."""

from typing import NamedTuple


class Fit(NamedTuple):
    """Multiples of the sizes in `memory.Parts`; tuples go by kind of activation, `saved` counts for every layer."""

    saved: tuple[float, ...]
    mlp: tuple[float, ...]
    attention: tuple[float, ...]
    scores: float
    block_gradients: float
    block_whole: float
    block_gathered: float
    head_backward: float
    loss_width: float
    logits: float
    head_loss: float
    loss_gradients: float
    head_gathered: float
    accumulated: float
    update_gradients: float
    update_reduced: float


class AdditiveFit(NamedTuple):
    """For a compiler that lays the arrays of a step's moments side by side, so that their sizes add up: multiples.

    `saved` as in `Fit`; `stacked` counts further stacks of the residual stream, `working` what "none" saves of a layer,
    `logits_untied` the logits of a model whose head is not its embedding.
    """

    saved: tuple[float, ...]
    stacked: float
    working: float
    logits: float
    logits_untied: float
    block_gradients: float
    outer_gradients: float
    reduced: float
    block_whole: float
    accumulated: float


# Without a compiler to fit to. `saved` is what the loops of compiled programs stack for the backward pass in bfloat16
# (the float32 copies inside the norms count twice), the same on every backend. The rest counts what a block's backward
# pass works on, after Korthikanti et al. (arXiv 2205.05198); where all scores are held, three copies of them (before,
# in and after softmax).
SAVED = {"none": (13, 1, 6, 6, 3), "dots": (3, 1, 1, 2, 0), "block": (1, 0, 0, 0, 0)}
_MLP = {"none": (4, 0, 2, 4, 0), "dots": (7, 1, 3, 6, 0), "block": (9, 2, 4, 8, 0)}
_ATTENTION = {"none": (4, 2, 0, 0, 3), "dots": (7, 3, 0, 0, 3), "block": (9, 4, 0, 0, 3)}
_BY_DEFINITION = {
    remat: Fit(SAVED[remat], _MLP[remat], _ATTENTION[remat], 3, 1, 1, 0.5, 1, 3, 2, 1, 1, 0.5, 1, 1, 0)
    for remat in ("none", "dots", "block")
}
# Fitted to 170 programs that XLA compiled for CPUs (benchmarks/data/compiled-bytes-cpu.jsonl).
_CPU = {
    "none": Fit(
        saved=(8.668, 1.101, 6.146, 6.1, 0.0),
        mlp=(6.848, 0.269, 2.402, 5.63, 0.0),
        attention=(5.708, 3.635, 0.169, 0.065, 0.0),
        scores=5.384,
        block_gradients=0.998,
        block_whole=1.128,
        block_gathered=0.164,
        head_backward=0.495,
        loss_width=3.082,
        logits=1.966,
        head_loss=1.048,
        loss_gradients=0.923,
        head_gathered=0.473,
        accumulated=0.911,
        update_gradients=1.0,
        update_reduced=0.996,
    ),
    "dots": Fit(
        saved=(2.589, 1.196, 0.971, 1.9, 0.0),
        mlp=(6.863, 1.651, 2.499, 4.68, 0.0),
        attention=(7.605, 3.469, 0.064, 0.059, 0.0),
        scores=2.572,
        block_gradients=1.0,
        block_whole=1.015,
        block_gathered=0.29,
        head_backward=1.034,
        loss_width=3.082,
        logits=1.966,
        head_loss=1.048,
        loss_gradients=0.923,
        head_gathered=0.473,
        accumulated=0.911,
        update_gradients=1.0,
        update_reduced=0.996,
    ),
    "block": Fit(
        saved=(0.726, 0.146, 0.01, 0.027, 0.0),
        mlp=(7.822, 1.67, 3.253, 6.1, 0.0),
        attention=(7.137, 2.747, 0.036, 0.087, 0.0),
        scores=7.102,
        block_gradients=0.998,
        block_whole=0.91,
        block_gathered=0.164,
        head_backward=0.823,
        loss_width=3.082,
        logits=1.966,
        head_loss=1.048,
        loss_gradients=0.923,
        head_gathered=0.473,
        accumulated=0.911,
        update_gradients=1.0,
        update_reduced=0.996,
    ),
}
# Fitted to 63 programs of GPTs that XLA compiled for TPUs (v5p:2x2x2; benchmarks/data/compiled-bytes-tpu.jsonl), untied
# logits to 21 of other models beside them (compiled-bytes-tpu-others.jsonl).
_TPU: dict[str, AdditiveFit] = {
    "none": AdditiveFit(
        saved=SAVED["none"],
        stacked=0.237,
        working=1.989,
        logits=1.938,
        logits_untied=0.553,
        block_gradients=1.336,
        outer_gradients=1.764,
        reduced=0.864,
        block_whole=1.778,
        accumulated=1.96,
    ),
    "dots": AdditiveFit(
        saved=SAVED["dots"],
        stacked=2.004,
        working=1.216,
        logits=1.312,
        logits_untied=0.836,
        block_gradients=1.417,
        outer_gradients=0.0,
        reduced=0.949,
        block_whole=1.41,
        accumulated=1.504,
    ),
    "block": AdditiveFit(
        saved=SAVED["block"],
        stacked=1.422,
        working=0.462,
        logits=0.975,
        logits_untied=0.406,
        block_gradients=1.765,
        outer_gradients=0.105,
        reduced=0.2,
        block_whole=1.928,
        accumulated=2.222,
    ),
}
FITTED: dict[str, dict[str, Fit] | dict[str, AdditiveFit]] = {"cpu": _CPU, "gpu": _BY_DEFINITION, "tpu": _TPU}
