"""Rows of published runs, read: the device, stack, strategy and shape that their text means."""

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jaxdp.predict.calibrated.runs import Run, Shape

Row = dict[str, str]


class Unreadable(Exception):
    """A row that says too little, or what the model does not cover; the text is the reason that is counted."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A run with what was measured. `tokens_per_second` is per device, None where only its outcome is known."""

    line: int
    source: str
    hardware: str
    model: str
    run: Run
    tokens_per_second: float | None
    peak_memory_gib: float | None
    ran: bool

    @property
    def seconds(self) -> float:
        assert self.tokens_per_second
        return self.run.step_tokens / self.tokens_per_second


DEVICES = (
    ("gb300", "gb300"),
    ("gb200", "gb200"),
    ("b300", "b300"),
    ("b200", "b200"),
    ("h200", "h200"),
    ("gh200", "h100"),
    ("h100", "h100"),
    (r"a100[^,]*40 ?gb?\b", "a100-40g"),
    ("a100", "a100-80g"),
    ("l40s", "l40s"),
    ("mi300x", "mi300x"),
    ("mi325x", "mi325x"),
    ("mi35[05]x", "mi355x"),
    ("v5e|v5 ?lite", "tpu-v5e"),
    ("v5p", "tpu-v5p"),
    ("v6e|trillium", "tpu-v6e"),
    ("v7|ironwood", "tpu-v7"),
    ("v4", "tpu-v4"),
)
STACKS = (
    ("nanotron|ultra-scale", "nanotron"),
    ("torchtitan|llm-foundry|fms-fsdp|olmo|colossal|kempner|deepspeed|lightning|torch fsdp", "torch-fsdp"),
    ("maxtext|tpu-recipes|pax|jax", "maxtext"),
    ("megatron|nemo|mlperf|primus|transformer ?engine", "megatron"),
)
STRATEGIES = (
    (r"distributed.optim|zero-?1|zero stage 1", "zero1"),
    (r"shard_grad_op|zero-?2", "zero2"),
    (r"hsdp(?! \(script)|hybrid|fsdp \d+ in a slice x dp|dp over .* x fsdp", "hsdp"),
    (r"fsdp|full.shard|zero-?3", "fsdp"),
    (r"\bddp\b|\bdp\b|data.parallel", "ddp"),
)
REMAT = (
    (r"none|^no|false|disabled", "none"),
    (r"selective layer|every (second|2nd|other)", "layers"),
    (r"offload|custom", "offload"),
    (r"selective op|\bop\b", "op"),
    (r"dots|minimal|attention|core", "dots"),
    (r"selective", "unstated"),
    (r"full|block|true", "block"),
)
# Shapes of models that sources name without describing: layers, width, heads, KV heads, ffn, vocab, head width,
# gated. From the models' published configurations.
NAMED = (
    (r"llama-?2?-?7b", (32, 4096, 32, 32, 11008, 32000, 128, True)),
    (r"llama-?2-?13b", (40, 5120, 40, 40, 13824, 32000, 128, True)),
    (r"llama-?2?-?34b", (48, 8192, 64, 8, 22016, 32000, 128, True)),
    (r"llama-?2-?70b", (80, 8192, 64, 8, 28672, 32000, 128, True)),
    (r"llama-?3.*8b", (32, 4096, 32, 8, 14336, 128256, 128, True)),
    (r"llama-?3.*70b", (80, 8192, 64, 8, 28672, 128256, 128, True)),
    (r"mistral-?7b", (32, 4096, 32, 8, 14336, 32000, 128, True)),
    (r"olmo-?2?-?1b", (16, 2048, 16, 16, 8192, 100352, 128, True)),
    (r"olmo-?2?-?7b", (32, 4096, 32, 32, 11008, 100352, 128, True)),
    (r"olmo-?2?-?13b", (40, 5120, 40, 40, 13824, 100352, 128, True)),
    (r"olmo-?2?-?32b", (64, 5120, 40, 8, 27648, 100352, 128, True)),
    (r"gemma-?3-?4b", (34, 2560, 8, 4, 10240, 262144, 256, True)),
    (r"gemma-?3-?12b", (48, 3840, 16, 8, 15360, 262144, 256, True)),
    (r"gemma-?3-?27b", (62, 5376, 32, 16, 21504, 262144, 128, True)),
    (r"gemma-?2-?9b", (42, 3584, 16, 8, 14336, 256000, 256, True)),
    (r"gemma-?2-?27b", (46, 4608, 32, 16, 36864, 256000, 128, True)),
    (r"gpt-?3?-?5b", (24, 4096, 32, 32, 16384, 51200, 128, False)),
    (r"gpt-?3?-?175b", (96, 12288, 96, 96, 49152, 51200, 128, False)),
    (r"qwen-?2\.?5?-?7b", (28, 3584, 28, 4, 18944, 152064, 128, True)),
)
DEFAULT_DEVICES = 64
DEFAULT_TOKENS = 16384  # of a microbatch on a device


def read(path: Path) -> tuple[list[Published], Counter[str]]:
    """The rows that can be read, and how many could not for each reason."""
    known: list[Published] = []
    reasons: Counter[str] = Counter()
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                known.append(published(row, line))
            except Unreadable as reason:
                reasons[str(reason)] += 1
    return known, reasons


def published(row: Row, line: int) -> Published:
    """One row; raises `Unreadable`."""
    source, hardware = row.get("source") or "", row.get("hardware") or ""
    run = read_run(row, source, hardware)
    crashed = bool(re.search(r"memory|oom|crash|fail", (row.get("result") or "").lower()))
    tokens = None if crashed else _tokens_per_second(row, run)
    peak = _number(row, "peak_memory_gib")
    if tokens is None and peak is None and not crashed:
        raise Unreadable("neither a throughput nor an outcome")
    return Published(
        line=line,
        source=source.partition(":")[0],
        hardware=run.device,
        model=row.get("model") or "",
        run=run,
        tokens_per_second=tokens,
        peak_memory_gib=peak,
        ran=not crashed,
    )


def read_run(row: Row, source: str, hardware: str) -> Run:
    stated = (row.get("strategy") or "").lower()
    if re.search(r"\b(tp|pp|cp|ep)\s*=?\s*([2-9]|\d\d)|tensor.parallel|pipeline|\bmoe\b", stated):
        raise Unreadable("not data parallelism alone")
    device = _match(DEVICES, hardware, "device")
    strategy = _match(STRATEGIES, stated, "strategy")
    stack = _match(STACKS, f"{source} {row.get('where') or ''} {stated}", "unstated")
    context = int(_number(row, "context") or 0)
    if not context:
        raise Unreadable("no context")
    devices = int(_number(row, "devices") or DEFAULT_DEVICES)
    micro, accumulation = _batch(row, context, devices)
    precision = (row.get("precision") or "").lower()
    attention = (row.get("attention") or "").lower()
    shard = re.search(r"fsdp\s*(\d+)", stated) if strategy == "hsdp" else None
    return Run(
        shape=read_shape(row),
        context=context,
        microbatch=micro,
        accumulation=accumulation,
        devices=devices,
        device=device,
        strategy=strategy,
        stack=stack,
        remat=_remat(row),
        precision=_precision(precision),
        attention=_attention(attention, source.lower(), stack, precision),
        autocast="amp" in precision,
        nic_bandwidth=_nic(hardware, device),
        network="ultrascale" if stack == "nanotron" and device == "h100" else "default",
        shard_devices=min(devices, int(shard[1])) if shard else (8 if strategy == "hsdp" else None),
    )


def _match(rules: tuple[tuple[str, str], ...], text: str, what: str) -> str:
    for pattern, name in rules:
        if re.search(pattern, text.lower()):
            return name
    raise Unreadable(f"unknown {what}: {text.strip()[:40] or 'not stated'}")


def _remat(row: Row) -> str:
    text = (row.get("remat") or "").lower().strip()
    return next((name for pattern, name in REMAT if text and re.search(pattern, text)), "unstated")


def _precision(text: str) -> str:
    if "fp4" in text:
        return "float4"
    if re.search(r"fp8|float8", text):
        return "float8"
    return "float32" if re.fullmatch(r"(fp32|float32|tf32)", text) else "bfloat16"


def _attention(text: str, source: str, stack: str, precision: str) -> str:
    """Which kernel: llm-foundry's table has FlashAttention 1, other PyTorch 2; NVIDIA's and TPUs' are fused."""
    if "no flash" in text:
        return "scores"
    if "pax" in source and "te" not in precision:  # Pax fuses through Transformer Engine
        return "flash2"
    if "llm-foundry" in source:
        return "flash1"
    return "fused" if stack in ("megatron", "maxtext", "jaxdp") or re.search("cudnn|fused|v3|fa3", text) else "flash2"


def _nic(hardware: str, device: str) -> float | None:
    """Bytes/s per device of the network that a row states: a device's where it is counted (8x), else a host's.

    An A100's that is not stated is a DGX A100's (200 Gb/s a GPU), not the cloud's quarter of it.
    """
    if counted := re.search(r"(\d+)x CX-\d+ (\d+) ?Gb", hardware):
        return int(counted[2]) * 1e9 / 8
    if whole := re.search(r"(\d+) ?Gbps", hardware):
        return int(whole[1]) * 1e9 / 8 / 8
    return 25e9 if device.startswith("a100") else None


def _batch(row: Row, context: int, devices: int) -> tuple[float, int]:
    """(sequences per device and microbatch, microbatches), either from the other and the global batch."""
    micro, times, whole = (_number(row, key) for key in ("microbatch", "accumulation", "global_batch"))
    if not micro and whole:
        micro = whole / devices / (times or 1)
    micro = micro or max(1.0, DEFAULT_TOKENS // context)
    if not times:
        times = round(whole / devices / micro) if whole else 1
    return micro, max(1, int(times))


def read_shape(row: Row) -> Shape:
    layers, width, heads = (int(_number(row, key) or 0) for key in ("layers", "width", "heads"))
    if not (layers and width and heads):
        return _named_shape(row)
    activation = (row.get("activation") or "").lower()
    ffn = int(_number(row, "ffn") or 4 * width)
    return Shape(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=int(_number(row, "kv_heads") or heads),
        head_dim=width // heads,
        ffn=ffn,
        vocab=int(_number(row, "vocab") or 50304),
        gated=activation in ("gated", "swiglu", "geglu") or (not activation and ffn != 4 * width),
        tied=(row.get("tied") or "").lower() == "yes",
    )


def _named_shape(row: Row) -> Shape:
    """A model that is named only: its published shape, or one of the usual proportions with as many parameters."""
    name = (row.get("model") or "").lower()
    for pattern, (layers, width, heads, kv_heads, ffn, vocab, head_dim, gated) in NAMED:
        if re.search(pattern, name):
            return Shape(
                layers=layers,
                width=width,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                ffn=ffn,
                vocab=vocab,
                gated=gated,
                tied="gemma" in name,
            )
    billions = _number(row, "parameters_b")
    if not billions:
        raise Unreadable("neither a shape nor a number of parameters")
    width = max(256, round((billions * 1e9 * 110 / 12) ** (1 / 3) / 256) * 256)  # 110 wide per layer, as GPT-3 to Llama
    return Shape(
        layers=max(1, round(billions * 1e9 / 12 / width**2)),
        width=width,
        heads=width // 128,
        kv_heads=width // 128,
        head_dim=128,
        ffn=4 * width,
        vocab=32000,
        gated=False,
        tied=False,
    )


def _tokens_per_second(row: Row, run: Run) -> float | None:
    """As stated, or from the stated TFLOP/s by 6N + 12LdS (the convention of the sources that state only those)."""
    stated = _number(row, "tokens_per_s_per_device")
    if stated:
        return stated
    tflops = _number(row, "tflops_per_device")
    if not tflops:
        return None
    billions = _number(row, "parameters_b")
    count = billions * 1e9 if billions else run.shape.parameters
    return tflops * 1e12 / (6 * count + 12 * run.shape.layers * run.shape.width * run.context)


def _number(row: Row, key: str) -> float | None:
    text = (row.get(key) or "").strip().replace(",", "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1e15 else None
