"""F1: FSDP wins decisively on memory."""

from dataclasses import dataclass

from jaxdp.config import Config, build, load
from jaxdp.predict.claims import DECISIVE, decisive
from jaxdp.predict.evaluate import hardware_memory, with_strategy
from jaxdp.predict.hardware import load_hardware
from sims.findings.drawing import COLOUR, OTHER, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, Drawing, Finding, Trial, Value, listed
from sims.findings.lab import Lab

COUNTS = (2, 4, 8)
ROWS, QUICK_ROWS = (1, 8, 32), (1, 8)  # sequences a device, on the most devices
CONTEXT = 64
PAPER = (4, 6)  # times, peak memory (arXiv 2505.12832, abstract)
PREDICTED_FOR = ("small", "350m", "1b")  # on one host of
PREDICTED_ON = "a100-80gx8"
CLAIM = "FSDP wins decisively on memory (the paper: peak memory 4 to 6 times lower than DDP's)"
CONDITION = (
    f"a device's bytes at the same batch and microbatches; decisive is {DECISIVE} times fewer at every device count and"
    " batch looked at"
)


@dataclass(frozen=True)
class Held:
    """Bytes of one device: `live` those of the arrays it holds between steps, `peak` the compiled step's in all."""

    strategy: str
    devices: int
    tokens_per_device: int
    live: int
    peak: int


@dataclass(frozen=True)
class Predicted:
    model: str
    tokens_per_device: int
    peak_ratio: float


@dataclass(frozen=True)
class Evidence:
    held: tuple[Held, ...]
    predicted: tuple[Predicted, ...]

    def ratios(self, key: str) -> dict[tuple[int, int], float]:
        """DDP's bytes over FSDP's by (devices, tokens a device)."""
        bytes_of = {(h.strategy, h.devices, h.tokens_per_device): getattr(h, key) for h in self.held}
        places = {(h.devices, h.tokens_per_device): None for h in self.held}
        return {place: bytes_of["ddp", *place] / bytes_of["fsdp", *place] for place in places}


def measure(lab: Lab) -> Evidence:
    lab.need(2)
    counts = [count for count in COUNTS if count <= len(lab.devices)][-1 if lab.quick else 0 :]
    first, *more = QUICK_ROWS if lab.quick else ROWS
    cases = [*((count, first) for count in counts), *((counts[-1], rows) for rows in more)]
    return Evidence(tuple(held for case in cases for held in _held(lab, *case)), tuple(_predicted()))


def _held(lab: Lab, devices: int, rows: int) -> list[Held]:
    configs = [_config(name, devices * rows) for name in ("ddp", "fsdp")]
    found = lab.bench(f"f1-{devices}-devices-{rows}-rows", configs, devices, steps=1)
    return [
        Held(
            each.strategy,
            devices,
            rows * CONTEXT,
            each.memory.parameter_bytes_per_device + each.memory.optimizer_bytes_per_device,
            each.memory.compiled_bytes_per_device or 0,
        )
        for each in found
    ]


def _config(name: str, batch: int) -> Config:
    model = {"layers": 4, "width": 160, "heads": 8, "ffn": 640, "context": CONTEXT, "vocab": 256}
    return build(
        {
            "model": model,
            "data": {"corpus": "synthetic"},
            "train": {"global_batch": batch},
            "strategy": {"name": name},
        }
    )


def _predicted() -> list[Predicted]:
    hardware = load_hardware(PREDICTED_ON)
    found = []
    for model in PREDICTED_FOR:
        for rows in (1, 2, 4, 8, 16):
            config = load([model], (), {"train.global_batch": rows * hardware.devices})
            ddp, fsdp = (hardware_memory(with_strategy(config, name), hardware).total for name in ("ddp", "fsdp"))
            found.append(Predicted(model, rows * config.model.context, ddp / fsdp))
    return found


def judge(evidence: Evidence) -> Finding:
    """The live bytes must shrink by nearly the device count, and the peak decisively wherever looked at."""
    live, peak = evidence.ratios("live"), evidence.ratios("peak")
    values = (
        *(
            Value(f"live_ratio.{n}_devices", n, live[n, tokens], "measured")
            for n, tokens in live
            if tokens == min(live)[1]
        ),
        *(
            Value(f"peak_ratio.{n}_devices.{tokens}_tokens_a_device", f"above {DECISIVE}", ratio, "compiled")
            for (n, tokens), ratio in peak.items()
        ),
        *(
            Value(
                f"peak_ratio.{each.model}.{each.tokens_per_device}_tokens_a_device", None, each.peak_ratio, "predicted"
            )
            for each in evidence.predicted
        ),
    )
    meeting = {place for place, ratio in peak.items() if decisive(ratio)}
    state = f"a device holds {_spread(live)} times fewer bytes between steps"
    spread = f"the compiled peak is {_spread(peak)} times smaller"
    within = [f"{n} devices, {tokens} tokens a device" for (n, tokens), r in peak.items() if PAPER[0] <= r <= PAPER[1]]
    reason = f"{state}; {spread}, {PAPER[0]} to {PAPER[1]} times at: {listed(within)}"
    if not meeting or not decisive(min(live.values())):
        return Finding("F1", CLAIM, CONDITION, FAILS, reason, values)
    if len(meeting) < len(peak):
        not_there = listed([f"{n} devices with {tokens}" for n, tokens in peak if (n, tokens) not in meeting])
        condition = f"{CONDITION}. It holds where parameters and optimizer state outweigh activations: not at"
        return Finding("F1", CLAIM, f"{condition} {not_there} tokens a device", CONDITIONAL, reason, values)
    return Finding("F1", CLAIM, CONDITION, HOLDS, reason, values)


def _spread(ratios: dict[tuple[int, int], float]) -> str:
    return " to ".join(dict.fromkeys(f"{bound(ratios.values()):.1f}" for bound in (min, max)))


def draw(evidence: Evidence) -> Drawing:
    figure, (left, middle, right) = panels(3, width=4.2)
    live, peak = evidence.ratios("live"), evidence.ratios("peak")
    least = min(tokens for _, tokens in live)
    counts = [n for n, tokens in live if tokens == least]
    left.plot(counts, counts, "--", color=OTHER, label="as many times as devices")
    left.plot(counts, [live[n, least] for n in counts], "o-", color=COLOUR["fsdp"], label="live state, measured")
    left.plot(counts, [peak[n, least] for n in counts], "s-", color=COLOUR["ps"], label="step's peak, compiled")
    left.set(xlabel="devices", ylabel="DDP's bytes / FSDP's", title=f"{least} tokens a device", xticks=counts)
    left.legend(fontsize=8)
    most = max(n for n, _ in peak)
    tokens = [tokens for n, tokens in peak if n == most]
    middle.plot(tokens, [peak[most, each] for each in tokens], "s-", color=COLOUR["ps"])
    middle.set(xlabel="tokens a device", xscale="log", ylim=(0, None), title=f"step's peak on {most} devices, compiled")
    for model in dict.fromkeys(each.model for each in evidence.predicted):
        own = [each for each in evidence.predicted if each.model == model]
        right.plot([e.tokens_per_device for e in own], [e.peak_ratio for e in own], ".-", label=model)
    right.set(xlabel="tokens a device", xscale="log", ylim=(0, None), title=f"step's peak on {PREDICTED_ON}, predicted")
    right.legend(fontsize=8)
    for axes in (left, middle, right):
        axes.axhspan(*PAPER, color=OTHER, alpha=0.15)
        axes.axhline(DECISIVE, color=OTHER, linewidth=0.8, linestyle=":")
        axes.title.set_fontsize(10)
    left.text(counts[0], PAPER[1], "the paper's 4 to 6", fontsize=7, va="bottom")
    return Drawing(figure, evidence.held)


F1 = Trial("F1", CLAIM, CONDITION, measure, judge, draw)
