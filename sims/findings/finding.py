"""What the test of a finding comes to: a claim, the condition it was tested under, values, and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from jaxdp.records import How

Verdict = Literal["holds", "holds under a condition", "does not hold", "not testable here"]
HOLDS, CONDITIONAL, FAILS, UNTESTABLE = "holds", "holds under a condition", "does not hold", "not testable here"


class Value(NamedTuple):
    """One quantity: what the claim or a formula leads one to expect (None: nothing), and what came out."""

    name: str
    expected: float | str | None
    found: float | str | None
    how: How


@dataclass(frozen=True)
class Finding:
    """`condition` says what was tested and, where the verdict depends on it, what it hangs on; `reason` is the why.

    `figure` is a path within the run's folder.
    """

    name: str
    claim: str
    condition: str
    verdict: Verdict
    reason: str
    values: tuple[Value, ...] = ()
    figure: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "finding": self.name,
            "claim": self.claim,
            "condition": self.condition,
            "verdict": self.verdict,
            "reason": self.reason,
            "expected": {value.name: value.expected for value in self.values},
            "found": {value.name: value.found for value in self.values},
            "how": {value.name: value.how for value in self.values},
            "figure": self.figure,
        }

    def drawn(self, figure: str) -> "Finding":
        return replace(self, figure=figure)


class Drawing(NamedTuple):
    """A matplotlib figure and the rows of numbers behind it (dataclasses of one kind)."""

    figure: Any
    rows: Sequence[Any]


@dataclass(frozen=True)
class Trial:
    """How one finding is tested. `judge` is pure: the verdict follows from the evidence that `measure` brought."""

    name: str
    claim: str
    condition: str
    measure: Callable[[Any], Any]  # a Lab -> evidence, a frozen dataclass of numbers
    judge: Callable[[Any], Finding]
    draw: Callable[[Any], Drawing]

    def untestable(self, reason: str) -> Finding:
        return Finding(self.name, self.claim, self.condition, UNTESTABLE, reason)


def listed(values: Sequence[object]) -> str:
    """ "4", "4 and 5", "3, 4 and 5"; "none" for nothing."""
    texts = [str(value) for value in values]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts) or "none"
