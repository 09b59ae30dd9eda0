"""A training run as people state it: model, batch, machine, strategy, and the stack that runs it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer's shape. `gated`: SwiGLU's three matrices instead of two."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated: bool
    tied: bool

    @property
    def block_parameters(self) -> int:
        """The matrices of one block."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.width * (2 * queries + 2 * keys + (3 if self.gated else 2) * self.ffn)

    @property
    def parameters(self) -> int:
        return self.layers * self.block_parameters + (1 if self.tied else 2) * self.width * self.vocab


@dataclass(frozen=True, kw_only=True)
class Run:
    """One configuration. `microbatch` is in sequences per device; `precision` is that of the blocks' products.

    `strategy`: ddp, zero1, zero2, fsdp or hsdp; `shard_devices` is the group over which the state is cut, else all.
    `remat`: what of a block runs twice: none; dots (no product); op (every second product); layers (every second
    block); block; offload (all but attention's products, which wait in the host's memory); unstated (the least that
    fits). `attention`: scores (kept), blocked (by blocks of queries, at the products' rate), flash1, flash2, or fused
    (cuDNN's, FlashAttention 3, splash).
    `precision`: bfloat16, float32, float8 or float4; `autocast`: weights stay float32 and are cast where they are used.
    """

    shape: Shape
    context: int
    microbatch: float
    accumulation: int
    devices: int
    device: str
    strategy: str
    stack: str
    remat: str = "unstated"
    precision: str = "bfloat16"
    attention: str = "flash2"
    autocast: bool = False
    nic_bandwidth: float | None = None  # bytes/s of network per device, where it is not the device's usual
    network: str = "default"
    shard_devices: int | None = None

    @property
    def tokens(self) -> float:
        """Tokens of one microbatch on one device."""
        return self.microbatch * self.context

    @property
    def sharing(self) -> int:
        """Devices over which the state is cut."""
        return self.shard_devices or self.devices

    @property
    def step_tokens(self) -> float:
        """Tokens of a step on one device."""
        return self.tokens * self.accumulation
