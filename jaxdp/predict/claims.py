"""The study's claims F1, F2, F3 and F6: when one case meets them, and what a prediction says of each.

`sims.findings` asks the same judgements of many cases, measured and predicted.
"""

from collections.abc import Sequence
from typing import Any, Literal

from jaxdp.config import Config
from jaxdp.predict.evaluate import Row, evaluate
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.tradeoffs import Crossover
from jaxdp.strategies.rows import STRATEGIES
from jaxdp.units import bytes_text

DECISIVE = 1.5  # "wins decisively" on memory: by half at least, activations included
LEVEL = 1.1  # speeds closer than this count as level
MUCH_WAITING = 0.25  # share of DDP's step from which workers count as uneven

Bottleneck = Literal["fits", "does not fit", "uneven"]
RULE: dict[Bottleneck, str] = {"fits": "ddp", "does not fit": "fsdp", "uneven": "ps"}


def decisive(ratio: float) -> bool:
    """F1, of DDP's bytes over FSDP's."""
    return ratio >= DECISIVE


def slower(ddp: float, fsdp: float) -> bool:
    """F2, of tokens per second: FSDP is slower than DDP."""
    return ddp > fsdp


def level(rate: float, best: float) -> bool:
    """F3 and F6, of tokens per second: as good as the best."""
    return best <= LEVEL * rate


def bottleneck(ddp_fits: bool, uneven: bool) -> Bottleneck:
    """F6: what to choose from; `RULE` says what."""
    return "uneven" if uneven else "fits" if ddp_fits else "does not fit"


def chosen_as(strategy: str | None) -> str | None:
    """F6: a strategy as the rule names it; what shards parameters counts as FSDP."""
    return "fsdp" if strategy and STRATEGIES[strategy].shards_parameters else strategy


def claims(
    config: Config,
    hardware: Hardware,
    rows: Sequence[Row],
    crossovers: Sequence[Crossover],
    recommendation: str | None,
) -> list[dict[str, Any]]:
    """One entry a finding: its claim, whether it holds here, and the figures that say so."""
    by_name = {row.strategy: row for row in rows}
    ddp, fsdp = by_name["ddp"], by_name["fsdp"]
    return [
        {"finding": "F1", "claim": "FSDP wins decisively on memory", **_memory(config, hardware, ddp, fsdp)},
        {"finding": "F2", "claim": "below a model size FSDP is slower than DDP", **_speed(ddp, fsdp, crossovers)},
        {"finding": "F3", "claim": "DDP is fastest for whatever fits", **_fastest(ddp, rows)},
        {"finding": "F6", "claim": "choose from the bottleneck", **_choice(ddp, rows, recommendation)},
    ]


def _memory(config: Config, hardware: Hardware, ddp: Row, fsdp: Row) -> dict[str, Any]:
    together = max(ddp.accumulation, fsdp.accumulation)
    split = config.model_copy(update={"train": config.train.model_copy(update={"accumulation": together})})
    totals = [evaluate(split, hardware, name).memory.total for name in ("ddp", "fsdp")]
    state = ddp.memory.state / fsdp.memory.state
    return {
        "holds": decisive(totals[0] / totals[1]),
        "found": f"a device's state is {state:.1f} times smaller than DDP's, state and activations together"
        f" {totals[0] / totals[1]:.1f} times (at equal microbatches)",
    }


def _speed(ddp: Row, fsdp: Row, crossovers: Sequence[Crossover]) -> dict[str, Any]:
    crossover = next(c for c in crossovers if c.name == "fsdp_faster_than_ddp")
    ratio = ddp.tokens_per_second / fsdp.tokens_per_second
    return {
        "holds": slower(ddp.tokens_per_second, fsdp.tokens_per_second),
        "found": f"at this size DDP makes {ratio:.2f} times FSDP's tokens/s; {crossover.statement}",
    }


def _fastest(ddp: Row, rows: Sequence[Row]) -> dict[str, Any]:
    if not ddp.fits:
        return {"holds": False, "found": f"DDP does not fit: it needs {bytes_text(ddp.memory.total)} per device"}
    fastest = max((row for row in rows if row.runs and row.fits), key=lambda row: row.tokens_per_second)
    lead = fastest.tokens_per_second / ddp.tokens_per_second
    return {
        "holds": level(ddp.tokens_per_second, fastest.tokens_per_second),
        "found": "DDP fits and is the fastest"
        if fastest is ddp
        else f"DDP fits; {fastest.strategy} makes {lead:.2f} times its tokens/s",
    }


def _choice(ddp: Row, rows: Sequence[Row], recommendation: str | None) -> dict[str, Any]:
    """The study's rule: uneven -> server, fits -> DDP, else FSDP (or HSDP)."""
    found = bottleneck(ddp.fits, ddp.cost.waiting_s > MUCH_WAITING * ddp.cost.total_s)
    why = {"fits": "DDP fits", "does not fit": "DDP does not fit", "uneven": "the workers are uneven"}[found]
    chosen = next((f" ({row.bottleneck})" for row in rows if row.strategy == recommendation), "")
    return {
        "holds": chosen_as(recommendation) == RULE[found],
        "found": f"{why}, so the rule says {RULE[found]}; the predictions say {recommendation or 'none'}{chosen}",
    }
