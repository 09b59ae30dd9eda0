"""Rows by name, to which modules outside the package add their own: strategies, server policies, delay models."""

import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Generic, Protocol, TypeVar

from jaxdp.errors import BadInput
from jaxdp.suggest import suggest

PLUGINS_VARIABLE = "JAXDP_PLUGINS"  # modules, joined by commas, for what reads no config


class Named(Protocol):
    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)


class Registry(Generic[Row]):
    """The rows of one kind, in the order of their registration; an unknown name is `BadInput`, never a default."""

    def __init__(self, kind: str, rows: Iterable[Row] = ()) -> None:
        self.kind = kind
        self._rows: dict[str, Row] = {}
        for row in rows:
            self.register(row)

    def register(self, row: Row) -> Row:
        if row.name in self._rows:
            raise BadInput(f"{self.kind} {row.name}: is registered already; give the second one another name")
        self._rows[row.name] = row
        return row

    def unregister(self, name: str) -> None:
        """Takes a row out again, as a notebook does before it registers the next version."""
        del self._rows[self[name].name]

    def __getitem__(self, name: str) -> Row:
        if name not in self._rows:
            raise BadInput(f"{name}: no such {self.kind}{suggest(name, self._rows)}")
        return self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def values(self) -> list[Row]:
        return list(self._rows.values())


def load_plugins(modules: Iterable[str] = ()) -> None:
    """Imports the modules of a config's `plugins` and of `JAXDP_PLUGINS`, which register their rows as they load."""
    for name in modules:
        import_outside(name, "plugins")
    for name in os.environ.get(PLUGINS_VARIABLE, "").split(","):
        if name.strip():
            import_outside(name.strip(), PLUGINS_VARIABLE)


def import_outside(module: str, origin: str) -> ModuleType:
    """A module of the user's, looked for in the current folder too; `origin` (key or flag) begins the error's line."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        return import_module(module)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        lacking = "" if error.name == module else f" (it needs {error.name})"
        raise BadInput(f"{origin}: no module {module}{lacking}; name one that Python can import from here") from None
    except Exception as error:
        raise BadInput(f"{origin}: module {module} fails to load: {type(error).__name__}: {error}") from error
