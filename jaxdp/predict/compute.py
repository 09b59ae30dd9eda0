"""Seconds that one device computes in a step: a roofline a block, with a floor for launching its kernels.

A block's work is its matrix products at the reachable rate plus its memory traffic at the memory's
bandwidth. Launching a block's kernels takes `block_floor_s` however small they are. Kernels of different
sizes lie on either side of that floor, so the two join in a smooth maximum.
"""

from dataclasses import dataclass

from jaxdp.config import Config, ModelConfig
from jaxdp.models import shapes
from jaxdp.parameter import PARAMETER_BYTES
from jaxdp.predict.hardware import HostGroup

SMOOTHNESS = 3.0  # the power mean's exponent; fitted on one A100 node (benchmarks/iteration_model.py)
SAVED_PASSES = 4.0  # a saved activation is written, read again, and its gradient written and read
COMPUTE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Rates:
    """What one device reaches."""

    matmul_flops: float
    memory_bandwidth: float
    block_floor_s: float = 0.0
    activation_passes: float = SAVED_PASSES


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of memory traffic."""

    flops: float
    traffic_bytes: float

    def seconds(self, rates: Rates) -> float:
        return self.flops / rates.matmul_flops + self.traffic_bytes / rates.memory_bandwidth


def rates(group: HostGroup, dtype: str) -> Rates:
    """The rates of a group's device of relative speed 1, in a train step."""
    return Rates(group.matmul_flops(dtype) * group.efficiency, group.memory_bandwidth * group.efficiency)


def compute_dtype(config: Config, group: HostGroup) -> str:
    """The configured dtype, `auto` being the hardware's own."""
    chosen = config.train.compute_dtype
    return group.compute_dtype if chosen == "auto" else chosen


def block_forward_flops(model: ModelConfig, tokens: float, causal: bool = True) -> tuple[float, float]:
    """(matrix products with parameters, attention) of one block's forward pass over `tokens`."""
    matrices = (shapes.matmul_count(model) - model.width * model.vocab) / model.layers
    attention = 4 * model.context * model.heads * model.head_dim
    return 2 * matrices * tokens, attention * tokens / (2 if causal else 1)


def block_work(
    model: ModelConfig, tokens: float, remat: str, value_bytes: int, passes: float, scores: bool = False
) -> tuple[Work, Work]:
    """One block's forward pass, and its backward pass with what rematerialisation repeats.

    Saved activations are the 34 bytes a hidden value (at 16 bit) of Korthikanti et al. (arXiv 2205.05198),
    plus 5 a score where the attention kernel keeps scores (`scores`; it then computes the masked half too).
    """
    matrices, attention = block_forward_flops(model, tokens, causal=not scores)
    hidden = tokens * model.width
    saved = 17 * value_bytes * hidden
    if scores:
        saved += 5 * value_bytes / 2 * tokens * model.context * model.heads
    weights = shapes.block_count(model) / model.layers * value_bytes
    again = {"none": 0.0, "dots": attention, "block": matrices + attention}[remat]
    repeated = {"none": 0.0, "dots": 0.5, "block": 1.0}[remat]
    forward = Work(matrices + attention, weights + saved * passes / 2)
    backward = Work(2 * (matrices + attention) + again, 2 * weights + saved * passes / 2 * (1 + repeated))
    return forward, backward


def head_work(model: ModelConfig, tokens: float, value_bytes: int, passes: float) -> Work:
    """Logits and loss, forward and backward; the logits are float32."""
    products = 6 * tokens * model.width * model.vocab
    logits = tokens * model.vocab * PARAMETER_BYTES
    return Work(products, passes * logits + 3 * model.width * model.vocab * value_bytes)


def block_seconds(work: Work, device: Rates, share: float) -> float:
    """Seconds of a part of a block's step that launches `share` of the block's kernels."""
    floor, busy = device.block_floor_s * share, work.seconds(device)
    larger, smaller = max(floor, busy), min(floor, busy)
    return larger * (1 + (smaller / larger) ** SMOOTHNESS) ** (1 / SMOOTHNESS) if larger else 0.0


def update_bytes(held: float, moments: int) -> float:
    """Traffic of an optimizer's step over `held` parameters: all read, all but the gradient written."""
    return held * PARAMETER_BYTES * (2 * (1 + moments) + 1)
