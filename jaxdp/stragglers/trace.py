"""A measured trace: the seconds of every worker's steps as CSV."""

from functools import cache
from pathlib import Path

import numpy as np

from jaxdp.errors import BadInput


@cache
def read_trace(path: str) -> np.ndarray:
    """Seconds of computing, [steps, workers], of a CSV with header `step,0,1,...`; raises `BadInput` with the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadInput(f"{path}: cannot be read ({reason})") from None
    while lines and not lines[-1].strip():
        lines.pop()
    header = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if len(header) < 2 or header != ["step", *map(str, range(len(header) - 1))]:
        raise BadInput(f"{path}: line 1: expected the header step,0,1,... with a column per worker")
    if len(lines) < 2:
        raise BadInput(f"{path}: has a header and no steps")
    return np.array([_trace_row(path, number, line, header) for number, line in enumerate(lines[1:], 2)])


def _trace_row(path: str, number: int, line: str, header: list[str]) -> list[float]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(header):
        raise BadInput(f"{path}: line {number}: {len(cells)} columns where the header has {len(header)}")
    row = []
    for worker, cell in enumerate(cells[1:]):
        try:
            seconds = float(cell)
        except ValueError:
            fault = f"{cell!r} is not a number" if cell else "a hole"
            raise BadInput(f"{path}: line {number}: {fault} for worker {worker}; give seconds") from None
        if not 0 <= seconds <= 1e9:
            raise BadInput(f"{path}: line {number}: {cell} seconds for worker {worker}; expected 0 to 1e9")
        row.append(seconds)
    return row
