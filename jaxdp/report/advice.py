"""An advice as text, and its figure: the step's split, the exchange rate, and their numbers as CSV."""

from pathlib import Path
from typing import Any

from rich.console import Console

from jaxdp.models.shapes import count
from jaxdp.predict.advise import Advice
from jaxdp.predict.explain import Explanation
from jaxdp.report.figure import save
from jaxdp.report.screen import print_table, screen
from jaxdp.units import bytes_text, percent_text, seconds_text

PARTS = ("compute", "exposed_communication", "waiting")
COLORS = {"compute": "#4c78a8", "exposed_communication": "#f58518", "waiting": "#bab0ac"}
COLUMNS = ("strategy", "fits", "microbatches", "memory", "compute", "exposed", "waiting", "step", "tokens/s", "MFU")
NEGLIGIBLE = 1e-6  # of a step
SHED = ("compute", "waiting", "exposed")  # on a narrow screen


def print_advice(advice: Advice, brief: bool = False, explanation: Explanation | None = None) -> None:
    """The recommendation and its command first; then, unless `brief`, all numbers and what they rest on."""
    console = screen()
    console.print(f"recommendation: {advice.recommendation or 'none'}: {advice.reason}", markup=False)
    if advice.command:
        console.print(f"run: {advice.command}", markup=False)
    if explanation:
        _print_explanation(console, explanation)
    if brief:
        return
    console.print()
    _print_rows(console, advice)
    for row in advice.rows:
        console.print(f"{row.strategy}: {row.bottleneck}", markup=False)
    for text in dict.fromkeys(band.text for band in advice.bands):
        names = [row.strategy for row, band in zip(advice.rows, advice.bands, strict=True) if band.text == text]
        console.print(f"error band of tokens/s ({', '.join(names)}): {text}", markup=False)
    if any(not row.runs for row in advice.rows):
        console.print("* for comparison: jaxdp splits a batch equally", markup=False)
    console.print()
    for crossover in advice.crossovers:
        console.print(f"crossover: {crossover.statement}", markup=False)
    console.print(budget_text(advice), markup=False)
    for finding in advice.findings:
        holds = "holds" if finding["holds"] else "does not hold"
        console.print(f"{finding['finding']} ({finding['claim']}) {holds} here: {finding['found']}", markup=False)
    for assumption in advice.assumptions:
        console.print(f"assumed: {assumption}", markup=False)


def _print_rows(console: Console, advice: Advice) -> None:
    kinds = ", ".join(f"{g.count} x {g.devices} {g.name}" for g in advice.hardware.groups)
    title = f"{count(advice.config.model):,} parameters on {kinds} (predicted)"
    rows = [
        (
            row.strategy + ("" if row.runs else " *"),
            "yes" if row.fits else "no",
            str(row.accumulation),
            bytes_text(row.memory.total),
            seconds_text(row.cost.compute_s),
            seconds_text(row.cost.exposed_communication_s),
            seconds_text(row.cost.waiting_s),
            seconds_text(row.cost.total_s),
            f"{row.tokens_per_second:,.0f}",
            percent_text(row.mfu_percent),
        )
        for row in advice.rows
    ]
    print_table(console, title, COLUMNS, rows, left=("fits",), shed=SHED)


def _print_explanation(console: Console, explanation: Explanation) -> None:
    first, second = explanation.strategies
    parts = {**explanation.seconds, "step": explanation.total_s}
    least = NEGLIGIBLE * max(explanation.total_s)
    lines = [
        (part, seconds_text(a), seconds_text(b), _difference(a - b, least))
        for part, (a, b) in parts.items()
        if max(a, b) > least
    ]
    console.print()
    title = f"where a step of {first} differs from {second}'s (predicted)"
    print_table(console, title, ("spent on", first, second, "difference"), lines)
    remedy = explanation.remedy
    text = "none of the config's changes looked at makes it 1 % faster"
    if remedy:
        text = f"{remedy.why} would help most: --set {remedy.change}, {remedy.gain:.2f} times its tokens/s"
    console.print(f"{first}: {text}", markup=False)


def _difference(seconds: float, least: float) -> str:
    return "-" if abs(seconds) <= least else f"{'+' if seconds > 0 else '-'}{seconds_text(abs(seconds))}"


def budget_text(advice: Advice) -> str:
    """The communication budget in one sentence."""
    budget = advice.budget
    bandwidth, tokens = budget["bandwidth_bytes_per_s"], budget["tokens_per_device"]
    least, most = budget["looked_at"]["bandwidth_bytes_per_s"]
    if bandwidth is None:
        first = f"at no bandwidth up to {most / 1e9:.3g} GB/s"
    elif bandwidth == least:
        first = f"at any bandwidth from {least / 1e9:.3g} GB/s"
    else:
        first = f"from {bandwidth / 1e9:.3g} GB/s"
    fewest = budget["looked_at"]["tokens_per_device"][0]
    second = "at no batch looked at" if tokens is None else f"from {tokens:,.0f} tokens per device"
    if tokens == fewest:
        second = f"at any batch from {fewest:,.0f} tokens per device"
    return (
        f"communication budget: FSDP stays within {budget['within_percent']} % of DDP {first} {budget['link']}"
        f" (here {budget['bandwidth_at_hand_bytes_per_s'] / 1e9:.3g}), and here {second}"
        f" (here {budget['tokens_per_device_at_hand']:,.0f});"
        f" below about {budget['balance_tokens_per_device']:,.0f} communication outlasts computing"
    )


def save_figure(advice: Advice, path: Path) -> list[Path]:
    """The step of each strategy, split, and what a byte sent saves as each dimension grows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [row.strategy + ("" if row.fits else "\n(does not fit)") for row in advice.rows]
    bottoms = [0.0] * len(names)
    for part in PARTS:
        heights = [row.to_json()["step_time_s"][part] for row in advice.rows]
        left.bar(names, heights, bottom=bottoms, label=part.replace("_", " "), color=COLORS[part])
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    left.set(ylabel="seconds a step (predicted)", title="Step time")
    left.tick_params(axis="x", labelsize=8)
    left.set_ylim(0, 1.2 * max(bottoms))
    left.legend(ncols=3, loc="upper center", fontsize=8)
    _draw_exchange(right, advice)
    return save(figure, _csv(advice), path)


def _draw_exchange(axes: Any, advice: Advice) -> None:
    """Solid: bytes saved a byte sent; dashed: a byte whose sending shows in the step."""
    here = {name: getattr(advice.config.model, name) for name in ("layers", "width", "vocab")}
    here["tokens_per_device"] = advice.budget["tokens_per_device_at_hand"]
    for number, (name, value) in enumerate(here.items()):
        rows = sorted((row for row in advice.exchange if row["dimension"] == name), key=lambda row: row["value"])
        for key, style in (("per_byte", "-"), ("per_exposed_byte", "--")):
            points = [(row["value"] / value, row[key]) for row in rows if row[key] is not None]
            label = name.replace("_", " ") if style == "-" else None
            axes.plot(*zip(*points, strict=True), style, marker="o", color=f"C{number}", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set(
        xlabel="times the config's value",
        ylabel="bytes saved a byte sent (dashed: a byte that shows)",
        title="What FSDP's communication buys",
    )
    axes.legend(fontsize=8)


def _csv(advice: Advice) -> str:
    lines = ["table,name,metric,value"]
    for row in advice.rows:
        values = {**row.to_json()["step_time_s"], "bytes_per_device": row.memory.total}
        lines += [f'strategy,"{row.strategy}",{key},{value}' for key, value in values.items()]
    for row in advice.exchange:
        label = f"{row['dimension']}={row['value']:g}"
        lines += [f"exchange,{label},{key},{row[key]}" for key in ("per_byte", "per_exposed_byte")]
    return "\n".join(lines) + "\n"
