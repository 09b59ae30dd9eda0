"""The nearest known name to one that isn't."""

import difflib
from collections.abc import Iterable


def suggest(wrong: str, known: Iterable[str]) -> str:
    """The end of an error's line: the nearest of the known names, whole or by their last part, else all of them."""
    known = list(known)
    last = wrong.rpartition(".")[2]
    near = difflib.get_close_matches(wrong, known, 1) or difflib.get_close_matches(last, known, 1)
    near = near or [name for name in known if name.rpartition(".")[2] == last]
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
