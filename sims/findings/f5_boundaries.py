"""F5: a shard boundary inside a block costs a round trip, so efficiency falls at some device counts and comes back."""

from dataclasses import dataclass

from jaxdp.config import Config, build, load
from jaxdp.predict.cost import mesh_cost
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.preflight import preflight
from sims.findings.drawing import COLOUR, FLAGGED, OTHER, panels
from sims.findings.finding import CONDITIONAL, FAILS, Drawing, Finding, Trial, Value, listed
from sims.findings.lab import Lab

COUNTS, QUICK_COUNTS = (2, 3, 4, 5, 6), (3, 4, 5, 6)
BLOCKS, ROWS = 6, 2  # rows of the batch a device: weak scaling
LATENCY_S = 0.03  # injected
DIP = 0.15  # of the efficiency, from which it counts as fallen
NETWORKS_S = (
    14e-6,
    1e-3,
    LATENCY_S,
)  # one way, for which the model predicts: a data centre's, a slow network's, injected
PREDICTED_FOR = ("small", "h100")  # model, and one such device a host
CLAIM = (
    "scaling efficiency falls where a shard boundary splits a block, since its fetch needs another round trip, and"
    " recovers at the next count that does not split one; a check of the boundaries tells before the run"
)
CONDITION = (
    f"{BLOCKS} blocks as one flat vector cut in equal pieces, the same batch a device at every count,"
    f" {1e3 * LATENCY_S:g} ms of injected latency in every round of a fetch; beside it shards cut within each block"
)


@dataclass(frozen=True)
class Row:
    """One device count. Rounds and collectives are the compiled programs' a step, seconds are measured."""

    devices: int
    flagged: bool  # by the check before the run
    flagged_aligned: bool  # the same check of block-aligned shards
    rounds: int  # all-reduces of the flat unit, most of them rounds of a fetch
    collectives_aligned: int
    step_s: float
    step_aligned_s: float


@dataclass(frozen=True)
class Predicted:
    """The flat unit's step on a cluster with so much latency, by the cost model."""

    latency_s: float
    devices: int
    step_s: float


@dataclass(frozen=True)
class Evidence:
    latency_s: float
    rows: tuple[Row, ...]
    predicted: tuple[Predicted, ...]

    @property
    def efficiency(self) -> dict[int, float]:
        """Throughput a device against that of the fewest devices whose pieces split no block."""
        whole = [row for row in self.rows if not row.flagged]
        return {row.devices: whole[0].step_s / row.step_s for row in self.rows} if whole else {}

    @property
    def efficiency_aligned(self) -> dict[int, float]:
        return {row.devices: self.rows[0].step_aligned_s / row.step_aligned_s for row in self.rows}


def measure(lab: Lab) -> Evidence:
    counts = QUICK_COUNTS if lab.quick else COUNTS
    lab.need(max(counts))
    rows = tuple(_row(lab, count) for count in counts)
    return Evidence(LATENCY_S, rows, tuple(_predicted()))


def _row(lab: Lab, devices: int) -> Row:
    steps, each_s = 3 if lab.quick else 6, []
    collectives, flagged = [], []
    for name in ("fsdp_flat", "fsdp"):
        config = _config(name, devices)
        (found,) = lab.bench(f"f5-{devices}-devices-{name}", [config], devices, steps=steps, allow=("block_split",))
        flagged.append(_splits(config, devices))
        collectives.append({row["kind"]: row["count"] for row in found.collectives})
        each_s.append(found.step_time_s.p10)  # a busy machine only adds to the slept latency
    rounds, aligned = collectives[0]["all-reduce"], sum(collectives[1].values())
    return Row(devices, flagged[0], flagged[1], rounds, aligned, each_s[0], each_s[1])


def _splits(config: Config, devices: int) -> bool:
    return any(finding.name == "block_split" for finding in preflight(config, devices).findings)


def _config(name: str, devices: int) -> Config:
    """Small, so that the latency dominates; every size is a multiple of 2 to 6."""
    return build(
        {
            "model": {"layers": BLOCKS, "width": 60, "heads": 6, "ffn": 120, "context": 16, "vocab": 120},
            "data": {"corpus": "synthetic"},
            "train": {"global_batch": ROWS * devices, "compute_dtype": "float32"},
            "strategy": {"name": name, "min_shard_bytes": 0, "round_latency_s": LATENCY_S},
        }
    )


def _predicted() -> list[Predicted]:
    model, hardware = PREDICTED_FOR
    found = []
    for latency_s in NETWORKS_S:
        for devices in COUNTS:
            flags = {"strategy.name": "fsdp_flat", "train.global_batch": 8 * devices}
            config = load([model], [f"model.layers={BLOCKS}"], flags)
            group = load_hardware(hardware, devices).groups[0]
            cluster = Hardware((type(group)(**{**vars(group), "nic_latency_s": latency_s}),))
            found.append(Predicted(latency_s, devices, mesh_cost(config, cluster).total_s))
    return found


def predicted_efficiency(predicted: tuple[Predicted, ...], latency_s: float) -> dict[int, float]:
    steps = {each.devices: each.step_s for each in predicted if each.latency_s == latency_s}
    return {devices: steps[min(steps)] / step_s for devices, step_s in steps.items()}


def judge(evidence: Evidence) -> Finding:
    """Compiled rounds, the check and the measured dip must name the same counts, and aligned shards none."""
    rows, efficiency = evidence.rows, evidence.efficiency
    flagged = [row.devices for row in rows if row.flagged]
    least = min(row.rounds for row in rows)
    more_rounds = [row.devices for row in rows if row.rounds > least]
    dips = [devices for devices, share in efficiency.items() if share < 1 - DIP]
    aligned = [row for row in rows if row.flagged_aligned or row.collectives_aligned > rows[0].collectives_aligned]
    # More host devices share the same cores, so that a slow decline is no dip: what comes back is one.
    regained = evidence.efficiency_aligned[rows[-1].devices]
    aligned_dips = [devices for devices, share in evidence.efficiency_aligned.items() if share < regained - DIP]
    values = (
        Value("counts_flagged_before_the_run", "4 and 5", listed(flagged), "predicted"),
        Value("counts_with_more_compiled_rounds", listed(flagged), listed(more_rounds), "compiled"),
        Value("counts_with_a_dip", listed(flagged), listed(dips), "measured"),
        Value("counts_with_more_collectives_if_aligned", "none", listed([row.devices for row in aligned]), "compiled"),
        Value("counts_with_a_dip_if_aligned", "none", listed(aligned_dips), "measured"),
        *(Value(f"compiled_rounds.{row.devices}_devices", None, row.rounds, "compiled") for row in rows),
        *(
            Value(f"efficiency.{row.devices}_devices", least / row.rounds, efficiency.get(row.devices), "measured")
            for row in rows
        ),
        *(Value(f"won_back_at_{name}", None, won, "predicted") for name, won in _won_back(evidence).items()),
    )
    problem = _problem(flagged, more_rounds, dips, bool(aligned or aligned_dips), rows[-1].devices)
    if problem:
        return Finding("F5", CLAIM, CONDITION, FAILS, problem, values)
    lowest = min(efficiency, key=lambda devices: efficiency[devices])
    gains = listed([f"{won - 1:.0%} at {latency.replace('_', ' ')}" for latency, won in _won_back(evidence).items()])
    return Finding(
        "F5",
        CLAIM,
        f"{CONDITION}. It shows as far as a round trip is a sizeable part of a step: the cost model predicts that the"
        f" last count wins back {gains} of latency",
        CONDITIONAL,
        f"the check names {listed(flagged)}; there alone the compiled step has more rounds, and there alone efficiency"
        f" falls (to {efficiency[lowest]:.0%} at {lowest}), to come back to {efficiency[rows[-1].devices]:.0%} at"
        f" {rows[-1].devices}; aligned shards need the same collectives and keep"
        f" {min(evidence.efficiency_aligned.values()):.0%} or more at every count",
        values,
    )


def _problem(flagged: list[int], more_rounds: list[int], dips: list[int], aligned: bool, last: int) -> str | None:
    if not flagged or last in flagged:
        return f"the check flags {listed(flagged)}, so nothing falls and comes back"
    if more_rounds != flagged:
        return f"the check flags {listed(flagged)}, the compiled step has more rounds at {listed(more_rounds)}"
    if dips != flagged:
        return f"the check flags {listed(flagged)}, the measured efficiency falls at {listed(dips)}"
    if aligned:
        return "shards cut within each block need more collectives, or lose efficiency, at some counts too"
    return None


def _won_back(evidence: Evidence) -> dict[str, float]:
    """Efficiency at the last count over that at the count before, by the network's latency."""
    found = {}
    for latency_s in sorted({each.latency_s for each in evidence.predicted}):
        *_, before, last = predicted_efficiency(evidence.predicted, latency_s).values()
        found[_latency_text(latency_s)] = last / before
    return found


def _latency_text(latency_s: float) -> str:
    return f"{1e6 * latency_s:.0f}_us" if latency_s < 1e-3 else f"{1e3 * latency_s:.0f}_ms"


def draw(evidence: Evidence) -> Drawing:
    figure, (left, middle, right) = panels(3, width=4.2)
    counts = [row.devices for row in evidence.rows]
    colours = [FLAGGED if row.flagged else COLOUR["ddp"] for row in evidence.rows]
    left.bar(counts, [row.rounds for row in evidence.rows], color=colours)
    left.set(xlabel="devices", ylabel="all-reduces a step", title="compiled, flat unit (orange: flagged)")
    efficiency = [100 * evidence.efficiency.get(count, 0) for count in counts]
    aligned = [100 * share for share in evidence.efficiency_aligned.values()]
    middle.plot(counts, aligned, marker="s", color=COLOUR["ddp"], label="cut within each block, measured")
    middle.plot(counts, efficiency, marker="o", color=COLOUR["fsdp"], label="flat unit, measured")
    expected = [100 * min(row.rounds for row in evidence.rows) / row.rounds for row in evidence.rows]
    middle.plot(counts, expected, "--", color=OTHER, label="fewest rounds / rounds")
    middle.set(xlabel="devices", ylabel="scaling efficiency (%)", ylim=(0, 115))
    middle.set_title(f"measured, {1e3 * evidence.latency_s:g} ms injected a round")
    middle.legend(fontsize=8, loc="lower left")
    for latency_s, dash in zip(NETWORKS_S, ("-", "--", ":"), strict=True):
        shares = predicted_efficiency(evidence.predicted, latency_s)
        label = _latency_text(latency_s).replace("_", " ")
        right.plot(list(shares), [100 * share for share in shares.values()], dash, marker=".", label=label)
    model, hardware = PREDICTED_FOR
    right.set(xlabel="hosts", ylim=(0, 115), title=f"predicted by network latency ({model}, one {hardware} a host)")
    right.title.set_fontsize(9)
    right.legend(fontsize=8, loc="lower left")
    for axes in (left, middle, right):
        axes.set_xticks(counts)
    return Drawing(figure, evidence.rows)


F5 = Trial("F5", CLAIM, CONDITION, measure, judge, draw)
