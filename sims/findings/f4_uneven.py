"""F4: with uneven workers the parameter server holds up best, since it alone waits for nobody."""

from dataclasses import dataclass

from jaxdp.config import Config, build
from jaxdp.records import BenchResult
from sims.figures import FACTORS
from sims.findings.drawing import COLOUR, OTHER, panels
from sims.findings.finding import CONDITIONAL, FAILS, HOLDS, Drawing, Finding, Trial, Value, Verdict
from sims.findings.lab import Lab
from sims.results import simulate
from sims.scenario import Scenario
from sims.strategy import Strategy

WORKERS, FACTOR, PACE_S = 4, 4.0, 0.1
EVEN = f"pace(seconds={PACE_S})"
UNEVEN = f"{EVEN},persistent(worker=0,factor={FACTOR:g})"
LOSS, QUICK_LOSS = 2.9, 3.3  # nats a byte, the mean of the last ten global batches
MAX_STEPS, SEEDS = 200, 2
CLEARLY = 1.1  # faster by this counts
RIVALS = (
    Strategy(name="ddp"),
    Strategy(name="backup", backups=1),
    Strategy(name="ps", policy="ssp", bound=2),
    Strategy(name="ps", policy="sync"),
    Strategy(name="ps"),
)
CLAIM = "with uneven workers the parameter server holds up best, since it alone does not make all wait for the slowest"
CONDITION = (
    f"{WORKERS} workers whose steps are paced to {PACE_S:g} s (injected, slept in real time), worker 0"
    f" {FACTOR:g} times slower; an asynchronous server against DDP, in tokens/s and in time to the same loss"
)


@dataclass(frozen=True)
class Race:
    """One real run until it reached the loss. Steps are global batches; None: the loss was not reached."""

    strategy: str
    uneven: bool
    seed: int
    tokens_per_second: float
    seconds_to_loss: float | None
    steps_to_loss: int | None
    staleness: float


@dataclass(frozen=True)
class Simulated:
    """Useful gradients a second when worker 0 is so much slower, relative to DDP's between even workers."""

    strategy: str
    slowdown: float
    relative_rate: float


@dataclass(frozen=True)
class Evidence:
    loss: float
    races: tuple[Race, ...]
    simulated: tuple[Simulated, ...]


def measure(lab: Lab) -> Evidence:
    loss, seeds = (QUICK_LOSS, 1) if lab.quick else (LOSS, SEEDS)
    specs = [UNEVEN] if lab.quick else [EVEN, UNEVEN]
    races = [_race(lab, name, spec, seed, loss) for seed in range(seeds) for spec in specs for name in ("ddp", "ps")]
    return Evidence(loss, tuple(races), tuple(_sweep()))


def _race(lab: Lab, name: str, spec: str, seed: int, loss: float) -> Race:
    uneven = spec == UNEVEN
    label = f"f4-{name}-{'uneven' if uneven else 'even'}-{seed}"
    (found,) = lab.bench(label, [_config(name, spec, seed)], WORKERS, steps=MAX_STEPS, until_loss=loss)
    return Race(
        name,
        uneven,
        seed,
        found.tokens_per_second,
        found.extra["time_to_loss_s"],
        found.extra["steps_to_loss"],
        _staleness(found),
    )


def _staleness(found: BenchResult) -> float:
    return float((found.extra.get("staleness") or {"mean": 0.0})["mean"])


def _config(name: str, spec: str, seed: int) -> Config:
    """A model so small that two cores compute the steps of all workers well within their pace."""
    return build(
        {
            "model": {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 32, "vocab": 256},
            "optim": {"learning_rate": 5e-3, "warmup_steps": 5, "schedule": "constant"},
            "train": {"global_batch": 16, "steps": MAX_STEPS, "seed": seed, "compute_dtype": "float32"},
            "strategy": {"name": name},
            "stragglers": spec,
        }
    )


def _sweep() -> list[Simulated]:
    even = _rate(RIVALS[0], 1.0)
    return [Simulated(each.label, factor, _rate(each, factor) / even) for each in RIVALS for factor in FACTORS]


def _rate(strategy: Strategy, factor: float) -> float:
    """Simulated useful gradients a second when worker 0 is so much slower."""
    scenario = Scenario(workers=WORKERS, steps=400, stragglers=f"{EVEN},persistent(worker=0,factor={factor})")
    return simulate(scenario, strategy, 0).useful_per_second


def judge(evidence: Evidence) -> Finding:
    """The server must be faster under unevenness in tokens/s and to the loss, and nothing simulated may beat it."""
    gain, to_loss = _ratio(evidence, True, "tokens_per_second"), _gain_to_loss(evidence, True)
    even, even_to_loss = _ratio(evidence, False, "tokens_per_second"), _gain_to_loss(evidence, False)
    at = {each.strategy: each.relative_rate for each in evidence.simulated if each.slowdown == FACTOR}
    best = max(at, key=lambda label: at[label])
    formula = (FACTOR * (WORKERS - 1) + 1) / WORKERS
    values = (
        Value("gain_in_tokens_per_second.uneven", formula, gain, "measured"),
        Value("gain_in_tokens_per_second.simulated", formula, at["ps-async"] / at["ddp"], "simulated"),
        Value("gain_in_time_to_loss.uneven", f"above {CLEARLY}", to_loss, "measured"),
        Value("gain_in_tokens_per_second.even", 1.0, even, "measured"),
        Value("gain_in_time_to_loss.even", None, even_to_loss, "measured"),
        Value("steps_to_loss_over_ddps.uneven", None, _ratio(evidence, True, "steps_to_loss"), "measured"),
        Value("mean_staleness.uneven", WORKERS - 1, _mean_staleness(evidence), "measured"),
        *(
            Value(f"rate_over_even_ddps_at_a_slowdown_of_{FACTOR:g}.{label}", None, rate, "simulated")
            for label, rate in at.items()
        ),
    )

    def finding(verdict: Verdict, condition: str, reason: str) -> Finding:
        return Finding("F4", CLAIM, condition, verdict, reason, values)

    if gain is None or gain < CLEARLY:
        told = "-" if gain is None else f"{gain:.2f}"
        return finding(FAILS, CONDITION, f"the server makes {told} times DDP's tokens/s under uneven workers")
    if at[best] > CLEARLY * at["ps-async"]:
        reason = f"{best} keeps {at[best]:.0%} of the rate at a slowdown of {FACTOR:g}, the server {at['ps-async']:.0%}"
        return finding(FAILS, CONDITION, reason)
    reason = f"the server makes {gain:.2f} times DDP's tokens/s (formula {formula:.2f})"
    if to_loss is None or to_loss < CLEARLY:
        told = "does not reach the loss" if to_loss is None else f"is {to_loss:.2f} times as fast to the loss"
        return finding(
            CONDITIONAL,
            f"{CONDITION}. It holds for throughput only",
            f"{reason}, but {told}: stale gradients cost more",
        )
    reason += f" and reaches a loss of {evidence.loss:g} {to_loss:.2f} times as fast"
    if even is not None and even < CLEARLY:
        reason += f"; between even workers it makes {even:.2f} times DDP's, so the gain comes from the unevenness"
    return finding(HOLDS, CONDITION, reason)


def _of(evidence: Evidence, strategy: str, uneven: bool) -> list[Race]:
    return [race for race in evidence.races if race.strategy == strategy and race.uneven == uneven]


def _ratio(evidence: Evidence, uneven: bool, key: str) -> float | None:
    """The server's mean over DDP's; None if either was not measured."""
    means = []
    for strategy in ("ps", "ddp"):
        found = [getattr(race, key) for race in _of(evidence, strategy, uneven)]
        if not found or None in found:
            return None
        means.append(sum(found) / len(found))
    return means[0] / means[1]


def _gain_to_loss(evidence: Evidence, uneven: bool) -> float | None:
    ratio = _ratio(evidence, uneven, "seconds_to_loss")
    return None if ratio is None else 1 / ratio


def _mean_staleness(evidence: Evidence) -> float | None:
    found = [race.staleness for race in _of(evidence, "ps", True)]
    return sum(found) / len(found) if found else None


def draw(evidence: Evidence) -> Drawing:
    figure, (left, right) = panels(2)
    races = sorted(evidence.races, key=lambda race: (race.uneven, race.strategy, race.seed))
    labels = {(race.uneven, race.strategy): None for race in races}
    for place, (uneven, strategy) in enumerate(labels):
        own = [race.seconds_to_loss for race in _of(evidence, strategy, uneven) if race.seconds_to_loss]
        left.bar(place, sum(own) / len(own) if own else 0, color=COLOUR[strategy])
        left.plot([place] * len(own), own, "o", color="black", markersize=3)
    names = [f"{strategy}\n{'uneven' if uneven else 'even'}" for uneven, strategy in labels]
    left.set_xticks(range(len(names)), names)
    left.set(ylabel=f"seconds to a loss of {evidence.loss:g}", title="measured (paced steps, injected)")
    styles = {"ddp": (COLOUR["ddp"], "-", 5), "ps-async": (COLOUR["ps"], "-", 2), "ps-ssp(2)": (COLOUR["ps"], "--", 2)}
    styles |= {"ps-sync": (COLOUR["ps"], ":", 2), "backup(1)": (OTHER, "-", 2)}
    for label, (colour, dash, width) in styles.items():
        points = [(each.slowdown, 100 * each.relative_rate) for each in evidence.simulated if each.strategy == label]
        line = {"color": colour, "linewidth": width, "alpha": 0.35 if width > 2 else 1.0, "label": label}
        right.plot([x for x, _ in points], [y for _, y in points], dash, **line)
    right.set(xlabel="slowdown of one of 4 workers", ylabel="useful gradients/s (% of even DDP)", title="simulated")
    right.set(ylim=(0, 105))
    right.legend(fontsize=8)
    return Drawing(figure, [*evidence.races])


F4 = Trial("F4", CLAIM, CONDITION, measure, judge, draw)
