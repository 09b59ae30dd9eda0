"""Which strategy to take on a cluster: every one evaluated, one recommended, with the reason and its limits."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from jaxdp.config import Config
from jaxdp.models.shapes import count
from jaxdp.predict.claims import claims
from jaxdp.predict.evaluate import USABLE, Row, evaluate, possible
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.memory import state_bytes_per_parameter
from jaxdp.predict.tradeoffs import (
    Crossover,
    communication_budget,
    exchange_rates,
    size_crossovers,
    slowdown_crossover,
)
from jaxdp.strategies.rows import mesh_strategies
from jaxdp.units import bytes_text
from jaxdp.workload import refuse_prediction

if TYPE_CHECKING:
    from jaxdp.stragglers.delays import Delays

ASSUMPTIONS = (
    f"{USABLE:.0%} of a device's memory is usable",
    "collectives of one kind in one place travel together and gathers overlap the block before (neither on probed"
    " CPUs); reductions after the backward pass overlap nothing",
    "predicted, not measured: calibrate with jaxdp probe, then compare with jaxdp bench",
)
CLEARLY = 1.1  # a more complicated strategy must be so much faster
SERVER_GAIN = 1.1  # the server costs accuracy, so it must gain at least this


@dataclass(frozen=True)
class Advice:
    recommendation: str | None
    reason: str
    rows: tuple[Row, ...]
    crossovers: tuple[Crossover, ...]
    budget: dict[str, Any]
    exchange: tuple[dict[str, Any], ...]
    findings: tuple[dict[str, Any], ...]
    config: Config
    hardware: Hardware

    def to_json(self) -> dict[str, Any]:
        return {
            "recommendation": self.recommendation,
            "reason": self.reason,
            "strategies": [row.to_json() for row in self.rows],
            "crossovers": [asdict(crossover) for crossover in self.crossovers],
            "communication_budget": self.budget,
            "exchange_rate": list(self.exchange),
            "findings": list(self.findings),
            "assumptions": list(ASSUMPTIONS),
            "parameters": count(self.config.model),
            "devices": self.hardware.devices,
            "hosts": self.hardware.hosts,
            "hardware": [asdict(group) | {"sources": dict(group.sources)} for group in self.hardware.groups],
            "how": {"strategies": "predicted", "crossovers": "predicted", "communication_budget": "predicted"},
        }


def advise(config: Config, hardware: Hardware, delays: "Delays | None" = None) -> Advice:
    """Predicts every strategy on the cluster, under the delays of an unevenness SPEC if one is given."""
    refuse_prediction(config, "advise")
    if delays:
        delays.check(hardware.devices)
    names = possible(config, hardware)
    rows = [evaluate(config, hardware, name, delays) for name in names]
    if delays or _uneven(hardware):
        rows.append(evaluate(config, hardware, "ddp", delays, proportional=True))
    recommendation, reason = _recommend(rows, config)
    crossovers = size_crossovers(config, hardware)
    synchronous = _best_synchronous(rows)
    if "ps" in names and synchronous:
        crossovers.append(slowdown_crossover(config, hardware, synchronous, proportional=False))
        if synchronous.strategy == "ddp":
            crossovers.append(slowdown_crossover(config, hardware, synchronous, proportional=True))
    return Advice(
        recommendation,
        reason,
        tuple(rows),
        tuple(crossovers),
        communication_budget(config, hardware),
        tuple(exchange_rates(config, hardware)),
        tuple(claims(config, hardware, rows, crossovers, recommendation)),
        config,
        hardware,
    )


def _uneven(hardware: Hardware) -> bool:
    groups = hardware.groups
    return len({(g.flops, g.memory_bandwidth) for g in groups}) > 1 or any(len(set(g.speeds)) > 1 for g in groups)


def _best_synchronous(rows: list[Row]) -> Row | None:
    """The simplest mesh strategy that fits, unless a less simple one is clearly faster."""
    by_name = {row.strategy: row for row in rows if row.fits}
    best = None
    for name in mesh_strategies():
        row = by_name.get(name)
        if row and (best is None or row.tokens_per_second > CLEARLY * best.tokens_per_second):
            best = row
    return best


def _recommend(rows: list[Row], config: Config) -> tuple[str | None, str]:
    by_name = {row.strategy: row for row in rows}
    best, server = _best_synchronous(rows), by_name.get("ps")
    server = server if server and server.fits else None
    if best is None and server is None:
        return None, _nothing_fits(rows, config)
    if best is None or (server and server.tokens_per_second > SERVER_GAIN * best.tokens_per_second):
        assert server is not None
        return "ps", _server_reason(server, best, rows)
    ddp = by_name["ddp"]
    if best.strategy == "ddp":
        reason = f"it fits ({bytes_text(best.memory.total)} per device of {bytes_text(best.usable_bytes)})"
        reason += f" and nothing that jaxdp runs is faster by more than {CLEARLY - 1:.0%}; {best.bottleneck}"
        return "ddp", reason + _rival(best, rows)
    if not ddp.fits:
        reason = f"DDP does not fit ({bytes_text(ddp.memory.total)} of {bytes_text(ddp.usable_bytes)} per device)"
    else:
        gain = best.tokens_per_second / ddp.tokens_per_second - 1
        reason = (
            f"DDP fits too, but as built its reduction overlaps nothing and every device updates the whole state:"
            f" {best.strategy} is {gain:.0%} faster"
        )
    micro = f", with {best.accumulation} microbatches" if best.accumulation > 1 else ""
    fit = f"{best.strategy} fits with {bytes_text(best.memory.total)}{micro}"
    return best.strategy, f"{reason}; {fit}; {best.bottleneck}{_rival(best, rows)}"


def _nothing_fits(rows: list[Row], config: Config) -> str:
    least = min(rows, key=lambda row: row.memory.total)
    whole = count(config.model) * state_bytes_per_parameter((), 1)
    devices = math.ceil(whole / least.usable_bytes)
    return (
        f"nothing fits: even {least.strategy} needs {bytes_text(least.memory.total)} per device of"
        f" {bytes_text(least.usable_bytes)} usable; FSDP's state alone takes {devices} such devices,"
        " activations come on top: add devices, shorten the context, or set train.remat=block"
    )


def _rival(best: Row, rows: list[Row]) -> str:
    """The obvious alternative for uneven workers, where it would gain."""
    rival = next((row for row in rows if not row.runs and row.fits), None)
    if rival is None or rival.tokens_per_second < CLEARLY * best.tokens_per_second:
        return ""
    gain = rival.tokens_per_second / best.tokens_per_second
    return (
        f"; DDP with work in proportion to speed would make {gain:.2f} times its tokens/s, if you can split batches so"
    )


def _server_reason(server: Row, best: Row | None, rows: list[Row]) -> str:
    if best is None:
        return "no synchronous strategy fits, and a server keeps the optimizer's state off the devices"
    gain = server.tokens_per_second / best.tokens_per_second
    text = f"uneven workers: {best.strategy} waits {best.cost.waiting_s / best.cost.total_s:.0%} of its step, the"
    text += f" server makes {gain:.2f} times its tokens/s"
    rival = next((row for row in rows if not row.runs), None)
    if rival and rival.fits:
        share = server.tokens_per_second / rival.tokens_per_second
        text += f" ({share:.2f} times those of DDP with work in proportion to speed, if you can split batches so)"
    return text + "; stale gradients cost loss, so compare time to loss (jaxdp bench --until-loss) before you choose"
