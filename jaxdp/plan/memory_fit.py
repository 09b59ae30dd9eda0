"""The coefficients of `plan.memory`, as fitted by `benchmarks/memory_model.py --fit` (CPU)."""

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


# Without a compiler to fit to: what each policy saves by its definition, after Korthikanti et al. (arXiv 2205.05198),
# with an attention kernel that keeps no scores.
_SAVED = {"none": (5, 1, 2, 4), "dots": (3, 1, 1, 2), "block": (1, 0, 0, 0)}
_MLP = {"none": (4, 0, 2, 4), "dots": (7, 1, 3, 6), "block": (9, 2, 4, 8)}
_ATTENTION = {"none": (4, 2, 0, 0), "dots": (7, 3, 0, 0), "block": (9, 4, 0, 0)}
_BY_DEFINITION = {
    remat: Fit(_SAVED[remat], _MLP[remat], _ATTENTION[remat], 3, 1, 1, 0.5, 1, 3, 2, 1, 1, 0.5, 1, 1, 1)
    for remat in ("none", "dots", "block")
}
# Fitted to 170 programs that XLA compiled for CPUs (benchmarks/data/compiled-bytes-cpu.jsonl).
_CPU = {
    "none": Fit(
        saved=(8.668, 1.101, 6.146, 6.1),
        mlp=(6.848, 0.269, 2.402, 5.63),
        attention=(5.708, 3.635, 0.169, 0.065),
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
        saved=(2.589, 1.196, 0.971, 1.9),
        mlp=(6.863, 1.651, 2.499, 4.68),
        attention=(7.605, 3.469, 0.064, 0.059),
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
        saved=(0.726, 0.146, 0.01, 0.027),
        mlp=(7.822, 1.67, 3.253, 6.1),
        attention=(7.137, 2.747, 0.036, 0.087),
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
FITTED: dict[str, dict[str, Fit]] = {"cpu": _CPU, "gpu": _BY_DEFINITION, "tpu": _BY_DEFINITION}
