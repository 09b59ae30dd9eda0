"""A sweep as text: its cells before the run, its rows after it."""

from collections.abc import Sequence
from typing import Any

from jaxdp.records import SweepRow
from jaxdp.report.screen import print_table, screen
from jaxdp.units import seconds_text

SCALING = {
    "weak": "weak scaling: the global batch grows with the devices",
    "strong": "strong scaling: the global batch stays",
}


def print_plan(name: str, scaling: str, repeats: int, entries: Sequence[dict[str, Any]]) -> None:
    """Each cell with what speaks against it, then why or with what command. Entries as in `--dry-run --json`."""
    console = screen()
    columns = list(entries[0]["cell"])
    rows = []
    for number, entry in enumerate(entries, 1):
        values = (_shown(entry["cell"][column]) for column in columns)
        found = ", ".join(dict.fromkeys(finding["name"] for finding in entry["findings"]))
        check = f"refused{f' ({found})' if found else ''}" if entry["refusal"] else found or "-"
        rows.append([str(number), *values, str(entry["global_batch"]), _predicted_text(entry["predicted"]), check])
    names = ("#", *columns, "batch", "predicted step", "check")
    title = f"{name}: {len(entries)} cells, repeats: {repeats}, {SCALING[scaling]}"
    print_table(console, title, names, rows, left=(*columns, "check"), fold=("check",), shed=("batch",))
    for number, entry in enumerate(entries, 1):
        refusal = entry["refusal"]
        console.print(f"{number}: {f'refused: {refusal}' if refusal else entry['command']}", markup=False)


def print_rows(name: str, rows: Sequence[SweepRow]) -> None:
    """One line a row, a cell's repeats together, then the reason of each that gave no result."""
    console = screen()
    columns = list(rows[0].cell)
    rate = f"{next((row.result['unit'] for row in rows if row.result and 'unit' in row.result), 'tokens')}/s"
    predicted = ["predicted"] if any(row.predicted for row in rows) else []
    places = {row.key.partition(".")[0]: place for place, row in reversed(list(enumerate(rows)))}
    lines = []
    for row in sorted(rows, key=lambda row: (places[row.key.partition(".")[0]], row.repeat)):
        found = row.result
        lines.append(
            [
                *(_shown(row.cell[column]) for column in columns),
                str(row.global_batch),
                str(row.repeat),
                row.status,
                f"{found['tokens_per_second']:,.0f}" if found else "-",
                seconds_text(found["step_time_s"]["median"]) if found else "-",
                *([_predicted_text(row.predicted)] if predicted else []),
            ]
        )
    names = (*columns, "batch", "repeat", "status", rate, "step time", *predicted)
    title = f"{name}: {SCALING[rows[0].scaling]}"
    print_table(console, title, names, lines, left=(*columns, "status"), shed=("predicted", "repeat", "batch"))
    for row in rows:
        if row.status != "ok":
            cell = " ".join(f"{key}={value}" for key, value in row.cell.items())
            console.print(f"{row.status}: {cell} (repeat {row.repeat}): {row.reason}", markup=False)


def _shown(value: Any) -> str:
    return "-" if value == "" else str(value)


def _predicted_text(predicted: dict[str, Any] | None) -> str:
    return seconds_text(predicted["step_time_s"]["total"]) if predicted else "-"
