"""DDP as PyTorch builds it, for comparison: a block's gradients are reduced while the blocks before it go backward."""

from jaxdp.config import Config
from jaxdp.models.shapes import block_count, count
from jaxdp.predict.compute import compute_dtype
from jaxdp.predict.cost import computing
from jaxdp.predict.evaluate import with_strategy
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.traffic import phases
from jaxdp.workload import units_per_batch


def overlapped_ddp_s(config: Config, hardware: Hardware) -> float:
    """Predicted seconds of such a step: a reduction starts when its gradients are there and the one before is over.

    jaxdp's own DDP reduces everything at once after the backward pass.
    """
    config, group = with_strategy(config, "ddp"), hardware.groups[0]
    work = computing(config, group, hardware, units_per_batch(config) / hardware.devices)
    reduce_s = phases(config, hardware, compute_dtype(config, group)).end_s
    block_s = reduce_s * block_count(config.model) / count(config.model) / work.layers
    backward_s = work.layers * work.block_backward_s  # of the last microbatch
    start_s = work.total_s - work.update_s - backward_s
    end_s = start_s
    for block in range(1, work.layers + 1):
        end_s = max(start_s + block * work.block_backward_s, end_s) + block_s
    outer_s = reduce_s - work.layers * block_s
    return max(start_s + backward_s, end_s) + outer_s + work.update_s
