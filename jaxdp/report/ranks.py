"""Which process the others waited for, as a table."""

from collections.abc import Sequence

from jaxdp.records import BenchResult
from jaxdp.report.screen import print_table, screen
from jaxdp.strategies.rows import STRATEGIES
from jaxdp.units import seconds_text


def print_ranks(results: Sequence[BenchResult]) -> None:
    """A table a strategy: when each rank's gradients were ready, counted from its start of the step."""
    console = screen()
    for result in results:
        found = result.extra["ranks"]
        rows = [
            (
                str(row["rank"]),
                row["host"],
                seconds_text(row["arrival_s"]["median"]),
                f"{seconds_text(row['arrival_s']['p10'])} to {seconds_text(row['arrival_s']['p90'])}",
                f"{row['slowdown']:.2f}x",
                f"{100 * row['last_share']:.0f} % of steps",
                seconds_text(row["waited_s"]),
            )
            for row in found["rows"]
        ]
        print_table(
            console,
            f"{result.strategy}: arrival at the reduction, {found['steps']} steps",
            ("rank", "host", "median", "p10 to p90", "slowdown", "last in", "waited"),
            rows,
            left=("host",),
            shed=("p10 to p90",),
        )
        console.print(
            f"{result.strategy}: with rank {found['slowest']} as fast as the slowest of the others throughput would be "
            f"{found['gain_if_repaired']:.2f}x, without it and its part of the batch {found['gain_if_dropped']:.2f}x",
            markup=False,
        )
        # Blocks' gathers come before the gradients are ready, and make all ranks wait for each other there.
        if STRATEGIES[result.strategy].shards_parameters:
            console.print(
                f"note: {result.strategy} gathers parameters while it computes, where ranks wait for each other "
                "already: a rank that computes slowly shows with ddp or zero1",
                markup=False,
            )
