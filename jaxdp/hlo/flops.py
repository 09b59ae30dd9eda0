"""The FLOPs of a compiled program's matrix products, loops multiplied: `flops(compiled.as_text())` (no JAX)."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxdp.hlo.text import Computation, Instruction, Program, arrays, parse
from jaxdp.hlo.walk import Site, walk

# Library calls that may hold products; one that isn't understood makes the total a lower bound, and says so.
_LIBRARY = re.compile(r"gemm|matmul|dot|conv\b|conv[A-Z]|fmha|attention|tpu_custom_call|triton|cutlass", re.IGNORECASE)
_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5  # of attention; backward computes the scores again


@dataclass(frozen=True)
class Flops:
    """FLOPs of one device in one run of the program, and the names of what could not be counted."""

    total: int
    unknown: tuple[str, ...]


def flops(text: str) -> Flops:
    """FLOPs (two a multiply-add) of all products and convolutions, from shapes alone.

    Products inside a library call are counted where its configuration tells them (cuBLAS, cuDNN attention),
    and the call is named in `unknown` where not. Raises `JaxdpError` if `text` is no compiled program.
    """

    def weight(sites: list[Site]) -> float:
        return sum((_once(site) or 0) * (site.count or 0) for site in sites)

    total, unknown = 0, []
    for site in walk(parse(text), lambda instruction: instruction.opcode in _COUNTERS, weight):
        once = _once(site)
        if once is None or (once and site.count is None):
            unknown.append(site.instruction.op_name or site.instruction.name)
        else:
            total += once * (site.count or 0)
    return Flops(total, tuple(unknown))


def of_instruction(program: Program, computation: Computation, instruction: Instruction) -> int:
    """FLOPs of the products in one run of an instruction, a fusion's included; 0 where they can't be told."""
    if instruction.opcode in _COUNTERS:
        return _COUNTERS[instruction.opcode](instruction, computation) or 0
    if instruction.opcode != "fusion":
        return 0
    inside = [program.computation(name) for name in instruction.callees("calls")]
    return sum(of_instruction(program, each, one) for each in inside for one in each.instructions)


def _once(site: Site) -> int | None:
    """FLOPs of one execution; None if they can't be told."""
    return _COUNTERS[site.instruction.opcode](site.instruction, site.computation)


def _dot(dot: Instruction, computation: Computation) -> int | None:
    left = _operand(dot, computation, 0)
    if left is None:
        return None
    contracted = math.prod(left[dim] for dim in dot.integers("lhs_contracting_dims"))
    return 2 * contracted * arrays(dot.shape)[0].elements


def _convolution(convolution: Instruction, computation: Computation) -> int | None:
    """Counts multiply-adds with real input only: XLA for TPU writes batched products as dilated convolutions."""
    image, kernel = _operand(convolution, computation, 0), _operand(convolution, computation, 1)
    labels = re.match(r"(\w+)_(\w+)->(\w+)", convolution.attribute("dim_labels") or "")
    if image is None or kernel is None or labels is None:
        return None
    image_dim, kernel_dim = dict(zip(labels[1], image, strict=True)), dict(zip(labels[2], kernel, strict=True))
    out_dim = dict(zip(labels[3], arrays(convolution.shape)[0].dims, strict=True))
    batch_groups = (convolution.integers("batch_group_count") or (1,))[0]
    products = kernel_dim["i"] * kernel_dim["o"] * image_dim["b"] // batch_groups
    for place, label in enumerate(sorted(label for label in kernel_dim if label.isdigit())):
        window = _window(convolution, place)
        products *= _meetings(image_dim[label], kernel_dim[label], out_dim[label], *window)
    return 2 * products


def _window(convolution: Instruction, place: int) -> tuple[int, int, int, int]:
    """(stride, low padding, input dilation, kernel dilation) of one spatial dim."""
    text = convolution.attribute("window") or ""

    def field(name: str, default: str) -> str:
        found = re.search(rf"\b{name}=(\S+?)[\s}}]", text)
        return found[1].split("x")[place] if found else default

    padding = field("pad", "0_0").rpartition("_")[0]
    return int(field("stride", "1")), int(padding), int(field("lhs_dilate", "1")), int(field("rhs_dilate", "1"))


def _meetings(image: int, kernel: int, out: int, stride: int, low: int, spread: int, kernel_spread: int) -> int:
    """Pairs of an output and a kernel element that meet a real input element, neither padding nor a dilation's gap."""
    total = 0
    common = math.gcd(stride, spread)
    for element in range(kernel):
        shift = element * kernel_spread - low  # the place in the spread input is output * stride + shift
        if shift % common:
            continue
        first = max(0, -(shift // stride))
        last = min(out - 1, ((image - 1) * spread - shift) // stride)
        period = spread // common
        meets = (-shift // common) * pow(stride // common, -1, period) % period if period > 1 else 0
        first += (meets - first) % period
        total += max(0, (last - first) // period + 1)
    return total


def _custom_call(call: Instruction, computation: Computation) -> int | None:
    target = (call.attribute("custom_call_target") or "").strip('"')
    if not _LIBRARY.search(target):
        return 0
    configuration = call.rest.replace("\\", "")
    left = _operand(call, computation, 0)
    if target.startswith("__cudnn$fmha") and left is not None:
        return _attention(target, configuration, left[-1])
    contracting = re.search(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]', configuration)
    if target.startswith("__cublas$") and left is not None and contracting is not None:
        contracted = math.prod(left[int(dim)] for dim in re.findall(r"\d+", contracting[1]))
        return 2 * contracted * arrays(call.shape)[0].elements
    return None


def _attention(target: str, configuration: str, head_dim: int) -> int | None:
    """cuDNN's fused attention; with a causal mask it skips the masked half."""
    scores = re.search(r'"intermediate_tensor_shape":\s*\{.*?"dimensions":\s*\[([^\]]*)\]', configuration)
    if scores is None:
        return None
    products = _BACKWARD_PRODUCTS if "Backward" in target else _FORWARD_PRODUCTS
    full = 2 * products * head_dim * math.prod(int(dim) for dim in re.findall(r"\d+", scores[1]))
    return full // 2 if re.search(r'"mask_type":\s*"[A-Z_]*CAUSAL', configuration) else full


def _operand(instruction: Instruction, computation: Computation, place: int) -> tuple[int, ...] | None:
    """The dims of an operand that is one array."""
    operands = instruction.operands
    if place >= len(operands):
        return None
    array = computation.array(operands[place])
    return array.dims if array else None


_COUNTERS: dict[str, Callable[[Instruction, Computation], int | None]] = {
    "dot": _dot,
    "convolution": _convolution,
    "custom-call": _custom_call,
}
