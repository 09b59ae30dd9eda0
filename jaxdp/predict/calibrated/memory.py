"""Bytes that a device needs under a stack: state by the strategy, activations by recomputation."""

from dataclasses import dataclass, replace

from jaxdp.predict.calibrated.rates import Stack, usable_bytes
from jaxdp.predict.calibrated.runs import Run
from jaxdp.predict.presets import sheet

GIB = 2**30
# The share of a block's values that is saved.
KEPT = {"none": 1.0, "dots": 0.7, "op": 0.45, "layers": 0.5, "block": 0.0, "offload": 0.0}
NARROW_KEPT = 0.65  # float8 keeps the products' inputs in half the bytes
REMAT_TRIED = ("none", "layers", "block")


@dataclass(frozen=True)
class Held:
    """Bytes of one device."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float

    @property
    def state(self) -> float:
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.state + self.gathered + self.activations + self.logits


def held(run: Run, stack: Stack) -> Held:
    shape, parameters = run.shape, run.shape.parameters
    whole = (stack.parameter_bytes, stack.held_gradient_bytes, stack.optimizer_bytes)
    shared = {
        "ddp": (1, 1, 1),
        "zero1": (1, 1, run.sharing),
        "zero2": (1, run.sharing, run.sharing),
        "fsdp": (run.sharing,) * 3,
        "hsdp": (run.sharing,) * 3,
    }[run.strategy]
    state = [parameters * size / n for size, n in zip(whole, shared, strict=True)]
    buffers = stack.buffer_bytes * parameters if run.strategy == "zero1" else 0.0
    sharded = run.strategy in ("fsdp", "hsdp")
    gathered = buffers + (stack.gathered_bytes * shape.block_parameters if sharded else 0.0)
    values = block_values(run) * stack.saved * (1 if run.precision == "bfloat16" else NARROW_KEPT)
    kept = KEPT[run.remat]
    inputs = 0.0 if run.remat == "offload" else 2 * run.tokens * shape.width
    return Held(
        *state,
        gathered=gathered + stack.fixed_gib * GIB,
        activations=shape.layers * (kept * values + (1 - kept) * inputs) + (1 - kept) * values,
        logits=run.tokens * shape.vocab * stack.logit_bytes,
    )


def block_values(run: Run) -> float:
    """Bytes of what one block's forward pass would save at 16 bit (Korthikanti et al., arXiv 2205.05198)."""
    shape = run.shape
    projected = (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim
    ffn = (4 if shape.gated else 2) * shape.ffn
    scores = 0.0 if run.attention != "scores" else 2.5 * run.context * shape.heads
    return 2 * run.tokens * (4 * shape.width + projected + ffn + scores)


def fits(run: Run, stack: Stack) -> bool:
    return held(run, stack).total <= usable_bytes(sheet(run.device).memory_bytes, stack)


def with_remat(run: Run, stack: Stack) -> Run:
    """A run that does not state its recomputation gets the least that fits."""
    if run.remat != "unstated":
        return run
    tried = [replace(run, remat=remat) for remat in REMAT_TRIED]
    return next((one for one in tried if fits(one, stack)), tried[-1])
