"""Results, replays and published comparisons as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

MIN_WIDTH = 120  # narrower terminals wrap whole lines rather than cut columns
COLUMNS = ("strategy", "gradients/s", "tokens/s", "slowdown", "vs DDP", "staleness", "idle", "wasted", "time")


def print_results(rows: Sequence[dict[str, Any]]) -> None:
    """One line a strategy: means, ± half the 95 % confidence interval over the seeds."""
    table = _table(f"{rows[0]['workers']} workers, {rows[0]['steps']} steps (simulated)", COLUMNS)
    for row in rows:
        idle = row["idle_share"]
        table.add_row(
            row["label"],
            _number(row["worker_steps_per_second"]) + _interval(row, "worker_steps_per_second"),
            _number(row["tokens_per_second"]),
            _number(row["slowdown"]),
            f"{row['gain_over_ddp']:.3f}",
            f"{row['staleness']['mean']:.2f}",
            f"{100 * sum(idle) / len(idle):.1f} %",
            f"{100 * row['wasted_share']:.1f} %",
            f"{_number(row['virtual_time_s'])} s",
        )
    _print(table)
    if "loss" in rows[0]:
        _print_losses(rows)


def print_replay(report: dict[str, Any]) -> None:
    """What each strategy would have gained, and the workers that cost most."""
    print(f"{report['file']}")
    title = f"{report['workers']} workers, {report['steps']} steps, slowdown"
    table = _table(
        f"{title} {report['slowdown']:.3f}", ("strategy", "useful throughput", "vs DDP", "staleness", "idle")
    )
    for row in report["results"]:
        idle = row["idle_share"]
        table.add_row(
            row["label"],
            _number(row["useful_throughput"]),
            f"{row['gain_over_ddp']:.3f}",
            f"{row['staleness']['mean']:.2f}",
            f"{100 * sum(idle) / len(idle):.1f} %",
        )
    _print(table)
    costs = sorted(report["costs"], key=lambda cost: -cost["slowdown_alone"])[:8]
    table = _table("slowdown if all but this worker were ideal", ("worker", "slowdown", "mean step", "relative"))
    for cost in costs:
        mean = f"{cost['mean_s']:.4g} s"
        table.add_row(str(cost["worker"]), f"{cost['slowdown_alone']:.3f}", mean, f"{cost['relative']:.3f}")
    _print(table)


def print_published(report: dict[str, Any]) -> None:
    """Expected against simulated."""
    table = _table(report["title"], ("quantity", "expected", "simulated", ""))
    for check in report["checks"]:
        agrees = {True: "agrees", False: "DIFFERS", None: ""}[check["agrees"]]
        table.add_row(check["quantity"], check["expected"], check["text"], agrees)
    _print(table)
    print(f"source: {report['source']}")
    for note in report["notes"]:
        print(f"note: {note}")


def print_catalogue(catalogue: Mapping[str, Mapping[str, str]]) -> None:
    for title, entries in catalogue.items():
        print(title)
        for name, line in entries.items():
            print(f"  {name:24} {line}")


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True, overflow="ignore")
    return table


def _print(table: Table) -> None:
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    console.print(table)


def _print_losses(rows: Sequence[dict[str, Any]]) -> None:
    """What real gradients add; the learning rate is the one of the grid that ended lowest."""
    table = _table("real gradients", ("strategy", "first loss", "last loss", "learning rate", "time to loss"))
    for row in rows:
        rates = ", ".join(f"{rate:g}" for rate in dict.fromkeys(row["learning_rates"]))
        reached = row["time_to_loss_s"]
        time = "-" if reached is None else f"{_number(reached)} s"
        table.add_row(row["label"], _number(row["loss"]["first"]), _number(row["loss"]["last"]), rates, time)
    _print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 1e4 else f"{value:.4g}"


def _interval(row: dict[str, Any], key: str) -> str:
    half = (row["ci95"] or {}).get(key)
    return "" if half is None else f" ± {half:.2g}"
