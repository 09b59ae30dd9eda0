"""Progress on stderr: a bar on a terminal, a plain line now and then elsewhere; nothing when quiet."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class StepProgress:
    """A bar of steps for each strategy. Off a terminal a line replaces it when a tenth more is done."""

    def __init__(self, names: list[str], total: int, *, shown: bool = True):
        self.total = total
        self.shown = shown
        self._done = dict.fromkeys(names, 0)
        self._said = dict.fromkeys(names, 0)
        console = Console(stderr=True)
        self._bar = None
        if shown and console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )
            self._tasks = {name: self._bar.add_task(name, total=total, note="compiling") for name in names}

    def advance(self, name: str, steps: int, note: str) -> None:
        """Counts `steps` more and shows `note`; a note without steps is a line of its own."""
        self._done[name] += steps
        if steps == 0 and note:
            self.say(f"{name}: {note}")
        if self._bar is not None:
            self._bar.update(self._tasks[name], completed=self._done[name], note=note)
        elif steps and (self._done[name] - self._said[name]) * 10 >= self.total:
            self._said[name] = self._done[name]
            self.say(f"{name}: {self._done[name]}/{self.total} steps, {note}")

    def say(self, line: str) -> None:
        if not self.shown:
            return
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class CellProgress:
    """A bar of a sweep's cells with what remains, and a line for each that is done; off a terminal only the lines."""

    def __init__(self, total: int, *, shown: bool = True):
        self.shown = shown
        console = Console(stderr=True)
        columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal))
        self._task = self._bar.add_task("", total=total)

    def update(self, done: int, note: str) -> None:
        self._bar.update(self._task, completed=done, description=note)

    def say(self, line: str) -> None:
        if self.shown:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
