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
FITTED: dict[str, dict[str, Fit]] = {"cpu": _BY_DEFINITION, "gpu": _BY_DEFINITION, "tpu": _BY_DEFINITION}
