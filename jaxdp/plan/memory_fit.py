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
# Fitted to 140 programs that XLA compiled for CPUs (benchmarks/data/compiled-bytes-cpu.jsonl).
_CPU = {
    "none": Fit(
        saved=(8.622, 1.252, 6.156, 6.028),
        mlp=(6.521, 0.261, 2.101, 5.744),
        attention=(5.403, 3.019, 0.3, 0.0),
        scores=4.909,
        block_gradients=1.022,
        block_whole=0.91,
        block_gathered=0.242,
        outer_backward=0.523,
        loss_width=2.681,
        logits=1.956,
        outer_loss=0.421,
        loss_gradients=0.916,
        outer_gathered=0.627,
        accumulated=0.928,
        update_gradients=1.127,
        update_reduced=1.127,
    ),
    "dots": Fit(
        saved=(2.626, 1.27, 0.903, 1.879),
        mlp=(8.522, 1.732, 2.176, 3.803),
        attention=(7.382, 3.338, 0.002, 0.215),
        scores=4.012,
        block_gradients=1.029,
        block_whole=0.656,
        block_gathered=0.536,
        outer_backward=1.192,
        loss_width=3.794,
        logits=1.97,
        outer_loss=0.538,
        loss_gradients=1.023,
        outer_gathered=0.351,
        accumulated=0.904,
        update_gradients=1.0,
        update_reduced=1.0,
    ),
    "block": Fit(
        saved=(0.917, 0.035, 0.025, 0.061),
        mlp=(6.966, 1.592, 3.538, 6.524),
        attention=(8.597, 3.239, 0.028, 0.018),
        scores=5.689,
        block_gradients=1.003,
        block_whole=0.977,
        block_gathered=0.0,
        outer_backward=0.815,
        loss_width=2.698,
        logits=2.004,
        outer_loss=0.0,
        loss_gradients=1.662,
        outer_gathered=1.351,
        accumulated=0.696,
        update_gradients=1.0,
        update_reduced=1.0,
    ),
}
FITTED: dict[str, dict[str, Fit]] = {"cpu": _CPU, "gpu": _BY_DEFINITION, "tpu": _BY_DEFINITION}
