"""Tables that fit the screen: a number is never cut, whatever the width."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 160  # of output that no screen shows


def screen() -> Console:
    """Stdout: lines end at words where a width is known, and stay whole where the output is piped."""
    width = None
    with suppress(ValueError):
        width = int(os.environ.get("COLUMNS", "")) or None
    known = width is not None or sys.stdout.isatty()
    return Console(highlight=False, soft_wrap=not known, width=width if known else PIPED_WIDTH)


def print_table(
    console: Console,
    title: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: Sequence[str] = (),
    fold: Sequence[str] = (),
    shed: Sequence[str] = (),
    down: bool = False,
) -> None:
    """A line a row, named by its first cell; where that is too wide, without the columns of `shed`, one after the
    other, and in the end a line a column, in as many parts as it takes. `down`: a line a column in any case.

    Columns named in `left` are aligned there, the others but the first to the right; the text in `fold` may be broken.
    """
    if title:
        console.print(title, markup=False)
    kept = list(range(len(names)))
    if not down:
        for name in (None, *shed):
            kept = [index for index in kept if names[index] != name]
            shown, cells = [names[i] for i in kept], [[row[i] for i in kept] for row in rows]
            least = [
                [_longest_word(cell) if name in fold else cell for name, cell in zip(shown, row, strict=True)]
                for row in cells
            ]
            if _width(console, _across(shown, least, left, fold)) <= console.width:
                console.print(_across(shown, cells, left, fold))
                if len(kept) < len(names):
                    console.print(f"left out at this width: {', '.join(n for n in shed if n in _gone(names, kept))}")
                return
    first = 0
    while first < len(rows):
        count = len(rows) - first
        while count > 1 and _width(console, _down(names, rows[first : first + count])) > console.width:
            count -= 1
        console.print(_down(names, rows[first : first + count]))
        first += count


def _gone(names: Sequence[str], kept: Sequence[int]) -> set[str]:
    return set(names) - {names[index] for index in kept}


def _across(names: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str], fold: Sequence[str]) -> Table:
    table = _empty()
    for index, name in enumerate(names):
        justify = "left" if index == 0 or name in left else "right"
        table.add_column(Text(name), justify=justify, no_wrap=name not in fold, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _down(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = _empty()
    table.add_column(Text(names[0]), no_wrap=True)
    for row in rows:
        table.add_column(Text(row[0]), justify="right", overflow="fold", no_wrap=len(rows) > 1)
    for index, name in enumerate(names[1:], 1):
        table.add_row(Text(name), *(Text(row[index]) for row in rows))
    return table


def _empty() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _longest_word(text: str) -> str:
    return max(text.split(), key=len, default="")
