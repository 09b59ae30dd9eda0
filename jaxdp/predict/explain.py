"""Where the steps of two strategies differ, in seconds that add up, and the change that would help most."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from jaxdp.config import Config
from jaxdp.predict.advise import Advice
from jaxdp.predict.evaluate import Row, evaluate
from jaxdp.predict.hardware import Hardware
from jaxdp.strategies.rows import STRATEGIES

WORTHWHILE = 1.01  # less is no remedy


@dataclass(frozen=True)
class Remedy:
    """A change of the config (`key=value`, as `--set` takes it) and `gain`, tokens/s with it over those without."""

    change: str
    why: str
    gain: float


@dataclass(frozen=True)
class Explanation:
    """`seconds` has what each of the two `strategies` spends a step on; the remedy is the first one's, if any helps."""

    strategies: tuple[str, str]
    seconds: dict[str, tuple[float, float]]
    remedy: Remedy | None

    @property
    def total_s(self) -> tuple[float, float]:
        first, second = zip(*self.seconds.values(), strict=True)
        return sum(first), sum(second)

    def to_json(self) -> dict[str, Any]:
        return {
            "strategies": list(self.strategies),
            "seconds": {part: list(pair) for part, pair in self.seconds.items()},
            "remedy": self.remedy and asdict(self.remedy),
        }


def explain(advice: Advice) -> Explanation | None:
    """The recommended strategy beside DDP, or DDP beside FSDP; None where there is only one to look at."""
    rows = {row.strategy: row for row in advice.rows if row.runs}
    first = rows.get(advice.recommendation or "") or next(iter(rows.values()))
    others = [name for name in ("ddp", "fsdp", *rows) if name in rows and name != first.strategy]
    if not others:
        return None
    second = rows[others[0]]
    parts = dict.fromkeys([*first.cost.parts, *second.cost.parts])
    seconds = {part: (first.cost.parts.get(part, 0.0), second.cost.parts.get(part, 0.0)) for part in parts}
    return Explanation(
        (first.strategy, second.strategy),
        {part: pair for part, pair in seconds.items() if any(pair)},
        _best_remedy(first, advice.config, advice.hardware),
    )


def _best_remedy(row: Row, config: Config, hardware: Hardware) -> Remedy | None:
    best = None
    for key, value, why in _changes(row, config):
        section, _, name = key.partition(".")
        inner = getattr(config, section).model_copy(update={name: value})
        changed = evaluate(config.model_copy(update={section: inner}), hardware, row.strategy)
        gain = changed.tokens_per_second / row.tokens_per_second
        if changed.fits and gain > max(WORTHWHILE, best.gain if best else 0):
            best = Remedy(f"{key}={value}", why, gain)
    return best


def _changes(row: Row, config: Config) -> Iterator[tuple[str, Any, str]]:
    train = config.train
    if train.accumulation > 1:
        yield "train.accumulation", train.accumulation // 2, "larger microbatches"
    if train.remat != "none":
        yield "train.remat", "none", "no recomputation"
        if train.remat == "block":
            yield "train.remat", "dots", "less recomputation"
    able = "reduce" in STRATEGIES[row.strategy].options and row.accumulation == 1
    if able and config.strategy.reduce == "end":
        yield "strategy.reduce", "block", "sums of a block's gradients beside the backward pass"
    yield "train.global_batch", 2 * row.global_batch, "more sequences per device"
    if row.strategy == "ps" and not config.server.pipeline:
        yield "server.pipeline", True, "pulls while it computes"
