"""Which strategy to take on a cluster: every one evaluated, one recommended, with the reason and its limits."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from jaxdp.config import Config
from jaxdp.models.shapes import count
from jaxdp.predict.calibrated.bands import Band, band
from jaxdp.predict.calibrated.rates import OWN_STACK
from jaxdp.predict.claims import LEVEL, claims
from jaxdp.predict.evaluate import Row, evaluate, possible
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
    bands: tuple[Band, ...]
    commands: tuple[str | None, ...]

    @property
    def command(self) -> str | None:
        """The recommended strategy's command line."""
        return next((line for row, line in self.each if row.strategy == self.recommendation), None)

    @property
    def each(self) -> list[tuple[Row, str | None]]:
        return list(zip(self.rows, self.commands, strict=True))

    @property
    def assumptions(self) -> tuple[str, ...]:
        return assumptions(self.hardware, self.config)

    def to_json(self) -> dict[str, Any]:
        return {
            "recommendation": self.recommendation,
            "reason": self.reason,
            "command": self.command,
            "stack": self.hardware.stack,
            "strategies": [
                row.to_json() | {"band_percent": asdict(band), "command": command}
                for (row, command), band in zip(self.each, self.bands, strict=True)
            ],
            "crossovers": [asdict(crossover) for crossover in self.crossovers],
            "communication_budget": self.budget,
            "exchange_rate": list(self.exchange),
            "findings": list(self.findings),
            "assumptions": list(self.assumptions),
            "parameters": count(self.config.model),
            "devices": self.hardware.devices,
            "hosts": self.hardware.hosts,
            "hardware": [asdict(group) | {"sources": dict(group.sources)} for group in self.hardware.groups],
            "how": {"strategies": "predicted", "crossovers": "predicted", "communication_budget": "predicted"},
        }


def assumptions(hardware: Hardware, config: Config) -> tuple[str, ...]:
    """What the prediction takes for true, line by line."""
    if hardware.stack != OWN_STACK:
        return (
            f"{hardware.profile.usable:.0%} of a device's memory can be filled; {hardware.stack} overlaps, repeats and"
            " holds what its published runs fit best; batch and recomputation are the config's",
        )
    gpu = any(group.platform == "gpu" for group in hardware.groups)
    share = hardware.usable_bytes / hardware.memory_bytes
    why = "as a run takes (XLA_PYTHON_CLIENT_MEM_FRACTION)" if gpu else "the rest is the runtime's"
    late = "whole gradients are summed after the backward pass and overlap nothing (strategy.reduce=end)"
    early = "ddp and hsdp sum a block's gradients beside the backward pass of the block before (strategy.reduce=block)"
    overlap = f"gathers overlap the block before; {early if config.strategy.reduce == 'block' else late}"
    origin = (
        "rates are fitted to published runs of other stacks; jaxdp's own overlap and recomputation follow from its"
        " programs and are untested on these devices: compare with jaxdp bench"
        if hardware.calibrated
        else "rates are those of the hardware file; compare with jaxdp bench"
    )
    return f"{share:.0%} of a device's memory is used, {why}", overlap, origin


def advise(config: Config, hardware: Hardware, delays: "Delays | None" = None, origin: Sequence[str] = ()) -> Advice:
    """Predicts every strategy on the cluster, under the delays of an unevenness SPEC if one is given.

    `origin` are the arguments that made the config, for the command lines (`--config`, `--set`).
    """
    refuse_prediction(config, "advise")
    if delays:
        delays.check(hardware.devices)
    names = possible(config, hardware)
    rows = [evaluate(config, hardware, name, delays) for name in names]
    if delays or _uneven(hardware):
        rows.append(evaluate(config, hardware, "ddp", delays, proportional=True))
    bands = [_band(config, hardware, row.strategy) for row in rows]
    margin = max(LEVEL, *(one.margin for one in bands))
    recommendation, reason = _recommend(rows, config, margin)
    crossovers = size_crossovers(config, hardware)
    synchronous = _best_synchronous(rows, margin)
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
        tuple(bands),
        tuple(_command(row, config, hardware, origin) for row in rows),
    )


def _band(config: Config, hardware: Hardware, strategy: str) -> Band:
    facts = {
        "parameters": count(config.model),
        "context": config.model.context,
        "devices": hardware.devices,
    }
    group = hardware.groups[0]
    return band(hardware.stack, group.device or group.name, strategy, facts)


def _command(row: Row, config: Config, hardware: Hardware, origin: Sequence[str]) -> str | None:
    """The command line that runs a strategy as it was predicted; None for what jaxdp does not run."""
    if hardware.stack != OWN_STACK or not row.runs or not row.fits:
        return None
    words = ["jaxdp", "train", *origin, "--strategy", row.strategy]
    own = config.train
    for key in ("accumulation", "global_batch"):
        if (value := getattr(row, key)) != getattr(own, key):
            words += ["--set", f"train.{key}={value}"]
    if hardware.hosts > 1:
        words = ["srun", f"--ntasks={hardware.hosts}", "--ntasks-per-node=1", *words]
    return shlex.join(words)


def _uneven(hardware: Hardware) -> bool:
    groups = hardware.groups
    return len({(g.flops, g.memory_bandwidth) for g in groups}) > 1 or any(len(set(g.speeds)) > 1 for g in groups)


def _best_synchronous(rows: list[Row], margin: float) -> Row | None:
    """The simplest mesh strategy that fits, unless a less simple one is faster by more than the margin."""
    by_name = {row.strategy: row for row in rows if row.fits}
    best = None
    for name in mesh_strategies():
        row = by_name.get(name)
        if row and (best is None or row.tokens_per_second > margin * best.tokens_per_second):
            best = row
    return best


def _recommend(rows: list[Row], config: Config, margin: float) -> tuple[str | None, str]:
    by_name = {row.strategy: row for row in rows}
    best, server = _best_synchronous(rows, margin), by_name.get("ps")
    server = server if server and server.fits else None
    if best is None and server is None:
        return None, _nothing_fits(rows, config)
    if best is None or (server and server.tokens_per_second > margin * best.tokens_per_second):
        assert server is not None
        return "ps", _server_reason(server, best, rows)
    ddp = by_name["ddp"]
    micro = f" with {best.accumulation} microbatches" if best.accumulation > 1 else ""
    fit = f"fits{micro} ({bytes_text(best.memory.total)} per device of {bytes_text(best.usable_bytes)})"
    if best is not ddp and ddp.fits:
        gain = best.tokens_per_second / ddp.tokens_per_second - 1
        fit += f" and is {gain:.0%} faster than DDP, more than the {margin - 1:.0%} that a prediction may be off"
    elif best is not ddp:
        fit += f"; DDP does not ({bytes_text(ddp.memory.total)})"
    return best.strategy, f"it {fit}; {_level(best, rows, margin)}; {best.bottleneck}{_rival(best, rows)}"


def _level(best: Row, rows: list[Row], margin: float) -> str:
    """What the faster ones, if any, have over it."""
    fitting = [row for row in rows if row.runs and row.fits]
    fastest = max(fitting, key=lambda row: row.tokens_per_second)
    if fastest is best:
        return "nothing that fits is predicted to be faster"
    gain = fastest.tokens_per_second / best.tokens_per_second - 1
    return (
        f"level with {fastest.strategy}, whose predicted lead of {gain:.1%} lies within the {margin - 1:.0%} that count"
        f" as no difference, and simpler"
    )


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
    if rival is None or rival.tokens_per_second < LEVEL * best.tokens_per_second:
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
