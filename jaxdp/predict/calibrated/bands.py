"""How far predictions were off on published runs that the calibration had not seen: `bands.toml`, which it writes."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jaxdp.predict.calibrated.rates import OWN_STACK

FILE = Path(__file__).with_name("bands.toml")
ANY = "any"


@dataclass(frozen=True)
class Band:
    """Nine of ten runs had tokens/s from `low` to `high` percent off the prediction, on `rows` published runs.

    `range` says which runs these are, and what of the asked one lies outside of them.
    """

    low: float
    high: float
    rows: int
    range: str

    @property
    def margin(self) -> float:
        """The ratio of two predictions from which their difference is more than the band."""
        return 1 + max(-self.low, self.high) / 100

    @property
    def text(self) -> str:
        even = round(-self.low) == round(self.high)
        span = f"+-{self.high:.0f} %" if even else f"{self.low:+.0f} to {self.high:+.0f} %"
        return f"{span} on {self.rows} published runs {self.range}"


def band(stack: str, device: str, strategy: str, facts: Mapping[str, float]) -> Band:
    """The narrowest group that the run belongs to; `facts` are its `parameters`, `context` and `devices`."""
    tables = _tables()
    places = ((stack, device, strategy), (stack, device, ANY), (ANY, ANY, ANY))
    found, table = next((place, tables[place]) for place in places if place in tables)
    outside = [name for name, value in facts.items() if not table[name][0] <= value <= table[name][1]]
    if found[0] == ANY:
        why = f"none of {stack} on {device}" if stack != OWN_STACK else "none of jaxdp's: untested"
        return Band(*_limits(table), f"of other stacks and devices, {why}")
    what = " ".join(part for part in found if part != ANY)
    beyond = f"; {', '.join(outside)} outside their range: extrapolated" if outside else ""
    return Band(*_limits(table), f"({what}){beyond}")


def _limits(table: Mapping[str, Any]) -> tuple[float, float, int]:
    """The file has errors of the prediction over the measurement; an answer needs it the other way round."""
    low, high = table["low_percent"] / 100, table["high_percent"] / 100
    return 100 * (1 / (1 + high) - 1), 100 * (1 / (1 + low) - 1), table["rows"]


@cache
def _tables() -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["bands"]
    return {(row["stack"], row["device"], row["strategy"]): row for row in rows}
