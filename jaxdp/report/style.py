"""Colours, markers and dashes of a report's groups, the same in the page and in the figures.

The colours keep apart for the colour-blind (after Okabe and Ito) and hold 3:1 against their ground; marker and dash
tell groups apart without any colour.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Colour(NamedTuple):
    light: str  # on a light ground
    dark: str


COLOURS: Sequence[Colour] = (
    Colour("#0072b2", "#5bb8f0"),
    Colour("#d15400", "#ff9a56"),
    Colour("#00845f", "#2fd0a0"),
    Colour("#b3488a", "#ee96c8"),
    Colour("#7d6608", "#e3c94f"),
    Colour("#5a5f6a", "#b4bac6"),
)
# As the page's script names them; their number shares no factor with the colours' beyond 1, so pairs repeat late.
MARKERS = ("circle", "square", "triangle", "diamond", "cross", "down", "plus")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4")

MATPLOTLIB_MARKERS = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "cross": "X", "down": "v", "plus": "P",
}  # fmt: skip


def css() -> str:
    """The colours as custom properties `--group-0`..., each for a light and a dark ground."""
    lines = [f"--group-{index}: light-dark({light}, {dark});" for index, (light, dark) in enumerate(COLOURS)]
    return ":root { " + " ".join(lines) + " }\n"
