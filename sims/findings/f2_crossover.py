"""F2: below a model size FSDP's gathers cost more throughput than its memory is worth, so there is a crossover."""

from dataclasses import dataclass

from jaxdp.config import Config, build, load
from jaxdp.models.shapes import block_count, count
from jaxdp.predict.claims import slower
from jaxdp.predict.evaluate import evaluate
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.tradeoffs import widened, with_model
from jaxdp.strategies.rules import DATA_AXIS
from jaxdp.strategies.volume import Step, ddp_bytes, fsdp_bytes
from jaxdp.workload import units_per_batch
from sims.findings.drawing import COLOUR, OTHER, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, Drawing, Finding, Trial, Value, listed
from sims.findings.lab import Lab
from sims.findings.overlap import overlapped_ddp_s

DEVICES = 4
CLUSTERS = (("h100x8", 4), ("a100-80g", 8))  # preset, hosts
NICS_GBPS = (10.0, 25.0, 100.0, 400.0)  # a device
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)  # of the width of
MODEL = "small"
PAPER = (2, 3)  # times, DDP's throughput over FSDP's (arXiv 2505.12832, abstract)
NEAR = 0.03  # a compiled volume may differ from its formula by this
CLAIM = "below a model size FSDP is slower than DDP (the paper: DDP 2 to 3 times faster), so there is a crossover"
CONDITION = (
    f"bytes sent by compiled steps on {DEVICES} devices; tokens/s predicted for {MODEL}'s shape at widths from 1/16 to"
    f" 8 times its own, on {listed([f'{hosts} hosts of {preset}' for preset, hosts in CLUSTERS])}, at"
    f" {listed([f'{nic:g}' for nic in NICS_GBPS])} Gb/s a device"
)


@dataclass(frozen=True)
class Volume:
    """Bytes that a device sends in a step: the compiled program's and the formula's."""

    strategy: str
    compiled: int
    formula: float


@dataclass(frozen=True)
class Speed:
    """Predicted tokens/s; DDP's both as jaxdp runs it and as if its reduction overlapped the backward pass."""

    cluster: str
    nic_gbps: float
    parameters: int
    ddp: float
    ddp_overlapped: float
    fsdp: float
    ddp_fits: bool
    fsdp_fits: bool


@dataclass(frozen=True)
class Evidence:
    """`measured_ratio` is DDP's tokens/s over FSDP's on the devices here, which may share a CPU (`on_host`)."""

    volumes: tuple[Volume, ...]
    bfloat16_ratio: float  # FSDP's formula over DDP's where parameters travel in bfloat16, gradients in float32
    speeds: tuple[Speed, ...]
    measured_ratio: float
    on_host: bool


def measure(lab: Lab) -> Evidence:
    configs = [_config(name) for name in ("ddp", "fsdp")]
    found = lab.bench("f2", configs, DEVICES, steps=5 if lab.quick else 30)
    volumes = tuple(
        Volume(each.strategy, each.collective_bytes_per_device or 0, each.collective_bytes_minimum) for each in found
    )
    ddp, fsdp = found
    ratio = ddp.tokens_per_second / fsdp.tokens_per_second
    return Evidence(volumes, _ratio_in_bfloat16(configs[0]), tuple(_speeds()), ratio, lab.on_host)


def _config(name: str) -> Config:
    """Nearly all parameters in the blocks, where FSDP's gathers are."""
    model = {"layers": 4, "width": 128, "heads": 8, "ffn": 512, "context": 32, "vocab": 64}
    return build(
        {
            "model": model,
            "data": {"corpus": "synthetic"},
            "train": {"global_batch": 8, "compute_dtype": "float32"},
            "strategy": {"name": name, "min_shard_bytes": 0},
        }
    )


def _ratio_in_bfloat16(config: Config) -> float:
    blocks = block_count(config.model)
    step = Step(
        block_parameters=blocks,
        root_parameters=count(config.model) - blocks,
        axis_sizes={DATA_AXIS: DEVICES},
        compute_dtype_bytes=2,
    )
    return fsdp_bytes(step) / ddp_bytes(step)


def _speeds() -> list[Speed]:
    base = load([MODEL])
    found = []
    for preset, hosts in CLUSTERS:
        for nic in NICS_GBPS:
            hardware = load_hardware(preset, hosts, nic)
            for factor in FACTORS:
                config = with_model(base, widened(base.model, factor))
                ddp, fsdp = (evaluate(config, hardware, name) for name in ("ddp", "fsdp"))
                tokens = units_per_batch(config)
                overlapped = tokens / overlapped_ddp_s(config, hardware)
                rates = (ddp.tokens_per_second, overlapped, fsdp.tokens_per_second)
                size = count(config.model)
                found.append(Speed(f"{hosts} x {preset}", nic, size, *rates, ddp.fits, fsdp.fits))
    return found


def crossover(speeds: list[Speed], rival: str = "ddp") -> int | None:
    """The size from which FSDP is faster or DDP no longer fits, if DDP is faster below it; else None."""
    below = False
    for each in sorted(speeds, key=lambda speed: speed.parameters):
        if each.ddp_fits and slower(getattr(each, rival), each.fsdp):
            below = True
        elif below and each.fsdp_fits:
            return each.parameters
    return None


def settings(evidence: Evidence) -> dict[tuple[str, float], list[Speed]]:
    found: dict[tuple[str, float], list[Speed]] = {}
    for speed in evidence.speeds:
        found.setdefault((speed.cluster, speed.nic_gbps), []).append(speed)
    return found


def judge(evidence: Evidence) -> Finding:
    """FSDP must send more, and be slower below a size and not above it, at every bandwidth looked at."""
    volume = {each.strategy: each for each in evidence.volumes}
    ratio = volume["fsdp"].compiled / volume["ddp"].compiled
    expected = volume["fsdp"].formula / volume["ddp"].formula
    crossings = {place: crossover(speeds) for place, speeds in settings(evidence).items()}
    leads = [speed.ddp / speed.fsdp for speed in evidence.speeds if speed.ddp_fits and speed.fsdp_fits]
    within = sum(PAPER[0] <= lead <= PAPER[1] for lead in leads)
    values = (
        Value("volume_ratio.float32", expected, ratio, "compiled"),
        Value("volume_ratio.bfloat16_parameters", 1.0, evidence.bfloat16_ratio, "predicted"),
        *(
            Value(f"crossover_parameters.{cluster}.{nic:g}_gbps", "a size", size, "predicted")
            for (cluster, nic), size in crossings.items()
        ),
        Value("largest_lead_of_ddp", f"{PAPER[0]} to {PAPER[1]}", max(leads), "predicted"),
        Value("settings_with_a_lead_of_2_to_3", None, f"{within} of {len(leads)}", "predicted"),
        Value("ddp_over_fsdp_here", None, evidence.measured_ratio, "measured"),
    )
    crossed = {place: size for place, size in crossings.items() if size}
    sent = f"FSDP sends {ratio:.2f} times DDP's bytes (formula {expected:.2f}; parameters in bfloat16"
    sent += f" {evidence.bfloat16_ratio:.2f})"
    shared = ", whose devices share cores, so it is no evidence" if evidence.on_host else ""
    here = f"; here DDP makes {evidence.measured_ratio:.2f} times FSDP's tokens/s{shared}"
    if abs(ratio / expected - 1) > NEAR or ratio <= 1 or not crossed:
        why = (
            "nowhere is FSDP slower below a size and faster above it" if not crossed else "its volume is not as claimed"
        )
        return Finding("F2", CLAIM, CONDITION, FAILS, f"{sent}; {why}{here}", values)
    sizes = f"{min(crossed.values()):.2g} to {max(crossed.values()):.2g} parameters"
    reason = f"{sent}; the predicted crossover lies at {sizes}, DDP is up to {max(leads):.1f} times faster below{here}"
    if len(crossed) < len(crossings):
        lacking = listed([f"{cluster} at {nic:g} Gb/s" for (cluster, nic), size in crossings.items() if not size])
        condition = (
            f"{CONDITION}. It holds where a gather takes longer than the computing of a block; on {lacking} none does"
        )
        return Finding("F2", CLAIM, condition, CONDITIONAL, reason, values)
    return Finding("F2", CLAIM, CONDITION, HOLDS, reason, values)


def draw(evidence: Evidence) -> Drawing:
    figure, axes = panels(1 + len(CLUSTERS), width=4.2)
    names = [each.strategy for each in evidence.volumes]
    axes[0].bar(names, [each.compiled / 2**20 for each in evidence.volumes], color=[COLOUR[name] for name in names])
    axes[0].plot(names, [each.formula / 2**20 for each in evidence.volumes], "_", color="black", markersize=40)
    axes[0].set(ylabel="MiB sent a device and step", title="compiled (line: formula)")
    by_cluster: dict[str, list[tuple[float, list[Speed]]]] = {}
    for (cluster, nic), speeds in settings(evidence).items():
        by_cluster.setdefault(cluster, []).append((nic, speeds))
    for each, (cluster, lines) in zip(axes[1:], by_cluster.items(), strict=True):
        for nic, speeds in lines:
            shown = [speed for speed in speeds if speed.ddp_fits and speed.fsdp_fits]
            sizes, leads = [speed.parameters for speed in shown], [speed.ddp / speed.fsdp for speed in shown]
            each.plot(sizes, leads, ".-", label=f"{nic:g} Gb/s")
        each.axhline(1, color=OTHER, linewidth=1)
        each.axhspan(*PAPER, color=OTHER, alpha=0.15)
        each.set(xscale="log", ylim=(0, None), xlabel="parameters", title=f"predicted, {cluster}")
        each.set_ylabel("DDP's tokens/s / FSDP's")
        each.legend(fontsize=8)
    return Drawing(figure, evidence.speeds)


F2 = Trial("F2", CLAIM, CONDITION, measure, judge, draw)
