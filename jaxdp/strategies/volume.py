"""Each strategy's own closed formula for the bytes that a device must send in a step (no JAX).

With reductions in float32. Source: ZeRO (arXiv 1910.02054), section 7, with what lies outside the blocks gathered
once. The plan of the collectives is derived from the rules instead, and a law holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxdp.parameter import GRADIENT_BYTES, PARAMETER_BYTES
from jaxdp.strategies.rules import DATA_AXIS, HOST_AXIS


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a formula reads: numbers of parameters inside and outside the blocks, the mesh, and how a step is taken."""

    block_parameters: int
    root_parameters: int
    axis_sizes: Mapping[str, int]
    compute_dtype_bytes: int = PARAMETER_BYTES
    accumulation: int = 1

    @property
    def parameters(self) -> int:
        return self.block_parameters + self.root_parameters

    def share(self, axis: str) -> float:
        """What a ring over the axis sends of an array in one pass: (n-1)/n."""
        size = self.axis_sizes.get(axis, 1)
        return (size - 1) / size


def ddp_bytes(step: Step) -> float:
    """One all-reduce of everything."""
    return 2 * step.share(DATA_AXIS) * step.parameters * GRADIENT_BYTES


def zero1_bytes(step: Step) -> float:
    """A reduce-scatter of the gradients, and an all-gather of the new parameters."""
    return step.share(DATA_AXIS) * step.parameters * (GRADIENT_BYTES + PARAMETER_BYTES)


def fsdp_bytes(step: Step) -> float:
    """Two gathers and a reduce-scatter of the blocks a microbatch; outside a reduce-scatter a microbatch, one gather.

    Across hosts, where there is such an axis (HSDP), an all-reduce of the shards.
    """
    gathers = (2 * step.block_parameters * step.accumulation + step.root_parameters) * step.compute_dtype_bytes
    everything = step.parameters * GRADIENT_BYTES
    across = 2 * step.share(HOST_AXIS) * everything / step.axis_sizes[DATA_AXIS]
    return step.share(DATA_AXIS) * (gathers + step.accumulation * everything) + across


def server_bytes(step: Step) -> float:
    """A worker's pull of the parameters and push of the gradients."""
    return step.parameters * (PARAMETER_BYTES + GRADIENT_BYTES)
