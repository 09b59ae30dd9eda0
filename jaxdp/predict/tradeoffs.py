"""Where one strategy overtakes another: by model size, slowdown, bandwidth, tokens, and what sharding buys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxdp.config import Config, ModelConfig
from jaxdp.models.shapes import count
from jaxdp.predict.compute import compute_dtype
from jaxdp.predict.cost import mesh_cost
from jaxdp.predict.evaluate import Row, evaluate, hardware_memory, scaled_links, with_strategy
from jaxdp.predict.hardware import Hardware
from jaxdp.predict.traffic import tokens_for_balance
from jaxdp.strategies.collectives import GRADIENT_BYTES
from jaxdp.workload import units_per_batch

STEPS = [2 ** (step / 4) for step in range(-16, 17)]  # factors from 1/16 to 16
COARSE = [2.0**step for step in range(-3, 4)]
BANDWIDTHS = [2 ** (step / 2) for step in range(-20, 21)]  # from 1/1024 to 1024
WITHIN = 1.05  # FSDP "stays within" so much of DDP's step
MAX_SLOWDOWN = 64.0


@dataclass(frozen=True)
class Crossover:
    """`value` in `unit` from which the statement holds; None if it holds nowhere in the range looked at."""

    name: str
    value: float | None
    unit: str
    statement: str


def widened(model: ModelConfig, factor: float) -> ModelConfig:
    """The model with its width, and the ffn with it, times a factor; the number of heads stays."""
    step = 2 * model.heads
    width = max(step, round(model.width * factor / step) * step)
    return model.model_copy(update={"width": width, "ffn": max(1, round(model.ffn * width / model.width))})


def with_model(config: Config, model: ModelConfig) -> Config:
    return config.model_copy(update={"model": model})


def size_crossovers(config: Config, hardware: Hardware) -> list[Crossover]:
    """The model size from which FSDP beats DDP, is faster, and from which DDP no longer fits (by width).

    Only sizes that fit under FSDP count, and for speed alone only those that fit under both.
    """
    models = {count(model): model for factor in STEPS for model in [widened(config.model, factor)]}
    pairs = []
    for size, model in sorted(models.items()):
        ddp, fsdp = (evaluate(with_model(config, model), hardware, name) for name in ("ddp", "fsdp"))
        pairs.append((size, ddp, fsdp))
    fitting = [(size, ddp, fsdp) for size, ddp, fsdp in pairs if fsdp.fits]
    conditions = {
        "fsdp_beats_ddp": (
            "FSDP beats DDP (it is faster, or DDP does not fit)",
            [(size, not ddp.fits or _faster(fsdp, ddp)) for size, ddp, fsdp in fitting],
        ),
        "fsdp_faster_than_ddp": (
            "FSDP's step is shorter than DDP's",
            [(size, _faster(fsdp, ddp)) for size, ddp, fsdp in fitting if ddp.fits],
        ),
        "ddp_stops_fitting": ("DDP no longer fits", [(size, not ddp.fits) for size, ddp, _ in pairs]),
    }
    return [_size_crossover(name, what, points) for name, (what, points) in conditions.items()]


def _faster(row: Row, other: Row) -> bool:
    return row.cost.total_s < other.cost.total_s


def _size_crossover(name: str, what: str, points: Sequence[tuple[float, bool]]) -> Crossover:
    if not points:
        return Crossover(name, None, "parameters", f"{what}: no size looked at fits")
    looked = f"of {points[0][0]:.2g} to {points[-1][0]:.2g} parameters, by width"
    value = _from(points)
    if value is None:
        where = f"at no size looked at ({looked})"
    elif value == points[0][0]:
        where = f"at every size looked at ({looked})"
    else:
        where = f"from about {value:.2g} parameters ({looked})"
    return Crossover(name, value, "parameters", f"{what}: {where}")


def _from(points: Sequence[tuple[float, bool]]) -> float | None:
    """The least value from which a condition holds for all larger ones."""
    holds = None
    for value, true in reversed(points):
        if not true:
            break
        holds = value
    return holds


def slowdown_crossover(config: Config, hardware: Hardware, best: Row, proportional: bool) -> Crossover:
    """The slowdown of a single worker from which the server's tokens/s pass a synchronous strategy's."""
    from jaxdp.stragglers.delays import parse

    def wins(slowdown: float) -> bool:
        delays = parse(f"persistent(factor={slowdown},worker=0)")
        rival = evaluate(config, hardware, best.strategy, delays, proportional)
        return evaluate(config, hardware, "ps", delays).tokens_per_second > rival.tokens_per_second

    against = f"{best.strategy}{' with work by speed' if proportional else ''}"
    name = "server_beats_work_by_speed" if proportional else "server_beats_synchronous"
    what = f"one worker slower: the server's tokens/s pass {against}'s"
    if not wins(MAX_SLOWDOWN):
        return Crossover(name, None, "times slower", f"{what} at no slowdown up to {MAX_SLOWDOWN:g}")
    low, high = 1.0, MAX_SLOWDOWN
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if wins(middle) else (middle, high)
    return Crossover(name, high, "times slower", f"{what} from a slowdown of about {high:.2g}")


def communication_budget(config: Config, hardware: Hardware) -> dict[str, Any]:
    """The bandwidth, and the tokens a device, from which FSDP's step stays within 5 % of DDP's.

    `balance_tokens_per_device` is the rule of thumb for either: fewer, and communication outlasts computing.
    """
    between = hardware.domains > 1
    at_hand = min(g.nic_bandwidth if between else g.intra_bandwidth for g in hardware.groups)
    per_sequence = config.model.context / hardware.devices

    def close(changed: Config, machine: Hardware) -> bool:
        fsdp, ddp = (mesh_cost(with_strategy(changed, name), machine).total_s for name in ("fsdp", "ddp"))
        return fsdp <= WITHIN * ddp

    bandwidths = [(at_hand * f, close(config, scaled_links(hardware, f))) for f in BANDWIDTHS]
    batches = sorted({max(1, round(config.train.global_batch * f)) for f in STEPS})
    tokens = [(batch * per_sequence, close(_with_batch(config, batch), hardware)) for batch in batches]
    group = hardware.groups[0]
    egress = at_hand * (group.devices if between else 1)
    flops = group.matmul_flops(compute_dtype(config, group))
    return {
        "within_percent": 5,
        "link": "between hosts" if between else "inside the host",
        "bandwidth_bytes_per_s": _from(bandwidths),
        "bandwidth_at_hand_bytes_per_s": at_hand,
        "tokens_per_device": _from(tokens),
        "tokens_per_device_at_hand": config.train.global_batch * per_sequence,
        "balance_tokens_per_device": tokens_for_balance(GRADIENT_BYTES, flops, egress),
        "looked_at": {
            "bandwidth_bytes_per_s": [bandwidths[0][0], bandwidths[-1][0]],
            "tokens_per_device": [tokens[0][0], tokens[-1][0]],
        },
    }


def _with_batch(config: Config, batch: int) -> Config:
    train = config.train.model_copy(update={"global_batch": batch, "accumulation": 1})
    return config.model_copy(update={"train": train})


def exchange_rates(config: Config, hardware: Hardware) -> list[dict[str, Any]]:
    """What FSDP saves a device against DDP for each byte it sends, as the model or the batch grows.

    `per_exposed_byte` counts only the bytes whose sending shows in the step's time.
    """

    def vary(**changes: int) -> Config:
        return with_model(config, config.model.model_copy(update=changes))

    model = config.model
    dims: dict[str, Callable[[float], Config]] = {
        "layers": lambda f: vary(layers=max(1, round(model.layers * f))),
        "width": lambda f: with_model(config, widened(model, f)),
        "vocab": lambda f: vary(vocab=max(1, round(model.vocab * f))),
        "tokens_per_device": lambda f: _with_batch(config, max(1, round(config.train.global_batch * f))),
    }
    return [
        _exchange(name, each, hardware)
        for name, changed in dims.items()
        for each in {changed(factor).model_dump_json(): changed(factor) for factor in COARSE}.values()
    ]


def _exchange(name: str, config: Config, hardware: Hardware) -> dict[str, Any]:
    fsdp, ddp = with_strategy(config, "fsdp"), with_strategy(config, "ddp")
    held = [hardware_memory(c, hardware).total for c in (ddp, fsdp)]
    cost, silent = mesh_cost(fsdp, hardware), mesh_cost(fsdp, _unhidden(hardware))
    share = cost.exposed_communication_s / silent.exposed_communication_s if silent.exposed_communication_s else 0
    tokens = units_per_batch(config) / hardware.devices
    sent = cost.moved_bytes
    return {
        "dimension": name,
        "value": tokens if name == "tokens_per_device" else getattr(config.model, name),
        "bytes_saved": held[0] - held[1],
        "bytes_sent": sent,
        "per_byte": (held[0] - held[1]) / sent if sent else None,
        "per_exposed_byte": (held[0] - held[1]) / (sent * share) if sent * share else None,
    }


def _unhidden(hardware: Hardware) -> Hardware:
    return replace(hardware, groups=tuple(replace(group, overlaps=False) for group in hardware.groups))
