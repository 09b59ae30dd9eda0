"""What if the workers of a measured trace had trained otherwise: slowdown, who costs how much, what would gain.

The slowdown compares with an ideal in which every worker takes the step's mean; a worker's own cost is the
slowdown that remains when all others are ideal (the what-if analysis of Lin et al., OSDI 2025).
"""

from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.errors import BadInput
from jaxdp.stragglers.delays import Delays
from jaxdp.stragglers.spec import make_delay
from jaxdp.stragglers.trace import read_trace
from sims import barrier, server
from sims.results import Result
from sims.scenario import Scenario
from sims.strategy import Strategy

CYCLES = 50  # times that a server goes through the trace, so that start and end weigh little
MAX_BACKUPS = 4


def replay(file: Path | None) -> dict[str, Any]:
    """The report of a trace; raises `BadInput` for a file that isn't one, or is not named."""
    if file is None:
        raise BadInput("replay: needs a trace, as in `jaxdp sim replay trace.csv`")
    path = str(file)
    seconds = read_trace(path)
    steps, workers = seconds.shape
    means_s = seconds.mean(axis=0).tolist()
    delays = Delays((make_delay("trace", {"file": path}),))
    rows = [_row(strategy, workers, steps, delays) for strategy in _strategies(workers)]
    ddp = rows[0]["worker_steps_per_second"]
    return {
        "file": path,
        "workers": workers,
        "steps": steps,
        "slowdown": float(seconds.max(axis=1).mean() / seconds.mean()),
        "costs": [
            {"worker": worker, "mean_s": mean, "relative": mean / float(seconds.mean()), "slowdown_alone": cost}
            for worker, (mean, cost) in enumerate(zip(means_s, slowdown_alone(seconds).tolist(), strict=True))
        ],
        "results": [{**row, "gain_over_ddp": row["worker_steps_per_second"] / ddp} for row in rows],
        "how": {"results": "simulated", "slowdown": "measured", "costs": "simulated"},
    }


def slowdown_alone(seconds: np.ndarray) -> np.ndarray:
    """For each worker of [steps, workers], the slowdown if all others took the step's mean."""
    ideal_s = seconds.mean(axis=1, keepdims=True)
    return np.maximum(seconds, ideal_s).mean(axis=0) / ideal_s.mean()


def _strategies(workers: int) -> list[Strategy]:
    backups = [b for b in (1, 2, MAX_BACKUPS) if b < workers]
    return [
        Strategy(name="ddp"),
        *(Strategy(name="backup", backups=b) for b in backups),
        *(Strategy(name="local_sgd", period=period) for period in (2, 4, 8)),
        *(Strategy(name="ps", policy="ssp", bound=bound) for bound in (1, 3, 8)),
        Strategy(name="ps"),
    ]


def _row(strategy: Strategy, workers: int, steps: int, delays: Delays) -> dict[str, Any]:
    """A strategy over whole passes through the trace, free of network time."""
    passes = CYCLES if strategy.name == "ps" else strategy.period or 1
    scenario = Scenario(workers=workers, steps=steps * passes, compute_s=1.0, strategies=(strategy,))
    world = server.simulate if strategy.name == "ps" else barrier.simulate
    outcome = world(scenario, strategy, delays)
    row = Result(strategy, scenario, (outcome,), (1.0,)).to_json()
    slowdown = row["slowdown"]
    kept = ("strategy", "label", "options", "worker_steps_per_second", "slowdown", "staleness", "idle_share")
    return {key: row[key] for key in kept} | {"useful_throughput": 1 / slowdown if slowdown else None}
