"""Checks of plain values from files and flags; each raises `BadInput` with the key, what is expected and what came.

Plain Python rather than pydantic, which alone would take longer to load than a simulation to answer.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jaxdp.errors import BadInput


def whole(key: str, value: Any, least: int, most: int = 10**15) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{key}: expected a whole number from {least} to {most:g}, not {value!r}")
    return value


def real(key: str, value: Any, least: float = 0.0, most: float = 1e9, *, above: bool = False) -> float:
    """A number from `least` (or above it) to `most`; never NaN."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if plain and (abs(value) < 1e300 or value == math.inf) else math.nan
    if not least <= number <= most or (above and number == least):
        low = f"more than {least:g}" if above else f"{least:g}"
        high = "" if math.isinf(most) else f" to {most:g}"
        raise BadInput(f"{key}: expected a number of {low}{high}, not {value!r}")
    return number


def one_of(key: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise BadInput(f"{key}: unknown {value!r}{nearest(str(value), known)}")
    return value


def text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{key}: expected text, not {value!r}")
    return value


def texts(key: str, values: Any) -> Sequence[str]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise BadInput(f"{key}: expected a list of texts, not {values!r}")
    return values


def refuse_unknown(values: Iterable[str], known: Sequence[str], prefix: str = "") -> None:
    for key in values:
        if key not in known:
            raise BadInput(f"{prefix}{key}: unknown key{nearest(key, known)}")


def refuse_name(name: str, known: Sequence[str]) -> NoReturn:
    raise BadInput(f"{name}: neither a file nor a simulation that is shipped{nearest(name, known)}")


def nearest(wrong: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(wrong, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
