"""Results, replays and published comparisons as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.report.screen import print_table, screen
from jaxdp.units import percent_text, seconds_text

SHED = ("wasted", "tokens/s", "idle", "time")  # on a narrow screen
COLUMNS = ("strategy", "gradients/s", "tokens/s", "slowdown", "vs DDP", "staleness", "idle", "wasted", "time")


def print_results(rows: Sequence[dict[str, Any]]) -> None:
    """One line a strategy: means, ± half the 95 % confidence interval over the seeds."""
    lines = [
        (
            row["label"],
            _number(row["worker_steps_per_second"]) + _interval(row, "worker_steps_per_second"),
            _number(row["tokens_per_second"]),
            _number(row["slowdown"]),
            f"{row['gain_over_ddp']:.3f}",
            f"{row['staleness']['mean']:.2f}",
            _mean_percent(row["idle_share"]),
            percent_text(100 * row["wasted_share"]),
            seconds_text(row["virtual_time_s"]),
        )
        for row in rows
    ]
    title = f"{rows[0]['workers']} workers, {rows[0]['steps']} steps (simulated)"
    print_table(screen(), title, COLUMNS, lines, shed=SHED)
    if "loss" in rows[0]:
        _print_losses(rows)


def print_replay(report: dict[str, Any]) -> None:
    """What each strategy would have gained, and the workers that cost most."""
    console = screen()
    console.print(report["file"], markup=False)
    lines = [
        (
            row["label"],
            _number(row["useful_throughput"]),
            f"{row['gain_over_ddp']:.3f}",
            f"{row['staleness']['mean']:.2f}",
            _mean_percent(row["idle_share"]),
        )
        for row in report["results"]
    ]
    title = f"{report['workers']} workers, {report['steps']} steps, slowdown {report['slowdown']:.3f}"
    print_table(console, title, ("strategy", "useful throughput", "vs DDP", "staleness", "idle"), lines)
    costs = sorted(report["costs"], key=lambda cost: -cost["slowdown_alone"])[:8]
    lines = [
        (
            str(cost["worker"]),
            f"{cost['slowdown_alone']:.3f}",
            seconds_text(cost["mean_s"]),
            f"{cost['relative']:.3f}",
        )
        for cost in costs
    ]
    names = ("worker", "slowdown", "mean step", "relative")
    print_table(console, "slowdown if all but this worker were ideal", names, lines)


def print_published(report: dict[str, Any]) -> None:
    """Expected against simulated."""
    lines = []
    for check in report["checks"]:
        agrees = {True: "agrees", False: "DIFFERS", None: ""}[check["agrees"]]
        lines.append((check["quantity"], check["expected"], check["text"], agrees))
    names = ("quantity", "expected", "simulated", "")
    console = screen()
    print_table(console, report["title"], names, lines, fold=("quantity",))
    console.print(f"source: {report['source']}", markup=False)
    for note in report["notes"]:
        console.print(f"note: {note}", markup=False)


def print_catalogue(catalogue: Mapping[str, Mapping[str, str]]) -> None:
    for title, entries in catalogue.items():
        print(title)
        for name, line in entries.items():
            print(f"  {name:24} {line}")


def _print_losses(rows: Sequence[dict[str, Any]]) -> None:
    """What real gradients add; the learning rate is the one of the grid that ended lowest."""
    lines = []
    for row in rows:
        rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(row["learning_rates"]))
        first, last = _number(row["loss"]["first"]), _number(row["loss"]["last"])
        lines.append((row["label"], first, last, rates, seconds_text(row["time_to_loss_s"])))
    names = ("strategy", "first loss", "last loss", "learning rate", "time to loss")
    print_table(screen(), "real gradients", names, lines, fold=("learning rate",))


def _mean_percent(shares: Sequence[float]) -> str:
    return percent_text(100 * sum(shares) / len(shares))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def _interval(row: dict[str, Any], key: str) -> str:
    half = (row["ci95"] or {}).get(key)
    return "" if half is None else f" ± {half:.2g}"
