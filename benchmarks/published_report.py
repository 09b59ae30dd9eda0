"""What predictions of published runs are worth: errors by group, strategies' order, verdicts on memory, bands."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from published_rows import Published

from jaxdp.predict.calibrated.runs import Run

MIN_BAND_ROWS = 5
COVERED = 0.9  # of the rows lie inside a band


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """`error`: predicted over measured tokens per second, less one; None where only the outcome is known."""

    row: Published
    run: Run
    error: float | None
    fits: bool
    calibrated_on: int


def report(made: Sequence[Prediction], unreadable: Counter[str]) -> dict[str, Any]:
    timed = [one for one in made if one.error is not None]
    right = [one.fits == one.row.ran for one in made]
    return {
        "overall": errors(timed),
        "groups": _groups(timed, {"source": _source, "hardware": _hardware, "strategy": lambda one: one.run.strategy}),
        "stacks": _groups(timed, {"stack": lambda one: one.run.stack, "hardware": _hardware}),
        "devices": _groups(timed, {"devices": lambda one: one.run.devices}),
        "contexts": _groups(timed, {"context": lambda one: one.run.context}),
        "fits": {"rows": len(right), "right_percent": 100 * statistics.mean(right)},
        "misjudged": [_named(one) for one in made if one.fits != one.row.ran],
        "order": order(timed),
        "unreadable": dict(unreadable),
    }


def _source(one: Prediction) -> str:
    return one.row.source


def _hardware(one: Prediction) -> str:
    return one.run.device


def _named(one: Prediction) -> str:
    run, outcome = one.run, "ran" if one.row.ran else "did not run"
    return f"row {one.row.line}: {one.row.model}, {run.strategy} on {run.devices} {run.device}: {outcome}"


def errors(made: Sequence[Prediction]) -> dict[str, Any]:
    known = [100 * one.error for one in made if one.error is not None]
    if not known:
        return {"rows": 0, "mape_percent": None, "median_percent": None, "bias_percent": None, "worst_percent": None}
    return {
        "rows": len(known),
        "mape_percent": statistics.mean(map(abs, known)),
        "median_percent": statistics.median(map(abs, known)),
        "bias_percent": statistics.mean(known),
        "worst_percent": max(known, key=abs),
    }


def _groups(made: Sequence[Prediction], by: Mapping[str, Callable[[Prediction], Any]]) -> list[dict[str, Any]]:
    members: dict[tuple[Any, ...], list[Prediction]] = defaultdict(list)
    for one in made:
        members[tuple(of(one) for of in by.values())].append(one)
    return [
        {**dict(zip(by, key, strict=True)), "calibrated_on": min(one.calibrated_on for one in group), **errors(group)}
        for key, group in sorted(members.items())
    ]


def order(made: Sequence[Prediction]) -> dict[str, Any]:
    """Pairs of strategies measured at the same model, device, count and batch, and whether the faster is predicted so.

    `rank_correlation` is Kendall's: pairs in the measured order less those in the other, over all.
    """
    places: dict[Hashable, list[Prediction]] = defaultdict(list)
    for one in made:
        run = one.run
        place = (run.shape, run.context, run.microbatch, run.accumulation, run.devices, run.device, run.precision)
        places[run.stack, place].append(one)
    agree = [
        (a.row.seconds < b.row.seconds) == (predicted(a) < predicted(b))
        for group in places.values()
        for a, b in combinations(group, 2)
        if a.run.strategy != b.run.strategy
    ]
    correlation = (2 * sum(agree) - len(agree)) / len(agree) if agree else None
    return {"pairs": len(agree), "right": sum(agree), "rank_correlation": correlation}


def predicted(one: Prediction) -> float:
    """Seconds of the step."""
    assert one.error is not None
    return one.row.seconds / (1 + one.error)


def text(document: Mapping[str, Any]) -> str:
    """The report as a table, groups of few rows too."""
    lines = [f"{'':62} {'rows':>5} {'mean':>6} {'median':>6} {'bias':>6} {'worst':>6}"]
    for title in ("groups", "stacks", "devices", "contexts"):
        lines.append(f"by {title}")
        for group in document[title]:
            names = [str(value) for key, value in group.items() if key not in _NUMBERS]
            lines.append(_line("  " + " | ".join(name[:36] for name in names), group))
    lines.append(_line("all", document["overall"]))
    fits, ranks = document["fits"], document["order"]
    lines.append(f"fits: {fits['right_percent']:.1f} % of {fits['rows']} right")
    lines += [f"  wrong: {one}" for one in document["misjudged"]]
    lines.append(f"order of strategies: {ranks['right']} of {ranks['pairs']} pairs right")
    lines += [f"not read: {count} rows: {reason}" for reason, count in document["unreadable"].items()]
    return "\n".join(lines)


_NUMBERS = ("calibrated_on", "rows", "mape_percent", "median_percent", "bias_percent", "worst_percent")


def _line(name: str, group: Mapping[str, Any]) -> str:
    values = [group[key] for key in _NUMBERS[2:]]
    shown = " ".join("     -" if value is None else f"{value:6.1f}" for value in values)
    return f"{name:62} {group['rows']:5} {shown}"


def bands_toml(validated: Mapping[str, Sequence[Prediction]]) -> str:
    """The bands of every stack, device and strategy with enough rows, then of stack and device; last of any other run.

    The first two from models and device counts left out, the last from whole sources left out.
    """
    parts = ["# Error bands, from rows left out of the calibration (benchmarks/published_runs.py --fit)\n"]
    groups: dict[tuple[str, str, str], list[Prediction]] = defaultdict(list)
    for by in ("model", "devices"):
        for one in (one for one in validated[by] if one.calibrated_on):
            for strategy in (one.run.strategy, "any"):
                groups[one.run.stack, one.run.device, strategy].append(one)
    parts += [_band(*key, made) for key, made in sorted(groups.items()) if _rows(made) >= MIN_BAND_ROWS]
    parts.append(_band("any", "any", "any", validated["source"]))
    return "\n".join(parts)


def _rows(made: Sequence[Prediction]) -> int:
    return len({one.row.line for one in made if one.error is not None})


def _band(stack: str, device: str, strategy: str, made: Sequence[Prediction]) -> str:
    timed = [one for one in made if one.error is not None]
    known = sorted(100 * one.error for one in timed if one.error is not None)
    cut = (1 - COVERED) / 2
    low, high = (known[round(share * (len(known) - 1))] for share in (cut, 1 - cut))
    runs = [one.run for one in timed]
    ranges = {
        "parameters": [run.shape.parameters for run in runs],
        "context": [run.context for run in runs],
        "devices": [run.devices for run in runs],
    }
    lines = [
        "[[bands]]",
        f'stack = "{stack}"',
        f'device = "{device}"',
        f'strategy = "{strategy}"',
        f"rows = {_rows(timed)}",
        f"low_percent = {min(low, 0.0):.1f}",
        f"high_percent = {max(high, 0.0):.1f}",
        *(f"{name} = [{min(values)}, {max(values)}]" for name, values in ranges.items()),
    ]
    return "\n".join(lines) + "\n"
