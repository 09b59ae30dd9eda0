"""Predicted against measured throughput under the same injected delays: DDP and the threads engine, 4 workers.

    python benchmarks/sim_vs_real.py              # a quarter of an hour, nearly all of it slept
    python benchmarks/sim_vs_real.py --json

Each run is `jaxdp bench` in a process of its own; leave the machine alone meanwhile. `pace` absorbs the real
computing, so that two cores can stand for four workers. The simulator knows nothing but the SPEC and the seed,
and skips the same warm-up. A prediction may be off by 5 %, and the strategies must come in the same order
(ties within 5 % aside).
"""

import argparse
import json
import subprocess
import sys
from itertools import combinations
from typing import Any

from sims.results import simulate
from sims.scenario import Scenario
from sims.strategy import Strategy

WORKERS, WARM_UP, STEPS = 4, 3, 30
TOLERANCE = 0.05
PACE = "pace(seconds=0.4)"
STRATEGIES = (
    Strategy(name="ddp"),
    Strategy(name="ps"),
    Strategy(name="ps", policy="ssp", bound=2),
    Strategy(name="ps", policy="sync"),
)
SETTINGS = (
    "lognormal(sigma=0.05)",
    "persistent(factor=4,worker=0)",
    "persistent(factor=2,worker=3)",
    "lognormal(sigma=0.3)",
    "exponential(mean_s=0.15)",
    "pause(seconds=1,probability=0.1)",
)


def measured(strategy: Strategy, spec: str) -> float:
    """Tokens a second of a real run."""
    command = [sys.executable, "-m", "cli", "bench", "--config", "nano", "--devices", str(WORKERS), "--json", "--quiet"]
    command += ["--strategy", strategy.name, "--steps", str(STEPS), "--warmup", str(WARM_UP), "--stragglers", spec]
    if strategy.name == "ps":
        command += ["--policy", strategy.policy]
        command += ["--bound", str(strategy.bound)] if strategy.bound is not None else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    document: Any = json.loads(done.stdout)
    return document[0]["tokens_per_second"]


def predicted(strategy: Strategy, spec: str) -> float:
    """The same of a simulated one: the tokens of the timed steps over the time from the warm-up's end to theirs."""
    ends_s = []
    for steps in (WARM_UP, WARM_UP + STEPS):
        scenario = Scenario(workers=WORKERS, steps=steps, stragglers=spec, strategies=(strategy,))
        ends_s.append(simulate(scenario, strategy, 0).virtual_time_s)
    return STEPS * scenario.tokens_per_step / (ends_s[1] - ends_s[0])


def compare(spec: str) -> dict[str, Any]:
    """One scenario: both throughputs of every strategy, and whether their order is the same."""
    full = f"{PACE},{spec}"
    rows = {s.label: {"predicted": predicted(s, full), "measured": measured(s, full)} for s in STRATEGIES}
    for row in rows.values():
        row["error"] = row["predicted"] / row["measured"] - 1
    agree = all(
        (one["predicted"] > other["predicted"]) == (one["measured"] > other["measured"])
        for one, other in combinations(rows.values(), 2)
        if abs(one["predicted"] / other["predicted"] - 1) > TOLERANCE
    )
    return {"delays": spec, "strategies": rows, "same_order": agree}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--only", type=int, metavar="I", help="one scenario, by its place")
    arguments = parser.parse_args()
    specs = SETTINGS if arguments.only is None else SETTINGS[arguments.only : arguments.only + 1]
    found = []
    for spec in specs:
        found.append(compare(spec))
        if not arguments.json:
            print(found[-1]["delays"], "" if found[-1]["same_order"] else "ANOTHER ORDER")
            for label, row in found[-1]["strategies"].items():
                print(
                    f"  {label:12} predicted {row['predicted']:7.0f} tokens/s, "
                    f"measured {row['measured']:7.0f}: {100 * row['error']:+.1f} %",
                    flush=True,
                )
    worst = max(abs(row["error"]) for scenario in found for row in scenario["strategies"].values())
    if arguments.json:
        json.dump({"settings": found, "largest_error": worst}, sys.stdout, indent=2)
        print()
    else:
        print(f"largest error {100 * worst:.1f} %")
    return 0 if worst <= TOLERANCE and all(scenario["same_order"] for scenario in found) else 1


if __name__ == "__main__":
    sys.exit(main())
