"""A pre-flight check as text, and the figure of where shard boundaries fall in the blocks."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jaxdp.config import Config, ModelConfig
from jaxdp.models.shapes import parameters
from jaxdp.predict.preflight import Report
from jaxdp.report.figure import save
from jaxdp.report.screen import print_table, screen
from jaxdp.strategies.flat_layout import FlatLayout, flat_layout
from jaxdp.units import bytes_text


def print_check(report: Report) -> None:
    """Each parameter's spec, shard and bytes a device, then the findings."""
    console = screen()
    rows = [
        (
            row["parameter"],
            "x".join(map(str, row["shape"])),
            ",".join(axis or "-" for axis in row["spec"]),
            "x".join(map(str, row["shard_shape"])),
            bytes_text(row["shard_bytes"]),
            bytes_text(row["optimizer_shard_bytes"]),
        )
        for row in report.parameters
    ]
    if rows:
        names = ("parameter", "shape", "spec", "shard", "bytes", "optimizer")
        title = f"{report.strategy} on {report.devices} devices (bytes per device)"
        print_table(console, title, names, rows, left=("shape", "spec", "shard"), shed=("shard", "shape"))
        how = "as compiled" if report.compiled else "estimated"
        known = report.memory_bytes is not None
        step = f"a step needs about {bytes_text(report.memory_bytes)} ({how})" if known else "a step needs more"
        padding = f", {bytes_text(report.padding_bytes)} of it padding" if (report.padding_bytes or 0) >= 2**14 else ""
        console.print(f"state of {bytes_text(report.state_bytes)} per device (exact{padding}); {step}")
    for unknown in report.unknown:
        console.print(f"unknown: {unknown}")
    if report.compiled:
        for row in report.compiled["collectives"]:
            sent = bytes_text(row["bytes"])
            console.print(f"compiled: {row['count']} {row['kind']}, {sent} sent per device and step")
    print_findings(console, report)


def print_findings(console: Console, report: Report) -> None:
    for finding in report.findings:
        passed = " (allowed)" if finding.severity == "error" and finding.name in report.allowed else ""
        console.print(f"{finding.severity}{passed}: {finding}", markup=False)
    if not report.findings:
        console.print("no findings")


def print_sweep(reports: Sequence[Report], config: Config) -> None:
    """One row a device count: safe or not, why not, and for the flat unit a drawing of its cuts."""
    flat = config.strategy.row.flat
    drawing = ["blocks and cuts"] if flat else []
    rows = []
    for report in reports:
        names = dict.fromkeys(finding.name for finding in report.findings)
        drawn = [cuts_text(flat_layout(parameters(config.model), report.devices))] if flat else []
        safe = "yes" if report.ok else "no"
        rows.append((str(report.devices), safe, bytes_text(report.memory_bytes), " ".join(names) or "-", *drawn))
    columns = ("devices", "safe", "memory per device", "findings", *drawing)
    words = ("safe", "findings", *drawing)
    print_table(screen(), config.strategy.name, columns, rows, left=words, fold=("findings", *drawing))


def cuts_text(flat: FlatLayout) -> str:
    """Block indices with `|` where one device's piece ends and the next begins: `0 1|2` or, inside a block, `1:1`."""
    text = ""
    for layer in range(flat.layers):
        parts = flat.parts(layer)
        starts_piece = layer > 0 and parts[0].start == 0
        text += ("|" if starts_piece else " " if layer else "") + ":".join([str(layer)] * len(parts))
    return text


def save_boundaries(reports: Sequence[Report], config: Config, path: Path) -> list[Path]:
    """Draws the blocks in a row for each device count, with the cuts; split blocks stand out. Also as CSV."""
    from matplotlib.figure import Figure

    model, flat = config.model, config.strategy.row.flat
    figure = Figure(figsize=(8, 1 + 0.35 * len(reports)), layout="constrained")
    axes = figure.add_subplot()
    lines = ["devices,cut_at_block,splits_block"]
    for row, report in enumerate(reports):
        cuts, split = _cuts(model, report.devices, flat)
        for layer in range(model.layers):
            color = "#d95f02" if layer in split else "#c6dbef"
            axes.barh(row, 0.96, left=layer + 0.02, height=0.6, color=color)
        for cut in cuts:
            axes.plot([cut, cut], [row - 0.42, row + 0.42], color="black", linewidth=1.5)
            lines.append(f"{report.devices},{cut:.6g},{int(flat and cut != round(cut))}")
    axes.set_yticks(range(len(reports)), [str(report.devices) for report in reports])
    axes.set_xticks([layer + 0.5 for layer in range(model.layers)], [str(layer) for layer in range(model.layers)])
    axes.set(xlabel="block", ylabel="devices", title=_title(flat), xlim=(-0.1, model.layers + 0.1))
    axes.invert_yaxis()
    return save(figure, "\n".join(lines) + "\n", path)


def _cuts(model: ModelConfig, devices: int, flat: bool) -> tuple[list[float], set[int]]:
    """Where cuts fall, in blocks, and the blocks that need more rounds than others."""
    if not flat:
        return [layer + part / devices for layer in range(model.layers) for part in range(1, devices)], set()
    layout = flat_layout(parameters(model), devices)
    places = [piece * layout.piece_size / layout.block_size for piece in range(1, devices)]
    return [place for place in places if place < model.layers], set(layout.split_blocks())


def _title(flat: bool) -> str:
    if flat:
        return "flat unit: blocks whose fetch needs more rounds than other blocks' are orange"
    return "every block is cut evenly within itself: one round fetches any block"
