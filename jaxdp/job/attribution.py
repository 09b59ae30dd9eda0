"""Which process the others wait for (no JAX): from each one's arrivals at the reduction, step by step."""

from collections.abc import Sequence
from typing import Any

from jaxdp.records import quantile


def attribute_lateness(arrivals_s: Sequence[Sequence[float]], hosts: Sequence[str], step_s: float) -> dict[str, Any]:
    """A row a rank, and what a step of `step_s` would gain without the slowest one; `arrivals_s[step][rank]`.

    A rank's `slowdown` is against the median rank, `last_share` the share of steps in which all waited for it,
    `waited_s` its mean wait for the last one. The gains are factors of throughput: with the slowest rank as
    fast as the slowest of the others, and without it and its part of the batch.
    """
    ranks = range(len(hosts))
    medians = [quantile([step[rank] for step in arrivals_s], 0.5) for rank in ranks]
    typical = quantile(medians, 0.5)
    last = [max(step) for step in arrivals_s]
    rows = [
        {
            "rank": rank,
            "host": hosts[rank].partition(" ")[0],
            "arrival_s": {
                "median": medians[rank],
                "p10": quantile([step[rank] for step in arrivals_s], 0.1),
                "p90": quantile([step[rank] for step in arrivals_s], 0.9),
            },
            "slowdown": medians[rank] / typical,
            "last_share": sum(step[rank] == end for step, end in zip(arrivals_s, last, strict=True)) / len(last),
            "waited_s": sum(end - step[rank] for step, end in zip(arrivals_s, last, strict=True)) / len(last),
        }
        for rank in ranks
    ]
    slowest = max(ranks, key=lambda rank: medians[rank])
    others = [max(s for rank, s in enumerate(step) if rank != slowest) for step in arrivals_s]
    saved_s = sum(end - other for end, other in zip(last, others, strict=True)) / len(last)
    repaired = step_s / (step_s - min(saved_s, 0.99 * step_s))
    return {
        "rows": rows,
        "steps": len(arrivals_s),
        "slowest": slowest,
        "gain_if_repaired": repaired,
        "gain_if_dropped": repaired * (len(hosts) - 1) / len(hosts),
    }
