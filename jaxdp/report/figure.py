"""Figures as files: SVG, with the numbers behind them as CSV beside it. No display is ever used."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdp.errors import BadInput
from jaxdp.strict_json import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: "Figure", numbers: str, path: Path) -> list[Path]:
    """Writes FILE.svg and FILE.csv; raises `BadInput` for another suffix, `JaxdpError` where writing fails."""
    if path.suffix != ".svg":
        raise BadInput(f"--figure {path}: figures are SVG; name it {path.with_suffix('.svg')}")
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    drawn, table = BytesIO(), path.with_suffix(".csv")
    FigureCanvasSVG(figure).print_svg(drawn)
    write_atomically(path, drawn.getvalue())
    write_atomically(table, numbers.encode())
    return [path, table]
