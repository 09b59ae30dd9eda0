"""What jaxdp's loop costs over a bare one: python benchmarks/overhead.py [--config tiny] [--devices 2] [--json]

The bare loop is what one would write by hand around the same step: its own jit of the step, batches made
beforehand, a wait at the end. jaxdp's loop makes the batches, times, and writes a record of every step. Both
take turns in one process, and the ratio is taken pair by pair. Writes benchmarks/results/overhead.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from jaxdp.config import load
from jaxdp.data.pipeline import Data, open_data
from jaxdp.mesh.devices import claim
from jaxdp.run.folder import RunFolder, open_run
from jaxdp.run.mesh_run import MeshRun

RESULT = Path(__file__).parent / "results" / "overhead.json"
TARGET_PERCENT = 2.0


def bare_loop(step: Any, state: Any, batches: list[Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    for batch in batches:
        state, metrics = step(state, batch)
    jax.block_until_ready((state, metrics))
    return state, time.perf_counter() - started


def jaxdp_loop(run: MeshRun, steps: int, folder: RunFolder) -> float:
    started = time.perf_counter()
    window = run.window(steps)
    with folder.lines("steps.jsonl") as lines:
        for record in window.records:
            lines.append(record.to_json())
    return time.perf_counter() - started


def measure(config_name: str, devices: int, steps: int, pairs: int) -> dict[str, Any]:
    config = load([config_name], [], {"strategy.name": "ddp"})
    data: Data = open_data(config)
    run = MeshRun(config, data, claim(devices))
    run.compile()
    run.start()
    step = jax.jit(run.functions.step, donate_argnums=0)
    state = run.functions.init(0)
    batches = [run.functions.put(data.batch(index)) for index in range(steps)]
    with tempfile.TemporaryDirectory() as place:
        folder = open_run(Path(place) / "run")
        state, _ = bare_loop(step, state, batches)
        jaxdp_loop(run, steps, folder)
        ratios, bare_s, jaxdp_s = [], [], []
        for pair in range(pairs):
            if pair % 2:
                jaxdp_s.append(jaxdp_loop(run, steps, folder))
                state, seconds = bare_loop(step, state, batches)
            else:
                state, seconds = bare_loop(step, state, batches)
                jaxdp_s.append(jaxdp_loop(run, steps, folder))
            bare_s.append(seconds)
            ratios.append(jaxdp_s[-1] / bare_s[-1])
        folder.release()
    return {
        "config": config_name,
        "devices": devices,
        "steps_a_window": steps,
        "pairs": pairs,
        "bare_step_s": statistics.median(bare_s) / steps,
        "jaxdp_step_s": statistics.median(jaxdp_s) / steps,
        "slower_percent": 100 * (statistics.median(ratios) - 1),
        "slower_percent_of_minima": 100 * (min(jaxdp_s) / min(bare_s) - 1),
        "slower_percent_p10_p90": [100 * (r - 1) for r in _spread(ratios)],
        "target_percent": TARGET_PERCENT,
        "jax": jax.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def _spread(values: list[float]) -> tuple[float, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="tiny")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.config, arguments.devices, arguments.steps, arguments.pairs)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"bare {found['bare_step_s'] * 1e3:.1f} ms a step, jaxdp {found['jaxdp_step_s'] * 1e3:.1f} ms: "
            f"{found['slower_percent']:+.2f} % (p10 to p90 {found['slower_percent_p10_p90'][0]:+.1f} to "
            f"{found['slower_percent_p10_p90'][1]:+.1f} %), at most {TARGET_PERCENT:g} % wanted"
        )


if __name__ == "__main__":
    main()
