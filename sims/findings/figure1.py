"""The study's Figure 1: scaling efficiency against the number of devices, for DDP, FSDP and the parameter server."""

from dataclasses import dataclass

from jaxdp.config import Config, build, load
from jaxdp.predict.evaluate import evaluate
from jaxdp.predict.hardware import load_hardware
from jaxdp.records import How
from jaxdp.stragglers.delays import parse
from sims.findings.drawing import COLOUR, OTHER, panels
from sims.findings.finding import Drawing
from sims.findings.lab import Lab

STRATEGIES = ("ddp", "fsdp", "ps")
MODEL, PRESET, NIC_GBPS, ROWS = "small", "a100-80g", 100.0, 8  # one device a host, rows of the batch a device
COUNTS, PACED_COUNTS = (1, 2, 4, 8, 16, 32, 64), (2, 4, 8)
SLOW = "persistent(worker=0,factor=4)"
SIZES = {"ddp": 9, "fsdp": 5, "ps": 6}  # of markers, so that equal curves do not hide each other
PACE_S = 0.15
TITLE = "Figure 1: scaling efficiency against the number of devices"
CAPTION = (
    f"Left: predicted for `{MODEL}` on {PRESET}, one a host at {NIC_GBPS:g} Gb/s, {ROWS} sequences a device."
    " Middle: the same with one device 4 times slower."
    f" Right: measured here, every device's step paced to {PACE_S:g} s (injected), from two devices on one of them 4"
    " times slower; pacing leaves out what a network costs."
    " Efficiency is tokens/s a device against one device alone."
)


@dataclass(frozen=True)
class Point:
    strategy: str
    devices: int
    uneven: bool
    efficiency: float
    tokens_per_second: float
    how: How


def points(lab: Lab) -> list[Point]:
    return [*_predicted(False), *_predicted(True), *_paced(lab)]


def _predicted(uneven: bool) -> list[Point]:
    delays = parse(SLOW) if uneven else None
    found = []
    for name in STRATEGIES:
        alone = 0.0
        for devices in COUNTS:
            # One device needs no strategy.
            kind = name if devices > 1 else "ddp"
            config = load([MODEL], ["server.shards=4"], {"train.global_batch": ROWS * devices})
            hardware = load_hardware(PRESET, devices, NIC_GBPS)
            rate = evaluate(config, hardware, kind, delays if devices > 1 else None).tokens_per_second
            alone = alone or rate
            found.append(Point(name, devices, uneven, rate / devices / alone, rate, "predicted"))
    return found


def _paced(lab: Lab) -> list[Point]:
    counts = [count for count in PACED_COUNTS if count <= len(lab.devices)]
    (alone,) = lab.bench("figure1-alone", [_config("ddp", 1, f"pace(seconds={PACE_S})")], 1, steps=5)
    found = []
    for name in STRATEGIES:
        found.append(Point(name, 1, False, 1.0, alone.tokens_per_second, "measured"))
        for devices in counts[1:2] if lab.quick else counts:
            spec = f"pace(seconds={PACE_S}),{SLOW}"
            steps = 20 if name == "ps" else 5  # the slow worker must push a few times too
            (result,) = lab.bench(f"figure1-{name}-{devices}", [_config(name, devices, spec)], devices, steps=steps)
            efficiency = result.tokens_per_second / devices / alone.tokens_per_second
            found.append(Point(name, devices, True, efficiency, result.tokens_per_second, "measured"))
    return found


def _config(name: str, devices: int, stragglers: str) -> Config:
    return build(
        {
            "model": {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 32, "vocab": 64},
            "data": {"corpus": "synthetic"},
            "train": {"global_batch": 2 * devices, "compute_dtype": "float32"},
            "strategy": {"name": name},
            "stragglers": stragglers,
        }
    )


def draw(found: list[Point]) -> Drawing:
    figure, axes = panels(3, width=4.2)
    parts = (
        ("predicted, even", [p for p in found if p.how == "predicted" and not p.uneven]),
        ("predicted, one 4 times slower", [p for p in found if p.how == "predicted" and p.uneven]),
        ("measured, paced, one 4 times slower", [p for p in found if p.how == "measured"]),
    )
    for each, (title, shown) in zip(axes, parts, strict=True):
        for name, marker in zip(STRATEGIES, "os^", strict=True):
            own = [p for p in shown if p.strategy == name]
            efficiency = [100 * p.efficiency for p in own]
            each.plot(
                [p.devices for p in own],
                efficiency,
                marker=marker,
                markersize=SIZES[name],
                color=COLOUR[name],
                label=name,
            )
        counts = sorted({p.devices for p in shown})
        each.axhline(100, color=OTHER, linewidth=0.8, linestyle=":")
        each.set(xscale="log", xlabel="devices", ylim=(0, 112))
        each.set_xticks(counts, [str(count) for count in counts])
        each.minorticks_off()
        each.set_title(title, fontsize=10)
    axes[0].set_ylabel("scaling efficiency (%)")
    axes[0].legend(fontsize=8)
    return Drawing(figure, found)
