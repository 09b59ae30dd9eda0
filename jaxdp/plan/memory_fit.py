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
    outer_backward: float
    loss_width: float
    logits: float
    outer_loss: float
    loss_gradients: float
    outer_gathered: float
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
        saved=(8.668, 1.138, 6.158, 6.126),
        mlp=(6.736, 0.232, 2.264, 5.559),
        attention=(5.571, 3.517, 0.164, 0.108),
        scores=5.451,
        block_gradients=1.024,
        block_whole=0.957,
        block_gathered=0.23,
        outer_backward=0.376,
        loss_width=2.992,
        logits=1.973,
        outer_loss=0.495,
        loss_gradients=0.891,
        outer_gathered=0.542,
        accumulated=0.936,
        update_gradients=1.127,
        update_reduced=1.127,
    ),
    "dots": Fit(
        saved=(2.618, 1.134, 0.912, 1.929),
        mlp=(8.251, 1.82, 2.363, 3.888),
        attention=(7.498, 3.376, 0.0, 0.229),
        scores=3.852,
        block_gradients=1.105,
        block_whole=0.69,
        block_gathered=0.419,
        outer_backward=1.146,
        loss_width=3.91,
        logits=1.993,
        outer_loss=0.525,
        loss_gradients=1.052,
        outer_gathered=0.382,
        accumulated=0.927,
        update_gradients=1.0,
        update_reduced=1.0,
    ),
    "block": Fit(
        saved=(0.521, 0.087, 0.096, 0.151),
        mlp=(8.94, 1.907, 2.682, 5.607),
        attention=(6.994, 2.807, 0.051, 0.09),
        scores=7.085,
        block_gradients=1.106,
        block_whole=0.74,
        block_gathered=0.372,
        outer_backward=0.575,
        loss_width=3.933,
        logits=1.935,
        outer_loss=1.749,
        loss_gradients=0.382,
        outer_gathered=0.158,
        accumulated=0.841,
        update_gradients=1.957,
        update_reduced=0.059,
    ),
}
FITTED: dict[str, dict[str, Fit]] = {"cpu": _CPU, "gpu": _BY_DEFINITION, "tpu": _BY_DEFINITION}
