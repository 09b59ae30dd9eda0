"""Bytes that one device holds during a training step, from shapes and rules alone."""

from collections.abc import Collection
from dataclasses import dataclass

from jaxdp.config import Config
from jaxdp.learn.shapes import PARAMETER_BYTES
from jaxdp.plan.compute import COMPUTE_BYTES
from jaxdp.plan.sharding import Shards, mesh_config, mesh_devices, shards, workers


@dataclass(frozen=True)
class Memory:
    """Bytes a device: the state (gradients counted in), and what lives only inside a step."""

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    gathered: int

    @property
    def state(self) -> int:
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        return self.state + self.activations + self.gathered


def memory(config: Config, devices: int, hosts: int = 1, compute_dtype: str | None = None) -> Memory:
    """What the step of `config` needs on each of `devices`."""
    compute_bytes = COMPUTE_BYTES[compute_dtype or _compute_dtype(config)]
    placed = shards(config, devices, hosts)
    return Memory(
        parameters=sum(leaf.shard_bytes for leaf in placed.leaves),
        optimizer=sum(leaf.optimizer_shard_bytes for leaf in placed.leaves),
        gradients=sum(leaf.shard_bytes for leaf in placed.leaves),
        activations=activation_bytes(config, devices, compute_bytes),
        gathered=_gathered_bytes(config, placed, compute_bytes),
    )


def state_bytes_per_parameter(
    cut: Collection[str],
    n: int,
    parameter_bytes: float = PARAMETER_BYTES,
    gradient_bytes: float = PARAMETER_BYTES,
    optimizer_bytes: float = 2 * PARAMETER_BYTES,
) -> float:
    """State bytes a device for each parameter, where `cut` names what is sharded n ways (all three: FSDP).

    The defaults are float32 AdamW; 2, 2 and 12 are mixed precision's. Source: ZeRO (arXiv 1910.02054), section 3.
    """
    held = {"parameters": parameter_bytes, "gradients": gradient_bytes, "optimizer": optimizer_bytes}
    return sum(size / (n if part in cut else 1) for part, size in held.items())


def local_sequences(config: Config, devices: int) -> int:
    """Sequences of one microbatch on one device, rounded up."""
    sharers = workers(config, devices) * mesh_devices(config, devices) * config.train.accumulation
    return -(-config.train.global_batch // sharers)


def activation_bytes(config: Config, devices: int, compute_bytes: int) -> int:
    """What the backward pass keeps of one microbatch, and the logits.

    Source: Korthikanti et al. (arXiv 2205.05198), section 4, with attention scores kept whole.
    """
    model = mesh_config(config).model
    tokens = local_sequences(config, devices) * model.context
    hidden = tokens * model.width
    scores = tokens * model.context * model.heads
    layer = compute_bytes * (17 * hidden + scores * 5 // 2)
    kept = {
        "none": model.layers * layer,
        "dots": model.layers * compute_bytes * 9 * hidden + layer,
        "block": model.layers * compute_bytes * hidden + layer,
    }[config.train.remat]
    return kept + 2 * PARAMETER_BYTES * tokens * model.vocab


def _compute_dtype(config: Config) -> str:
    return "float32" if config.train.compute_dtype == "auto" else config.train.compute_dtype


def _gathered_bytes(config: Config, placed: Shards, compute_bytes: int) -> int:
    """The largest set of full parameters that is alive at once: one block, and all that lies outside blocks."""
    cut = [leaf for leaf in placed.leaves if any(leaf.params)]
    blocks = sum(leaf.parameter.size // config.model.layers for leaf in cut if leaf.path.startswith("blocks"))
    outside = sum(leaf.parameter.size for leaf in cut if not leaf.path.startswith("blocks"))
    return compute_bytes * (blocks + outside)
