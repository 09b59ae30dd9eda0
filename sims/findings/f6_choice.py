"""F6: choose from your bottleneck: what fits takes DDP, what does not FSDP, uneven hardware the parameter server."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdp.config import load
from jaxdp.predict.advise import Advice, advise
from jaxdp.predict.claims import LEVEL, RULE, Bottleneck, bottleneck, chosen_as, level
from jaxdp.predict.hardware import load_hardware
from jaxdp.stragglers.delays import parse
from sims.findings.drawing import COLOUR, OTHER, heat_map, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, UNTESTABLE, Drawing, Finding, Trial, Value
from sims.findings.lab import Lab

SLOWDOWNS = (2, 4, 8)  # of one device
SETTINGS = (
    ("tiny", "a100-80gx8", 1),
    ("small", "a100-80gx8", 1),
    ("small", "a100-80gx8", 4),
    ("small", "rtx4090x4", 1),
    ("350m", "l40sx8", 1),
    ("1b", "h100x8", 1),
    ("1b", "h100x8", 4),
    ("gpt2-xl", "a100-80gx8", 1),
    ("1b", "tpu-v5ex8", 2),
    ("llama3-8b", "a100-80gx8", 1),
    ("llama3-8b", "h100x8", 4),
    ("llama3-70b", "h100x8", 4),
)
CLAIM = "choose from your bottleneck: fits -> DDP; does not fit -> FSDP with a communication budget; uneven -> server"
CONDITION = (
    f"the rule's choice against the fastest prediction that fits, on {len(SETTINGS)} pairs of a shipped model and a"
    f" cluster, even and with one device 2, 4 or 8 times slower; {LEVEL - 1:.0%} counts as level"
)


@dataclass(frozen=True)
class ClusterChoice:
    """What the rule says and what the predictions say; `kept` is the rule's tokens/s over the best's (0: no fit).

    `over_budget` is the tokens a device over those from which computing outlasts FSDP's communication.
    """

    model: str
    cluster: str
    slowdown: int
    bottleneck: Bottleneck
    advised: str
    kept: float
    over_budget: float


@dataclass(frozen=True)
class Evidence:
    cells: tuple[ClusterChoice, ...]


def measure(lab: Lab) -> Evidence:
    slowdowns = (1, 4) if lab.quick else (1, *SLOWDOWNS)
    cells = [_cell(*scenario, slowdown) for scenario in SETTINGS for slowdown in slowdowns]
    return Evidence(tuple(cell for cell in cells if cell))


def _cell(model: str, preset: str, hosts: int, slowdown: int) -> ClusterChoice | None:
    """None where nothing fits."""
    delays = parse(f"persistent(factor={slowdown},worker=0)") if slowdown > 1 else None
    advice = advise(load([model]), load_hardware(preset, hosts), delays)
    if advice.recommendation is None:
        return None
    rows = {row.strategy: row for row in advice.rows if row.runs}
    what = bottleneck(rows["ddp"].fits, slowdown > 1)
    rates = {name: row.tokens_per_second for name, row in rows.items() if row.fits}
    ruled = [rate for name, rate in rates.items() if RULE[what] in (name, chosen_as(name))]
    kept = max(ruled, default=0.0) / max(rates.values())
    cluster = f"{hosts} x {preset}"
    return ClusterChoice(model, cluster, slowdown, what, advice.recommendation, kept, _over_budget(advice))


def _over_budget(advice: Advice) -> float:
    return advice.budget["tokens_per_device_at_hand"] / advice.budget["balance_tokens_per_device"]


def judge(evidence: Evidence) -> Finding:
    """The rule must come near the best prediction: everywhere, or at least somewhere for each bottleneck."""
    own = {name: [cell for cell in evidence.cells if cell.bottleneck == name] for name in RULE}
    if not all(own.values()):
        return Finding("F6", CLAIM, CONDITION, UNTESTABLE, "not every bottleneck occurs in the settings looked at")
    good = {name: [cell for cell in cells if level(cell.kept, 1)] for name, cells in own.items()}
    budgets = [cell.over_budget for cell in own["does not fit"]]
    values = (
        *(
            Value(
                f"rule_is_level.{name}",
                f"{len(cells)} of {len(cells)}",
                f"{len(good[name])} of {len(cells)}",
                "predicted",
            )
            for name, cells in own.items()
        ),
        *(
            Value(
                f"least_kept_by_the_rule.{name}", f"at least {1 / LEVEL:.2f}", min(c.kept for c in cells), "predicted"
            )
            for name, cells in own.items()
        ),
        Value("tokens_over_fsdps_communication_budget", "at least 1", min(budgets), "predicted"),
    )
    reason = "the rule comes near the best in " + "; ".join(
        f"{len(good[name])} of {len(own[name])} settings ({name} -> {choice})" for name, choice in RULE.items()
    )
    if all(len(good[name]) == len(cells) for name, cells in own.items()):
        return Finding("F6", CLAIM, CONDITION, HOLDS, reason, values)
    if not all(good.values()):
        never = ", ".join(f"{name} -> {RULE[name]}" for name in RULE if not good[name])
        return Finding("F6", CLAIM, CONDITION, FAILS, f"{reason}; never: {never}", values)
    first = {(cell.model, cell.cluster): cell.slowdown for cell in reversed(good["uneven"])}  # the least slowdown
    served = "; ".join(f"{model} on {cluster} from {slow} times" for (model, cluster), slow in first.items())
    condition = (
        f"{CONDITION}. The server is the choice for uneven workers only where its network and its applying of updates"
        f" keep up ({served}); where DDP fits, FSDP may still be faster between hosts, since it overlaps (F3)"
    )
    return Finding("F6", CLAIM, condition, CONDITIONAL, reason, values)


def draw(evidence: Evidence) -> Drawing:
    figure, axes = panels(3, width=4.6, height=4.2)
    shown: tuple[Bottleneck, Bottleneck] = ("fits", "does not fit")
    for each, name in zip(axes[:2], shown, strict=True):
        cells = [cell for cell in evidence.cells if cell.bottleneck == name]
        colours = [COLOUR[RULE[name]] if level(cell.kept, 1) else OTHER for cell in cells]
        each.barh(range(len(cells)), [100 * cell.kept for cell in cells], color=colours)
        each.set_yticks(range(len(cells)), [_place(cell) for cell in cells], fontsize=7)
        for place, cell in enumerate(cells):
            each.text(102, place, cell.advised, fontsize=7, va="center")
        each.axvline(100 / LEVEL, color=OTHER, linewidth=0.8, linestyle=":")
        each.set(xlim=(0, 120), xlabel="tokens/s of the rule's choice (% of the best)", title=f"{name} -> {RULE[name]}")
        each.invert_yaxis()
    _draw_uneven(axes[2], [cell for cell in evidence.cells if cell.bottleneck == "uneven"])
    return Drawing(figure, evidence.cells)


def _place(cell: ClusterChoice) -> str:
    return f"{cell.model}, {cell.cluster}"


def _draw_uneven(axes: Any, cells: list[ClusterChoice]) -> None:
    kept = {(_place(cell), cell.slowdown): 100 * cell.kept for cell in cells}
    places = list(dict.fromkeys(_place(cell) for cell in reversed(cells)))  # the first on top
    slowdowns = list(dict.fromkeys(cell.slowdown for cell in cells))
    values = [[kept[place, slowdown] for slowdown in slowdowns] for place in places]
    heat_map(axes, values, [f"{each} times" for each in slowdowns], places, np.array(values) >= 100 / LEVEL, "{:.0f}")
    axes.tick_params(axis="y", labelsize=7)
    axes.set(xlabel="one device slower (0: no fit)", title="uneven -> ps (% of the best)")


F6 = Trial("F6", CLAIM, CONDITION, measure, judge, draw)
