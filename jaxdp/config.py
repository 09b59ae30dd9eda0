"""The one configuration of a run: frozen models, one strict loader.

`load(sources, overrides)` merges TOML files left to right, then `a.b=c` overrides, and validates the
result. Every mistake raises `BadInput` with the key's path and, for an unknown key, the nearest valid one.
"""

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from jaxdp.errors import BadInput
from jaxdp.registry import load_plugins
from jaxdp.suggest import suggest

SHIPPED = Path(__file__).parent / "configs"

MAX_COUNT = 2**40  # of anything that is counted: larger numbers are slips of the keyboard

Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]
Natural = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    # Schemas are built at their first use: what needs no config (a simulation) does not wait for them.
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


AnySection = TypeVar("AnySection", bound=Section)


class ModelConfig(Section):
    """A decoder-only transformer: RMSNorm, RoPE, grouped-query attention, GELU or gated SiLU."""

    layers: Count = 4
    width: Count = 64
    heads: Count = 8
    kv_heads: Count | None = None
    ffn: Count = 256
    context: Count = 64
    vocab: Count = 256
    activation: Literal["gelu", "swiglu"] = "gelu"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    tied: bool = True

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

    function: str

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

    corpus: Literal["stdlib", "synthetic", "files", "tokens"] = "stdlib"
    path: str | None = None
    tokenizer: str | None = None
    heldout: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    heldout_sequences: Count = 256

    @model_validator(mode="after")
    def _path_fits(self) -> Self:
        if self.corpus in ("files", "tokens") and not self.path:
            raise ValueError(f"path: corpus {self.corpus!r} needs data.path (a file, folder or glob)")
        if self.corpus in ("stdlib", "synthetic") and self.path:
            raise ValueError(f"path: corpus {self.corpus!r} reads no path; use data.corpus=files for your own text")
        return self


class OptimConfig(Section):
    """AdamW or SGD, linear warm-up, then cosine to zero over `train.steps` or constant; `clip` 0 turns clipping off."""

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)] = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: Natural = 10
    weight_decay: Seconds = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    clip: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


class TrainConfig(Section):
    """A step is `global_batch` sequences over all devices, taken in `accumulation` microbatches."""

    global_batch: Count = 16
    accumulation: Count = 1
    steps: Count = 100
    remat: Literal["none", "dots", "block"] = "block"
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    on_nonfinite: Literal["stop", "skip"] = "stop"

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

    name: Literal["ddp", "zero1", "fsdp", "hsdp", "ps"] = "ddp"
    unit: Literal["block", "flat"] = "block"
    min_shard_bytes: Natural = 2**14
    shard_devices: Count | None = None
    round_latency_s: Seconds = 0.0


class ServerConfig(Section):
    """The parameter server of `--strategy ps`. `bound`, `backups` and `group` belong to one policy each.

    A worker silent for `deadline_s` is given up, and the others go on. Shards on a cluster save their state
    every `snapshot_every` updates. `compensation` is the constant of `delay_compensation`.
    """

    engine: Literal["threads", "ray"] = "threads"
    workers: Count | None = None
    policy: Literal["async", "ssp", "sync", "backup", "softsync"] = "async"
    bound: Natural | None = None
    backups: Natural | None = None
    group: Count | None = None
    correction: Literal["none", "lr_over_staleness", "delay_compensation"] = "none"
    shards: Count = 1
    pipeline: bool = False
    worker_strategy: Literal["ddp", "zero1", "fsdp"] = "ddp"
    devices_per_worker: Count = 1
    placement: Literal["dedicated", "colocated"] = "colocated"
    address: str | None = None
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 120.0
    compensation: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.04
    snapshot_every: Count = 100

    @model_validator(mode="after")
    def _policy_options(self) -> Self:
        for key, policy in (("bound", "ssp"), ("backups", "backup"), ("group", "softsync")):
            given = getattr(self, key) is not None
            if given and self.policy != policy:
                raise ValueError(f"{key}: policy {self.policy!r} has none; use policy={policy}")
            if not given and self.policy == policy:
                raise ValueError(f"{key}: policy {policy!r} needs it")
        if self.workers is not None and (self.backups or 0) >= self.workers:
            raise ValueError(f"backups: {self.backups} of {self.workers} workers leave none to wait for")
        if self.workers is not None and (self.group or 1) > self.workers:
            raise ValueError(
                f"group: {self.group} pushes cannot come from {self.workers} workers; at most {self.workers}"
            )
        return self


class Config(Section):
    task: TaskConfig | None = None
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    optim: OptimConfig = Field(default_factory=OptimConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    strategy: StrategyConfig = Field(default_factory=StrategyConfig)
    server: ServerConfig = Field(default_factory=ServerConfig)
    stragglers: str = ""
    plugins: tuple[str, ...] = ()  # modules that register strategies, server policies or delay models

    @model_validator(mode="after")
    def _stragglers_parse(self) -> Self:
        if self.stragglers:
            from jaxdp.stragglers import delays  # NumPy, which a config rarely needs

            delays.parse(self.stragglers, where="stragglers")
        return self

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if self.strategy.unit == "flat" and self.strategy.name not in ("fsdp", "ddp"):
            raise ValueError(f"strategy.unit: 'flat' belongs to fsdp, not {self.strategy.name}")
        if self.strategy.unit == "flat" and self.task is not None:
            raise ValueError("task: the flat unit is the built-in transformer's alone; use strategy.unit=block")
        return self


def load(sources: Iterable[str] = (), overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None) -> Config:
    """The config of TOML files or shipped names, later ones winning, `a.b=c` overrides, then flags on top.

    `flags` maps dotted keys to values; None means not given.
    Raises `BadInput` naming the file or the key, and the nearest valid key.
    """
    merged: dict[str, Any] = {}
    for source in sources or ("nano",):
        _merge(merged, read_toml(find(source)))
    for override in overrides:
        _merge(merged, parse_override(override))
    for key, value in (flags or {}).items():
        if value is not None:
            _merge(merged, _nested(key, value))
    return build(merged)


def build(values: Mapping[str, Any]) -> Config:
    """Validates plain values; raises `BadInput` with every mistake's key on one line.

    The modules of `plugins` load first, so that the values may name their rows.
    """
    plugins = values.get("plugins", ())
    load_plugins(plugins if isinstance(plugins, list | tuple) and all(isinstance(p, str) for p in plugins) else ())
    return validate(Config, values)


def validate(section: type[AnySection], values: Mapping[str, Any]) -> AnySection:
    """Plain values as a section, this module's or another's; raises `BadInput` as `build` does."""
    _refuse_unknown(values, section, prefix="")
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise BadInput("; ".join(_one_line(e) for e in error.errors())) from None


def find(source: str, folder: Path = SHIPPED, asked: str = "--config") -> Path:
    """The file of a path or of a name shipped in `folder`; `asked` begins the error's line."""
    path, names = Path(source), shipped_names(folder)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise BadInput(f"{asked} {source}: no such file; shipped: {', '.join(names)}")
        return path
    if source in names:
        return folder / f"{source}.toml"
    raise BadInput(f"{asked} {source}: neither a file nor shipped{suggest(source, names)}")


def shipped_names(folder: Path = SHIPPED) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table by dotted keys; lists and empty tables stay values."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and value
        found |= dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not TOML: {error}") from None


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=c` as nested tables; `c` is a TOML value, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", key.strip()):
        raise BadInput(f"--set {text}: expected section.key=value")
    try:
        parsed: Any = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return _nested(key.strip(), parsed)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def to_toml(config: Config) -> str:
    """The config as TOML that `load` reads back to an equal config (keys without a value are left out)."""
    values = config.model_dump(exclude_none=True)
    top = [f"{key} = {_toml(value)}" for key, value in values.items() if not isinstance(value, dict)]
    for name, table in values.items():
        if isinstance(table, dict):
            top += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(top).strip() + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key == "task" and isinstance(value, str):  # another function has other arguments
            kept = into.get(key, {})
            into[key] = {**(kept if kept.get("function", value) == value else {}), "function": value}
        elif isinstance(value, Mapping) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _refuse_unknown(values: Mapping[str, Any], section: type[BaseModel], prefix: str) -> None:
    for key, value in values.items():
        if key not in section.model_fields:
            known = [prefix + name for name in section.model_fields] if prefix else _all_keys(section)
            raise BadInput(f"{prefix}{key}: unknown key{suggest(prefix + key, known)}")
        inner = section.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise BadInput(
                    f"{prefix}{key}: is a section; set one of its keys, such as {key}.{next(iter(inner.model_fields))}"
                )
            _refuse_unknown(value, inner, f"{prefix}{key}.")


def _all_keys(section: type[BaseModel]) -> list[str]:
    keys = list(section.model_fields)
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [f"{name}.{key}" for key in field.annotation.model_fields]
    return keys


def _one_line(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if isinstance(part, str) and not part.startswith("function"))
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}.{message}" if where else message
    got = "" if isinstance(error["input"], Mapping) else f", not {error['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{got}"


def _near_divisor(wrong: int, whole: int) -> str:
    low = [d for d in range(1, math.isqrt(whole) + 1) if whole % d == 0]
    return f"; try {min({*low, *(whole // d for d in low)}, key=lambda d: (abs(d - wrong), d))}"
