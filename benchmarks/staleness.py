"""What staleness costs: held-out loss of real runs at equal tokens, each strategy at its best rate of one grid.

    python benchmarks/staleness.py [--steps 300] [--workers 4] [--config nano]

DDP at batch/n updates as often as an asynchronous server does: the distance from it is staleness, the distance
from it to DDP the smaller batch of an update. Each run is a `jaxdp train` in a process of its own. Writes
benchmarks/results/staleness.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from jaxdp.config import load

RESULT = Path(__file__).parent / "results" / "staleness.json"
RATES = (0.001, 0.003, 0.01)
SERVER = ("--strategy", "ps")
STRATEGIES: dict[str, tuple[str, ...]] = {
    "ddp": ("--strategy", "ddp"),
    "ddp at batch/n": ("--strategy", "ddp"),
    "ps sync": (*SERVER, "--policy", "sync"),
    "ps ssp(2)": (*SERVER, "--policy", "ssp", "--bound", "2"),
    "ps async": (*SERVER, "--policy", "async"),
    "ps async, rate over staleness": (*SERVER, "--policy", "async", "--correction", "lr_over_staleness"),
    "ps async, delay compensation": (*SERVER, "--policy", "async", "--correction", "delay_compensation"),
}


def train(strategy: str, rate: float, options: argparse.Namespace) -> float | None:
    """The held-out loss in nats after the tokens of `--steps` global batches; None if the run diverged."""
    batch, steps = load([options.config]).train.global_batch, options.steps
    if strategy == "ddp at batch/n":
        batch, steps = batch // options.workers, steps * options.workers
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cli", "train", "--config", options.config, *STRATEGIES[strategy]]
        command += ["--devices", str(options.workers), "--set", f"train.global_batch={batch}", "--json", "--quiet"]
        command += ["--set", f"train.steps={steps}", "--set", f"optim.learning_rate={rate}", "--run-dir", folder]
        command += ["--set", f"optim.warmup_steps={steps // 20}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if "the loss is" in done.stderr:
            return None
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["eval_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="nano")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    print(f"held-out loss after {options.steps} global batches of {options.config}, {options.workers} workers")
    print(f"{'':32s}" + "".join(f"  rate {rate:<6g}" for rate in RATES) + "  best")
    table: dict[str, Any] = {}
    for strategy in STRATEGIES:
        losses = [train(strategy, rate, options) for rate in RATES]
        best = min((loss for loss in losses if loss is not None), default=None)
        table[strategy] = {"losses": losses, "best": best}
        print(f"{strategy:32s}" + "".join(f"  {_text(loss):11s}" for loss in losses) + f"  {_text(best)}", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    settings = {"config": options.config, "steps": options.steps, "workers": options.workers, "rates": RATES}
    RESULT.write_text(json.dumps({**settings, "strategies": table}, indent=2) + "\n")


def _text(loss: float | None) -> str:
    return "diverged" if loss is None else f"{loss:.3f}"


if __name__ == "__main__":
    main()
