"""The keys of a config: their types, ranges, defaults and descriptions."""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jaxdp.errors import BadInput
from jaxdp.policies import (
    CORRECTION_SUMMARY,
    POLICY_SUMMARY,
    SHARDS_SUMMARY,
    Correction,
    Policy,
    make_policy,
    option_summary,
    policy_options,
)
from jaxdp.registry import Registry
from jaxdp.strategies.rows import STRATEGIES, Strategy, canonical, worker_strategies
from jaxdp.strategies.rules import RuleOptions, ShardRule

MAX_COUNT = 2**40  # of anything that is counted: larger numbers are slips of the keyboard

Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    # Schemas are built at their first use: what needs no config (a simulation) does not wait for them.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


class ModelConfig(Section):
    """A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, GELU or gated SiLU."""

    layers: Count = Field(default=4, description="Transformer blocks.")
    width: Count = Field(default=64, description="Width of the residual stream; the heads divide it.")
    heads: Count = Field(default=8, description="Attention heads.")
    kv_heads: Count | None = Field(default=None, description="Heads of keys and values (default: heads).")
    ffn: Count = Field(default=256, description="Hidden width of the MLP.")
    context: Count = Field(default=64, description="Tokens in a sequence.")
    vocab: Count = Field(default=256, description="Size of the vocabulary.")
    activation: Literal["gelu", "swiglu"] = Field(default="gelu", description="The MLP's: GELU, or gated SiLU.")
    dropout: Share = Field(default=0.0, description="Share of activations dropped in training.")
    tied: bool = Field(default=True, description="Whether the head is the embedding, transposed.")

    @property
    def key_value_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"heads: {self.heads} do not divide width {self.width}{_near_divisor(self.heads, self.width)}"
            )
        if self.heads % self.key_value_heads:
            near = _near_divisor(self.key_value_heads, self.heads)
            raise ValueError(f"kv_heads: {self.key_value_heads} do not divide heads {self.heads}{near}")
        if self.head_dim % 2:
            raise ValueError(f"heads: a head of width {self.head_dim} is odd, rotary embedding needs an even one")
        return self


class TaskConfig(Section):
    """What is trained instead of the built-in transformer: `package.module:function`; its other keys are arguments."""

    model_config = ConfigDict(extra="allow")

    function: str = Field(description="package.module:function that returns the task.")

    @model_validator(mode="before")
    @classmethod
    def _well_formed(cls, values: Any) -> Any:
        function = values.get("function", "") if isinstance(values, Mapping) else values
        if not isinstance(function, str) or not re.fullmatch(r"[\w.]+:\w+", function):
            raise ValueError(f"function: expected package.module:function, not {function!r}")
        return values if isinstance(values, Mapping) else {"function": function}

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def __str__(self) -> str:
        return " ".join((self.function, *(f"{name}={value}" for name, value in self.arguments.items())))


class DataConfig(Section):
    """Where tokens come from. `files` and `tokens` read `path`; `tokenizer` is a `tokenizer.json` (bytes if none)."""

    corpus: Literal["stdlib", "synthetic", "files", "tokens"] = Field(
        default="stdlib",
        description="Where tokens come from.",
    )
    path: str | None = Field(default=None, description="Of corpus files and tokens: a file, a folder or a glob.")
    tokenizer: str | None = Field(default=None, description="A tokenizer.json for text (default: bytes).")
    text_field: str = Field(default="text", description="Of corpus files: the field of a .jsonl line that is read.")
    separator: str = Field(
        default="auto",
        description="Of corpus files: what stands between documents, none, or auto (end token; for bytes NUL).",
    )
    heldout: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        default=0.05, description="Share of the corpus kept for evaluation."
    )
    heldout_sequences: Count = Field(default=256, description="Held-out sequences of an evaluation, at most.")

    @model_validator(mode="after")
    def _path_fits(self) -> Self:
        if self.corpus in ("files", "tokens") and not self.path:
            raise ValueError(f"path: corpus {self.corpus!r} needs data.path (a file, folder or glob)")
        if self.corpus in ("stdlib", "synthetic") and self.path:
            raise ValueError(f"path: corpus {self.corpus!r} reads no path; use data.corpus=files for your own text")
        return self


class OptimConfig(Section):
    """AdamW or SGD, linear warm-up, then cosine to zero over `train.steps` or constant; `clip` 0 turns clipping off."""

    name: Literal["adamw", "sgd"] = Field(default="adamw", description="The optimizer.")
    learning_rate: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = Field(
        default=1e-3, description="Peak learning rate."
    )
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description="After warm-up: to zero by train.steps, or constant."
    )
    warmup_steps: Natural = Field(default=10, description="Steps of linear warm-up.")
    weight_decay: NonNegative = Field(default=0.1, description="Decoupled weight decay.")
    momentum: Share = Field(default=0.0, description="SGD's momentum.")
    beta1: Share = Field(default=0.9, description="AdamW's decay of the first moment.")
    beta2: Share = Field(default=0.95, description="AdamW's decay of the second moment.")
    clip: NonNegative = Field(default=1.0, description="Largest global norm of the gradient (0: no clipping).")


class TrainConfig(Section):
    """A step is `global_batch` sequences over all devices, taken in `accumulation` microbatches."""

    global_batch: Count = Field(default=16, description="Sequences of a step, over all devices.")
    accumulation: Count = Field(default=1, description="Microbatches that a step's sequences are taken in.")
    steps: Count = Field(default=100, description="Steps of the run, and length of the learning rate's schedule.")
    remat: Literal["none", "dots", "block"] = Field(
        default="block", description="What is recomputed: nothing, all but matrix products, blocks."
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="auto: float32 on a CPU, else bfloat16."
    )
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = Field(
        default=0, description="Seed of parameters, data order and dropout."
    )
    keep_checkpoints: Count = Field(default=3, description="The newest checkpoints that are kept.")
    on_nonfinite: Literal["stop", "skip"] = Field(default="stop", description="A loss or gradient that is not finite.")

    def dtype_on(self, platform: str) -> str:
        """The compute dtype's name: float32 on a CPU and bfloat16 on accelerators, unless it is set."""
        if self.compute_dtype == "auto":
            return "float32" if platform == "cpu" else "bfloat16"
        return self.compute_dtype

    @model_validator(mode="after")
    def _accumulation_divides(self) -> Self:
        if self.global_batch % self.accumulation:
            near = _near_divisor(self.accumulation, self.global_batch)
            raise ValueError(
                f"accumulation: {self.accumulation} does not divide global_batch {self.global_batch}{near}"
            )
        return self


class StrategyConfig(Section):
    """How the devices share the work. `shard_devices` is the size of HSDP's shard group (default: a host's).

    `round_latency_s` is slept in every round that fetches a block's shards or returns its gradients: an injected
    delay, to show what a block costs that the flat unit has split.
    """

    name: str = Field(default="ddp", description=f"How the devices share the work: {', '.join(STRATEGIES)}.")
    unit: Literal["block", "flat"] | None = Field(
        default=None, description="An older spelling: fsdp with unit flat is fsdp_flat."
    )
    min_shard_bytes: Natural = Field(
        default=2**14, description="Parameters smaller than this stay whole on every device."
    )
    shard_devices: Count | None = Field(default=None, description="hsdp: devices in a shard group (default: a host's).")
    round_latency_s: NonNegative = Field(default=0.0, description="Injected delay of a block's communication.")
    reduce: Literal["end", "block"] = Field(
        default="end", description="ddp, hsdp: sum gradients once at the end, or a block at a time beside the backward."
    )

    @model_validator(mode="before")
    @classmethod
    def _flat_unit(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("unit") not in ("block", "flat"):
            return values
        name, unit = values.get("name", "ddp"), values["unit"]
        if unit == "flat" and name not in ("fsdp", "fsdp_flat", "ddp"):
            raise ValueError(f"unit: 'flat' belongs to fsdp, not {name}")
        if unit == "block" and name == "fsdp_flat":
            raise ValueError("unit: 'block' is fsdp's; leave it out, or use strategy.name=fsdp")
        return {**values, "name": canonical(name, unit), "unit": None}

    @model_validator(mode="after")
    def _name_known(self) -> Self:
        _known("name", self.name, STRATEGIES)
        return self

    @property
    def row(self) -> Strategy:
        return STRATEGIES[self.name]

    @property
    def options(self) -> RuleOptions:
        return RuleOptions(min_shard_bytes=self.min_shard_bytes, shard_devices=self.shard_devices)

    @property
    def rule(self) -> ShardRule:
        return self.row.shard_rule(self.options)

    def axis_sizes(self, devices: int, hosts: int = 1) -> dict[str, int]:
        """The mesh's axes and their sizes, outermost first."""
        return self.row.axis_sizes(self.options, devices, hosts)


class ServerConfig(Section):
    """The parameter server of `--strategy ps`. A policy's options have keys here or are spelled out, `ssp(bound=3)`.

    A worker silent for `deadline_s` is given up, and the others go on. Shards on a cluster save their state
    every `snapshot_every` updates. `compensation` is the constant of `delay_compensation`.
    """

    engine: Literal["threads", "ray"] = Field(default="threads", description="Where the workers run.")
    workers: Count | None = Field(default=None, description="Workers (default: one per device).")
    policy: str = Field(default="async", description=POLICY_SUMMARY)
    bound: Natural | None = Field(default=None, description=option_summary("bound"))
    backups: Natural | None = Field(default=None, description=option_summary("backups"))
    group: Count | None = Field(default=None, description=option_summary("group"))
    correction: Correction = Field(default="none", description=CORRECTION_SUMMARY)
    shards: Count = Field(default=1, description=SHARDS_SUMMARY)
    pipeline: bool = Field(default=False, description="Pull ahead and push in the background: raises staleness by one.")
    worker_strategy: str = Field(
        default="ddp", description=f"Strategy of a worker's own devices: {', '.join(worker_strategies())}."
    )
    devices_per_worker: Count = Field(default=1, description="Devices of a worker.")
    placement: Literal["dedicated", "colocated"] = Field(
        default="colocated", description="ray: whether the server's shards have nodes of their own."
    )
    address: str | None = Field(default=None, description="ray: the cluster to join (default: a local one).")
    deadline_s: Positive = Field(default=120.0, description="Silence after which a worker is given up.")
    compensation: NonNegative = Field(default=0.04, description="Constant of the correction delay_compensation.")
    snapshot_every: Count = Field(default=100, description="ray: updates between saved states of the server's shards.")

    @model_validator(mode="after")
    def _worker_strategy_known(self) -> Self:
        _known("worker_strategy", self.worker_strategy, STRATEGIES)
        if not STRATEGIES[self.worker_strategy].in_worker:
            names = ", ".join(worker_strategies())
            raise ValueError(f"worker_strategy: {self.worker_strategy} does not work inside a worker; use {names}")
        return self

    @model_validator(mode="after")
    def _policy_options(self) -> Self:
        try:
            _ = self.resolved_policy
        except BadInput as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def resolved_policy(self) -> Policy:
        options = {key: getattr(self, key, None) for key in policy_options()}
        return make_policy(self.policy, workers=self.workers, **options)


class Config(Section):
    task: TaskConfig | None = Field(default=None, description="Train your own model: a function giving a Task.")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    strategy: StrategyConfig = Field(default_factory=StrategyConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    stragglers: str = Field(default="", description='How workers are delayed: "persistent(worker=0,factor=3)".')
    plugins: tuple[str, ...] = Field(
        default=(), description="Modules with strategies, policies or delay models of yours."
    )

    @model_validator(mode="after")
    def _stragglers_parse(self) -> Self:
        if self.stragglers:
            from jaxdp.stragglers import delays  # NumPy, which a config rarely needs

            delays.parse(self.stragglers, where="stragglers")
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.strategy.row.flat and self.task is not None:
            raise ValueError(f"task: {self.strategy.name} is the built-in transformer's alone; use strategy.name=fsdp")
        return self


def _known(key: str, name: str, rows: Registry[Any]) -> None:
    """Raises an unknown name's error as one of the key."""
    try:
        rows[name]
    except BadInput as error:
        raise ValueError(f"{key}: {error}") from None


def _near_divisor(wrong: int, whole: int) -> str:
    low = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return f"; try {min({*low, *(whole // d for d in low)}, key=lambda d: (abs(d - wrong), d))}"
