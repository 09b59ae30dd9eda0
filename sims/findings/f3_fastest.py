"""F3: DDP is fastest for whatever comfortably fits in memory."""

from dataclasses import dataclass

from jaxdp.config import Config, build, load
from jaxdp.predict.claims import LEVEL, level
from jaxdp.predict.evaluate import evaluate, possible
from jaxdp.predict.hardware import load_hardware
from sims.findings.drawing import COLOUR, OTHER, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Drawing, Finding, Trial, Value
from sims.findings.lab import Lab
from sims.findings.overlap import overlapped_ddp_s

MODELS = ("tiny", "small", "350m", "1b", "gpt2-xl")
CLUSTERS = (("a100-80gx8", 1), ("a100-80gx8", 4), ("h100x8", 1), ("h100x8", 4), ("l40sx8", 1), ("a100-80g", 8))
DEVICES = 4
CLAIM = "DDP is fastest for whatever fits in memory"
CONDITION = (
    f"predicted tokens/s of every strategy that jaxdp runs, for the shipped models and clusters in which DDP fits,"
    f" {LEVEL - 1:.0%} counting as level; beside it DDP with a reduction that overlaps the backward pass"
)


@dataclass(frozen=True)
class ClusterResult:
    """Predicted tokens/s over DDP's as jaxdp runs it: of DDP with overlap, and of the fastest strategy that fits."""

    model: str
    cluster: str
    overlapped: float
    fastest: str
    lead: float


@dataclass(frozen=True)
class Measured:
    """Tokens/s on the devices here, taking turns."""

    strategy: str
    tokens_per_second: float


@dataclass(frozen=True)
class Evidence:
    cells: tuple[ClusterResult, ...]
    measured: tuple[Measured, ...]
    on_host: bool


def measure(lab: Lab) -> Evidence:
    if lab.quick:
        return Evidence(tuple(_cells()), (), lab.on_host)
    found = lab.bench("f3", [_config(name) for name in ("ddp", "zero1", "fsdp")], DEVICES, steps=30)
    measured = tuple(Measured(each.strategy, each.tokens_per_second) for each in found)
    return Evidence(tuple(_cells()), measured, lab.on_host)


def _config(name: str) -> Config:
    model = {"layers": 4, "width": 64, "heads": 8, "ffn": 256, "context": 64, "vocab": 256}
    return build({"model": model, "data": {"corpus": "synthetic"}, "strategy": {"name": name}})


def _cells() -> list[ClusterResult]:
    found = []
    for model in MODELS:
        for preset, hosts in CLUSTERS:
            config, hardware = load([model]), load_hardware(preset, hosts)
            rows = {name: evaluate(config, hardware, name) for name in possible(config, hardware)}
            ddp = rows["ddp"]
            if not ddp.fits:
                continue
            fitting = {name: row.tokens_per_second for name, row in rows.items() if row.fits}
            fastest = max(fitting, key=lambda name: fitting[name])
            overlapped = ddp.global_batch * config.model.context / overlapped_ddp_s(config, hardware)
            rates = (overlapped / ddp.tokens_per_second, fastest, fitting[fastest] / ddp.tokens_per_second)
            found.append(ClusterResult(model, f"{hosts} x {preset}", *rates))
    return found


def judge(evidence: Evidence) -> Finding:
    """DDP must be level with the fastest in every scenario; in some only, the models say where."""
    cells = evidence.cells
    if not cells:
        return Finding("F3", CLAIM, CONDITION, UNTESTABLE, "DDP fits nowhere that was looked at")
    built = [cell for cell in cells if level(1, cell.lead)]
    overlapped = [cell for cell in cells if level(cell.overlapped, cell.lead)]
    worst = max(cells, key=lambda cell: cell.lead)
    here = {each.strategy: each.tokens_per_second for each in evidence.measured}
    values = (
        Value("settings_where_ddp_is_level", f"{len(cells)} of {len(cells)}", _of(built, cells), "predicted"),
        Value("settings_where_overlapped_ddp_is_level", None, _of(overlapped, cells), "predicted"),
        Value("largest_lead_over_ddp", f"at most {LEVEL}", worst.lead, "predicted"),
        *(Value(f"level.{model}", None, _by_model(built, cells, model), "predicted") for model in MODELS),
        *(
            Value(f"tokens_per_second_over_ddp_here.{name}", f"at most {LEVEL}", rate / here["ddp"], "measured")
            for name, rate in here.items()
            if name != "ddp"
        ),
    )
    reason = f"DDP is level with the fastest in {_of(built, cells)} settings, with overlap in {_of(overlapped, cells)};"
    reason += f" the largest lead is {worst.fastest}'s, {worst.lead:.2f} times DDP ({worst.model} on {worst.cluster})"
    if here and evidence.on_host:
        reason += "; the devices here share cores, so their tokens/s are no evidence"
    if len(built) == len(cells):
        return Finding("F3", CLAIM, CONDITION, HOLDS, reason, values)
    if not built and not overlapped:
        return Finding("F3", CLAIM, CONDITION, FAILS, reason, values)
    condition = (
        f"{CONDITION}. It holds where reducing and updating are a small part of a step, or the model so small that"
    )
    condition += f" gathers cost more: {_where(built)}"
    return Finding("F3", CLAIM, condition, CONDITIONAL, reason, values)


def _of(some: list[ClusterResult], cells: tuple[ClusterResult, ...]) -> str:
    return f"{len(some)} of {len(cells)}"


def _by_model(some: list[ClusterResult], cells: tuple[ClusterResult, ...], model: str) -> str:
    own = tuple(cell for cell in cells if cell.model == model)
    return _of([cell for cell in some if cell.model == model], own)


def _where(cells: list[ClusterResult]) -> str:
    clusters: dict[str, list[str]] = {}
    for cell in cells:
        clusters.setdefault(cell.model, []).append(cell.cluster)
    return "; ".join(f"{model} on {', '.join(names)}" for model, names in clusters.items()) or "with overlap only"


def draw(evidence: Evidence) -> Drawing:
    figure, (axes,) = panels(1, width=9)
    places = range(len(evidence.cells))
    axes.bar([p - 0.2 for p in places], [c.lead for c in evidence.cells], 0.38, color=COLOUR["fsdp"], label="fastest")
    overlapped = [cell.overlapped for cell in evidence.cells]
    axes.bar([p + 0.2 for p in places], overlapped, 0.38, color=COLOUR["ddp"], label="DDP with overlap")
    for place, cell in zip(places, evidence.cells, strict=True):
        axes.text(place - 0.2, cell.lead, cell.fastest, ha="center", va="bottom", fontsize=6, rotation=90)
    axes.axhline(LEVEL, color=OTHER, linewidth=1, linestyle=":")
    axes.axhline(1, color=OTHER, linewidth=1)
    names = [f"{cell.model}, {cell.cluster}" for cell in evidence.cells]
    axes.set_xticks(list(places), names, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="tokens/s / DDP's as jaxdp runs it", title="predicted, where DDP fits")
    axes.set_ylim(0, 1.15 * max((cell.lead for cell in evidence.cells), default=1))
    axes.legend(fontsize=8, loc="lower right")
    return Drawing(figure, evidence.cells)


F3 = Trial("F3", CLAIM, CONDITION, measure, judge, draw)
