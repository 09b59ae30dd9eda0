"""The paper's four figures (abstract of arXiv 2505.12832): under which conditions does each come out?"""

import math
from collections.abc import Callable
from dataclasses import replace

from jaxdp.config import load
from jaxdp.models.shapes import count
from jaxdp.predict.evaluate import evaluate, hardware_memory, with_strategy
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.tradeoffs import widened, with_model
from sims.findings import region
from sims.findings.finding import FAILS, Finding, Trial, Value
from sims.findings.lab import Lab
from sims.findings.region import Map, Regions
from sims.results import simulate
from sims.scenario import Scenario
from sims.strategy import Strategy

SIZES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the width of "small"
NICS_GBPS = (1.0, 10.0, 25.0, 100.0, 400.0)
TOKENS = (1, 2, 4, 8, 16, 32)  # sequences a device
SLOWDOWNS = (1.1, 1.2, 1.3, 1.4, 1.5, 2.0, 4.0)
SIGMAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
WORKERS = (2, 4, 8, 16, 32)
BOUNDS = (1, 2, 4, 8, 16)
PAPER_SAVES = 28.0  # percent less time, at most
NEAR = 5.0  # percentage points
LOST = 0.5  # the limited variant has lost its gain where it keeps less than this share of it
TRAINED_STEPS = 80
LOSS = "loss_after_the_same_tokens."  # with the strategy's label


def _grid(rows: tuple, columns: tuple, cell: Callable[..., float]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(cell(row, column) for column in columns) for row in rows)


def _size_text(factor: float) -> str:
    size = count(widened(load(["small"]).model, factor))
    return f"{size / 1e6:.0f}M" if size < 1e9 else f"{size / 1e9:.1f}B"


# DDP 2-3 times faster than FSDP


def _speed(lab: Lab) -> Regions:
    cluster, worker = "h100x8", "a100-80g"
    maps = (
        Map(
            f"4 hosts of {cluster}",
            "parameters",
            "Gb/s a device",
            tuple(map(_size_text, SIZES)),
            tuple(f"{nic:g}" for nic in NICS_GBPS),
            _grid(NICS_GBPS, SIZES, lambda nic, size: _lead(size, 2, load_hardware(cluster, 4, nic))),
            2,
            3,
            "predicted",
        ),
        Map(
            f"{worker}, one a host, 400 Gb/s, small's shape at 1/8 of its width",
            "sequences a device",
            "hosts",
            tuple(map(str, TOKENS)),
            tuple(map(str, WORKERS)),
            _grid(WORKERS, TOKENS, lambda n, rows: _lead(1 / 8, rows, load_hardware(worker, n, 400))),
            2,
            3,
            "predicted",
        ),
    )
    return Regions(maps)


def _lead(size: float, rows: int, hardware: Hardware) -> float:
    """DDP's predicted tokens/s over FSDP's; NaN where either does not fit."""
    base = load(["small"], (), {"train.global_batch": rows * hardware.devices})
    config = with_model(base, widened(base.model, size))
    ddp, fsdp = (evaluate(config, hardware, name) for name in ("ddp", "fsdp"))
    return ddp.tokens_per_second / fsdp.tokens_per_second if ddp.fits and fsdp.fits else math.nan


# FSDP 4-6 times lower peak memory


def _memory(lab: Lab) -> Regions:
    maps = (
        Map(
            "1b on a100-80g",
            "sequences of 2048 a device",
            "devices",
            tuple(map(str, TOKENS)),
            tuple(map(str, WORKERS)),
            _grid(WORKERS, TOKENS, lambda n, rows: _peak("1b", 1.0, rows, load_hardware(f"a100-80gx{n}"))),
            4,
            6,
            "predicted",
        ),
        Map(
            "small's shape on a100-80gx8",
            "parameters",
            "sequences of 1024 a device",
            tuple(map(_size_text, SIZES)),
            tuple(map(str, TOKENS)),
            _grid(TOKENS, SIZES, lambda rows, size: _peak("small", size, rows, load_hardware("a100-80gx8"))),
            4,
            6,
            "predicted",
        ),
    )
    return Regions(maps)


def _peak(model: str, size: float, rows: int, hardware: Hardware) -> float:
    """DDP's bytes a device over FSDP's, whether they fit or not."""
    base = load([model], (), {"train.global_batch": rows * hardware.devices})
    config = with_model(base, widened(base.model, size))
    ddp, fsdp = (hardware_memory(with_strategy(config, name), hardware).total for name in ("ddp", "fsdp"))
    return ddp / fsdp


# Asynchronous: up to 28 % less time, at an accuracy loss


def _asynchronous(lab: Lab) -> Regions:
    free = Strategy(name="ps")
    return Regions(_saving_maps(free, WORKERS, PAPER_SAVES - NEAR, PAPER_SAVES + NEAR), _losses(lab))


def _saving_maps(strategy: Strategy, rows: tuple[int, ...], low: float, high: float) -> tuple[Map, Map]:
    """Percent of time saved for the same gradients: by one worker's slowdown, and by everyone's chance."""

    def one(title: str, x_name: str, spec: str, columns: tuple[float, ...]) -> Map:
        saved = _grid(rows, columns, lambda workers, x: _saved(strategy, workers, spec.format(x)))
        labels = tuple(f"{x:g}" for x in columns), tuple(map(str, rows))
        return Map(title, x_name, "workers", *labels, saved, low, high, "simulated", "{:.0f}")

    return (
        one("one worker slower (% less time)", "times slower", "persistent(factor={},worker=0)", SLOWDOWNS),
        one("all vary by chance (% less time)", "sigma of a lognormal step", "lognormal(sigma={})", SIGMAS),
    )


def _saved(strategy: Strategy, workers: int, delays: str) -> float:
    scenario = Scenario(workers=workers, steps=400, compute_s=1.0, stragglers=delays)
    ddp, other = (simulate(scenario, each, 0).useful_per_second for each in (Strategy(name="ddp"), strategy))
    return 100 * (1 - ddp / other)


def _losses(lab: Lab) -> tuple[Value, ...]:
    """Losses after the same tokens, really trained in virtual time: what stale gradients cost."""
    if lab.quick:
        return ()
    lab.need(1)  # the devices start as the other measurements want them
    from sims.gradients import TrainingSetup, train

    setup = TrainingSetup(Scenario(workers=8, steps=TRAINED_STEPS, compute_s=1.0, stragglers="lognormal(sigma=0.3)"), 0)
    found = []
    for strategy in (Strategy(name="ddp"), Strategy(name="ps"), Strategy(name="ps", policy="ssp", bound=2)):
        lab.say(f"  training {strategy.label} in virtual time")
        _, points = train(setup, strategy)
        last = [point.loss for point in points[-TRAINED_STEPS // 8 :]]
        found.append(Value(LOSS + strategy.label, None, sum(last) / len(last), "simulated"))
    return tuple(found)


# The variant that limits staleness loses the gain


def _limited(lab: Lab) -> Regions:
    """Percent of plain asynchronous training's saving that a bound on staleness keeps, for 8 workers."""

    def one(title: str, x_name: str, spec: str, columns: tuple[float, ...]) -> Map:
        kept = _grid(BOUNDS, columns, lambda bound, x: _kept(bound, spec.format(x)))
        labels = tuple(f"{x:g}" for x in columns), tuple(map(str, BOUNDS))
        return Map(title, x_name, "bound", *labels, kept, -math.inf, 100 * LOST, "simulated", "{:.0f}")

    return Regions(
        (
            one("one of 8 slower (% of the saving kept)", "times slower", "persistent(factor={},worker=0)", SLOWDOWNS),
            one("8 vary by chance (% of the saving kept)", "sigma of a lognormal step", "lognormal(sigma={})", SIGMAS),
        )
    )


def _kept(bound: int, delays: str) -> float:
    limited = _saved(Strategy(name="ps", policy="ssp", bound=bound), 8, delays)
    return 100 * limited / _saved(Strategy(name="ps"), 8, delays)


def judge_asynchronous(finding: Finding) -> Finding:
    """The claim has two halves: without a higher loss after the same tokens the second one fails."""
    losses = {
        value.name.removeprefix(LOSS): float(value.found or 0)
        for value in finding.values
        if value.name.startswith(LOSS)
    }
    if not losses:
        return replace(finding, reason=f"{finding.reason}; the accuracy loss was not tested (--quick)")
    free, synchronous = losses["ps-async"], losses["ddp"]
    told = f"{finding.reason}; after the same tokens the loss is {free:.3f}, synchronous {synchronous:.3f}"
    return replace(finding, reason=told, verdict=finding.verdict if free > synchronous else FAILS)


def _trial(
    name: str,
    claim: str,
    condition: str,
    measure: Callable[[Lab], Regions],
    then: Callable[[Finding], Finding] = lambda finding: finding,
) -> Trial:
    def judge(evidence: Regions) -> Finding:
        return then(region.judge(name, claim, condition, evidence))

    return Trial(name, claim, condition, measure, judge, region.draw)


CLAIMS = (
    _trial("P1", "DDP is 2 to 3 times faster than FSDP", "predicted tokens/s, parameters gathered in bfloat16", _speed),
    _trial(
        "P2", "FSDP's peak memory is 4 to 6 times lower than DDP's", "predicted bytes a device, same batch", _memory
    ),
    _trial(
        "P3",
        "asynchronous training takes up to 28 % less time than synchronous, at an accuracy loss",
        f"simulated time for the same gradients, within {NEAR:g} points of 28 %; a server without limits of its own",
        _asynchronous,
        judge_asynchronous,
    ),
    _trial(
        "P4",
        "limiting staleness gives the asynchronous gain back",
        f"simulated; given back where less than {LOST:.0%} of the saving is kept",
        _limited,
    ),
)
