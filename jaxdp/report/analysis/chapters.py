"""The plainer sections of a report: from cells to prose, charts and tables."""

from collections.abc import Sequence

from jaxdp.report.analysis import metrics as q
from jaxdp.report.analysis.bends import Bend
from jaxdp.report.analysis.load import Measurement
from jaxdp.report.analysis.run_groups import Curve, RunGroup
from jaxdp.report.analysis.spread import apart
from jaxdp.report.analysis.views import by_conditions, cell_table, few, metric_charts
from jaxdp.report.section import Section, Table, TableCell

OVERVIEW = (q.THROUGHPUT, q.STATE, q.SENT, q.COMMUNICATION, q.LAST_LOSS)


def overview(cells: Sequence[RunGroup], curves: Sequence[Curve], bends: Sequence[Bend], missing: int) -> Section:
    """What was measured, what stands out, and what a reader must keep in mind."""
    facts = [*_diverged(cells), *_fastest(cells), *(f"**{bend.label}**: {bend.statement}." for bend in bends)]
    if missing:
        facts.append(f"{missing} of the runs gave no result; they are listed at the end.")
    prose = "\n\n".join(filter(None, [*caveats(cells), "\n".join(f"- {fact}" for fact in facts)]))
    return Section("Overview", prose, cell_table(cells, OVERVIEW, curves))


def caveats(cells: Sequence[RunGroup]) -> list[str]:
    """Sentences that every figure stands under."""
    said = []
    if any((run.result or {}).get("platform") == "cpu" for cell in cells for run in cell.runs):
        said.append(
            "**These are CPU devices.** Host devices of one process share this machine's cores, so how throughput "
            "scales here is no evidence of a cluster's; memory, communicated bytes and losses are exact."
        )
    counts = {len(cell.runs) for cell in cells}
    if counts == {1}:
        said.append(
            "Every figure is of a single run (n = 1); where a spread is given it is p10 to p90 of the run's timed "
            "windows, which says nothing of how another run would do. Repeat the runs to know."
        )
    elif counts:
        said.append(
            "Figures are medians over repeats, with their range (of ten and more: p10 to p90)"
            + (
                "; some cells have a single run (n = 1), whose spread is that of its timed windows."
                if 1 in counts
                else "."
            )
        )
    return said


def _diverged(cells: Sequence[RunGroup]) -> list[str]:
    """What did not train, first of all: its speed is worth nothing."""
    said = []
    for cell in (cell for cell in cells if cell.diverged):
        losses = [(run.result or {}).get("loss") or {} for run in cell.runs if (run.result or {}).get("diverged")]
        first, last = losses[0].get("first"), losses[0].get("last")
        how = f": its loss went from {first:.2f} to {last:.2f}" if first is not None and last is not None else ""
        said.append(f"**{cell.name} diverged**{how}; it is not ranked.")
    return said


def _fastest(cells: Sequence[RunGroup]) -> list[str]:
    """For each set of conditions: the fastest on the most devices, whether beyond the spread, and the leanest."""
    said = []
    for conditions, own in by_conditions(cells):
        most = max(cell.devices for cell in own)
        able = [cell for cell in own if cell.devices == most and not cell.diverged]
        rates = [(rate, cell) for cell in able if (rate := cell.spread(q.THROUGHPUT))]
        if len(rates) < 2:
            continue
        where = f"On {most} devices" + (f" ({conditions})" if conditions else "")
        (best, cell), (second, other) = sorted(rates, key=lambda rate: -rate[0].median)[:2]
        clear = "beyond the spreads of both" if apart(best, second) else "within the spread: no clear winner"
        said.append(
            f"{where} **{cell.label}** has the highest throughput, {q.THROUGHPUT.text(best.median)} tokens/s "
            f"(n = {best.n}); {other.label} follows with {q.THROUGHPUT.text(second.median)} (n = {second.n}), {clear}."
        )
        states = [(state.median, cell) for _, cell in rates if (state := cell.spread(q.STATE))]
        if states:
            least, cell = min(states, key=lambda state: state[0])
            said.append(f"{where} **{cell.label}** has the least state per device, {q.STATE.text(least)}.")
    return said


def throughput(cells: Sequence[RunGroup], curves: Sequence[Curve]) -> Section:
    charts = metric_charts(cells, (q.THROUGHPUT, q.PER_DEVICE))
    return Section(
        "Throughput",
        "",
        cell_table(cells, (q.THROUGHPUT, q.PER_DEVICE, q.STEP_TIME, q.MFU), curves),
        charts,
    )


def memory(cells: Sequence[RunGroup]) -> Section:
    prose = (
        "State is parameters, gradients and optimizer state as they lie on the fullest device. The compiled step adds "
        "what the program needs while it runs; the device's peak is the whole process's, and known only where the "
        "backend tells it and one strategy ran alone."
    )
    return Section("Memory per device", prose, cell_table(cells, q.MEMORY), metric_charts(cells, q.MEMORY))


def communication(cells: Sequence[RunGroup]) -> Section:
    prose = (
        "Bytes are those that one device sends in a step, read from the compiled program with its loops multiplied "
        "out (of a parameter server: what a worker pulls and pushes); least to send is the strategy's own formula. "
        "The share of a step's time is not measured by a bench: where it is given, it is the cost model's prediction "
        "of what is not hidden behind computing."
    )
    table = cell_table(cells, (q.SENT, q.MINIMUMS, q.COMMUNICATION))
    return Section("Communication", prose, table, metric_charts(cells, (q.SENT,)))


def staleness(cells: Sequence[RunGroup]) -> Section | None:
    own = [cell for cell in cells if cell.spread(q.STALENESS)]
    if not own:
        return None
    prose = "How many updates were applied between a worker's pull and its push. Plain `async` has n - 1 in the mean."
    table = cell_table(own, (q.STALENESS, q.STALENESS_P99, q.SERVER_BUSY))
    return Section("Staleness of the parameter server", prose, table, metric_charts(own, (q.STALENESS,)))


def not_measured(runs: Sequence[Measurement]) -> Section | None:
    lost = [run for run in runs if run.result is None]
    if not lost:
        return None
    axes = [", ".join(f"{key}={value}" for key, value in run.axes.items()) for run in lost]
    rows = [
        [run.strategy, run.devices, told, TableCell(run.status, run.status, tone="bad"), run.reason, run.name]
        for run, told in zip(lost, axes, strict=True)
    ]
    columns = ["strategy", "devices", "conditions", "status", "reason", "run"]
    return Section("Not measured", "", Table(columns, rows, caption="Runs without a result"))


def notes(cells: Sequence[RunGroup]) -> Section | None:
    """What the runs themselves said, each remark once."""
    said: dict[str, list[str]] = {}
    for cell in cells:
        for run in cell.runs:
            for note in (run.result or {}).get("notes") or ():
                names = said.setdefault(str(note), [])
                if cell.name not in names:
                    names.append(cell.name)
    if not said:
        return None
    lines = [f"- {note} ({few(names)})" for note, names in said.items()]
    return Section("Remarks of the runs", "\n".join(lines))
