"""Seconds of a step by what they are spent on, from physical rates and from what a stack overlaps and repeats.

Every part counts only the seconds that it adds to the step, so that they add up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jaxdp.predict.calibrated.rates import Coefficients, Network, Rates, Stack
from jaxdp.predict.calibrated.runs import Run
from jaxdp.predict.presets import Sheet, sheet

FLASH_BACKWARD = 2.5  # five products against two forward: the scores are made again (arXiv 2307.08691)
VALUE_BYTES, LOGIT_BYTES = 2, 4
UPDATE_BYTES = 30  # AdamW: gradient, float32 copy and two moments read, the latter written, and the bfloat16 copy
SMOOTHNESS = 3.0  # of the greater of two rates of work that hardly overlap


@dataclass(frozen=True, kw_only=True)
class Work:
    """Seconds of computing: of a block's forward and backward pass in a microbatch, launches and repeats included, of
    the head in a microbatch, and of a step's update.
    """

    forward: float
    backward: float
    head: float
    update: float
    split: Mapping[str, float]  # of a whole step, by what they are spent on: they add up to it


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Seconds of a step; gathers, scatters and reductions are what computing does not hide of them."""

    split: Mapping[str, float]
    gather: float
    scatter: float
    reduce: float
    waiting: float

    @property
    def compute(self) -> float:
        return sum(self.split.values())

    @property
    def communication(self) -> float:
        return self.gather + self.scatter + self.reduce

    @property
    def total(self) -> float:
        return self.compute + self.communication + self.waiting


class Forward(NamedTuple):
    """Seconds of one block's forward pass over a microbatch."""

    products: float
    attention: float
    traffic: float

    @property
    def total(self) -> float:
        return self.products + self.attention + self.traffic


def step_seconds(run: Run, known: Coefficients) -> StepParts:
    """A step of `run`, whose recomputation is stated."""
    device, stack = sheet(run.device), known.stack(run.stack)
    done = work(run, device, known.rates(run.device), stack)
    return with_communication(run, done, stack, known.network(run))


def with_communication(run: Run, done: Work, stack: Stack, network: Network, slower: float = 1.0) -> StepParts:
    """The step, whose computing takes `slower` times as long on the device that all wait for."""
    layers = run.shape.layers
    gather, scatter, reduce = shown_communication(
        run, stack, network, slower * layers * done.forward, slower * (layers * done.backward + done.head)
    )
    working = sum(done.split.values()) + gather + scatter + reduce
    doublings = max(0.0, math.log2(run.devices / network.per_host))
    waiting = working * stack.jitter * doublings
    return StepParts(split=done.split, gather=gather, scatter=scatter, reduce=reduce, waiting=waiting)


def work(run: Run, device: Sheet, rates: Rates, stack: Stack) -> Work:
    """What one device computes."""
    layers, times, bandwidth = run.shape.layers, run.accumulation, device.memory_bandwidth * rates.memory
    forward = block_forward(run, device, rates, stack)
    repeated = repeated_seconds(run, forward, stack)
    backward = 2 * forward.products + FLASH_BACKWARD * forward.attention + 2 * forward.traffic
    busy = forward.total + backward + repeated
    launch = smooth_max(busy, stack.launch_s) - busy
    head = head_seconds(run, product_rate(device, rates, stack, "bfloat16"), bandwidth, stack)
    update = update_bytes(run, stack) / bandwidth
    return Work(
        forward=forward.total + launch / 3,
        backward=backward + repeated + launch * 2 / 3,
        head=head,
        update=update,
        split={
            "products": 3 * times * layers * forward.products,
            "attention": (1 + FLASH_BACKWARD) * times * layers * forward.attention,
            "traffic": 3 * times * layers * forward.traffic,
            "head": times * head,
            "launch": times * layers * launch,
            "recomputation": times * layers * repeated,
            "update": update,
        },
    )


def block_forward(run: Run, device: Sheet, rates: Rates, stack: Stack) -> Forward:
    """One block: its products and its attention at their rates, and the traffic of the values between them."""
    shape, tokens = run.shape, run.tokens
    scores = 4 * tokens * run.context * shape.heads * shape.head_dim
    values = VALUE_BYTES * tokens * (8 * shape.width + (4 if shape.gated else 2) * shape.ffn)
    if run.attention == "scores":
        attention = scores / product_rate(device, rates, stack, "bfloat16")
        values += 4 * VALUE_BYTES * tokens * run.context * shape.heads
    elif run.attention == "blocked":
        attention = scores / 2 / product_rate(device, rates, stack, "bfloat16")
    else:
        attention = scores / 2 / attention_rate(run, device, rates)
    moved = values * stack.passes
    if run.autocast:  # float32 weights are read and cast in every pass
        moved += 6 * shape.block_parameters
    if run.precision in ("float8", "float4"):  # weights and activations are scaled and cast
        moved += stack.cast * tokens * (4 * shape.width + 2 * shape.ffn) + 3 * shape.block_parameters
    products = 2 * shape.block_parameters * tokens / product_rate(device, rates, stack, run.precision)
    return Forward(products, attention, moved / (device.memory_bandwidth * rates.memory))


def product_rate(device: Sheet, rates: Rates, stack: Stack, precision: str) -> float:
    """FLOP/s of a block's products."""
    usual = device.bfloat16 * rates.products * stack.products
    if precision in ("float8", "float4"):
        return usual * (getattr(device, precision) / device.bfloat16) ** rates.narrow
    return usual / 2 if precision == "float32" else usual  # tensor cores do float32 (TF32) at half the rate


def attention_rate(run: Run, device: Sheet, rates: Rates) -> float:
    """FLOP/s of a fused kernel over the unmasked half."""
    long = run.context / (run.context + rates.attention_context)
    wide = min(1.0, run.shape.head_dim / 128) ** rates.attention_width
    return device.bfloat16 * getattr(rates, run.attention) * long * wide


def repeated_seconds(run: Run, forward: Forward, stack: Stack) -> float:
    """What of a block's forward pass runs twice (`Run.remat`)."""
    if run.remat == "op":
        return forward.products / 2 + forward.traffic
    if run.remat == "dots":
        return forward.attention + forward.traffic / 2
    if run.remat == "offload":
        shape = run.shape
        mlp = (3 if shape.gated else 2) * shape.width * shape.ffn / shape.block_parameters
        return (forward.products * mlp + forward.traffic) * stack.recompute
    whole = {"none": 0.0, "layers": 0.5, "block": 1.0}[run.remat]
    return forward.total * stack.recompute * whole


def head_seconds(run: Run, rate: float, bandwidth: float, stack: Stack) -> float:
    """Logits and loss of a microbatch, forward and backward."""
    products = 6 * run.tokens * run.shape.width * run.shape.vocab / rate
    return products + LOGIT_BYTES * run.tokens * run.shape.vocab * stack.logit_passes / bandwidth


def update_bytes(run: Run, stack: Stack) -> float:
    """Traffic of the optimizer over the state a device holds, and of adding up gradients of microbatches."""
    parameters, n = run.shape.parameters, run.sharing
    held = parameters if run.strategy == "ddp" else parameters / n
    summed = parameters / n if run.strategy in ("fsdp", "hsdp") else parameters
    return held * UPDATE_BYTES + run.accumulation * summed * stack.accumulation_bytes


def shown_communication(
    run: Run, stack: Stack, network: Network, forward_s: float, backward_s: float
) -> tuple[float, float, float]:
    """Seconds of gathers, scatters and reductions that show, beside a microbatch's forward and backward seconds.

    FSDP gathers twice and scatters once a microbatch, ZeRO-2 gathers once; ZeRO-1 and DDP communicate once a step.
    """
    if run.devices == 1:
        return 0.0, 0.0, 0.0
    layers, n, times = run.shape.layers, run.sharing, run.accumulation
    weights, gradients = VALUE_BYTES * run.shape.parameters, stack.gradient_bytes * run.shape.parameters
    if run.strategy == "ddp":
        return 0.0, 0.0, shown(network.all_reduce(gradients, *network.levels(n), layers), backward_s, stack.overlap_end)
    gather = network.one_pass("all-gather", weights, *network.levels(n), layers)
    scatter = network.one_pass("reduce-scatter", gradients, *network.levels(n), layers)
    if run.strategy == "zero1":
        return shown(gather, forward_s, stack.overlap_end), shown(scatter, backward_s, stack.overlap_end), 0.0
    again = 0.0 if run.strategy == "zero2" else gather
    late = shown(again + scatter, backward_s, stack.overlap)
    gathered = shown(gather, forward_s, stack.overlap) + late * again / (again + scatter)
    reduce = 0.0
    if run.devices > n:
        across = network.all_reduce(gradients / n, 1, run.devices / n, layers)
        reduce = shown(across, backward_s, stack.overlap_end)
    return times * gathered, times * late * scatter / (again + scatter), reduce


def shown(communication_s: float, computing_s: float, overlap: float) -> float:
    """What shows of communication of which a share can run beside computing."""
    beside = overlap * communication_s
    return communication_s - beside + smooth_max(beside, computing_s) - computing_s


def smooth_max(a: float, b: float) -> float:
    larger, smaller = max(a, b), min(a, b)
    return larger * (1 + (smaller / larger) ** SMOOTHNESS) ** (1 / SMOOTHNESS) if larger else 0.0
