"""Training throughput against PyTorch on this CPU: python benchmarks/peers.py --torch-python PATH [--json]

The same shape of model, batch and optimizer in both: 4 layers of width 256 with 8 heads and GELU, byte tokens,
16 x 256 tokens in float32 on 2 devices, AdamW and clipping; DDP and FSDP each. All four programs stay alive and
take turns, a few steps at a time, while the others wait: whatever else the machine does meets all alike.
PATH is a Python with torch (2.13.0 when this was written), in an environment of its own.

The ratios are of tokens a second, jaxdp's over PyTorch's, round by round (median, p10, p90). CPU seconds a
step are given beside them, since they bear a busy machine better than the clock does.
Writes benchmarks/results/peers.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from jaxdp.config import build

HERE = Path(__file__).parent
RESULT = HERE / "results" / "peers.json"
STRATEGIES = ("ddp", "fsdp")
DEVICES = 2
MODEL: dict[str, Any] = {
    "layers": 4,
    "width": 256,
    "heads": 8,
    "ffn": 1024,
    "context": 256,
    "vocab": 256,
    "activation": "gelu",
    "tied": False,
}
TRAIN: dict[str, Any] = {"global_batch": 16, "remat": "dots", "compute_dtype": "float32"}
TOKENS = TRAIN["global_batch"] * MODEL["context"]


@dataclass
class Peer:
    """A program that trains a few steps when asked and says how long they took."""

    name: str
    process: subprocess.Popen[str]
    step_s: list[float] = field(default_factory=list)  # the mean of each round
    cpu_s: list[float] = field(default_factory=list)

    def ask(self, steps: int) -> float:
        """Seconds a step. Raises `SystemExit` if the program has ended."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}; its messages are above")
        return json.loads(answer)["seconds"] / steps

    def round(self, steps: int) -> None:
        before = self._cpu_seconds()
        self.step_s.append(self.ask(steps))
        self.cpu_s.append((self._cpu_seconds() - before) / steps)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _cpu_seconds(self) -> float:
        top = psutil.Process(self.process.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (top, *top.children(recursive=True)))

    def result(self) -> dict[str, Any]:
        rates = sorted(TOKENS / seconds for seconds in self.step_s)
        return {
            "tokens_per_second": statistics.median(rates),
            "tokens_per_second_best": rates[-1],
            "step_time_s": _spread(self.step_s),
            "cpu_s_per_step": _spread(self.cpu_s),
        }


def start(command: list[str], name: str) -> Peer:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return Peer(name, process)


def torch_command(python: str, strategy: str) -> list[str]:
    shape = {key: MODEL[key] for key in ("layers", "width", "heads", "ffn", "context", "vocab")}
    flags = {**shape, "devices": DEVICES, "global-batch": TRAIN["global_batch"]}
    pairs = [part for key, value in flags.items() for part in (f"--{key}", str(value))]
    return [python, str(HERE / "torch_peer.py"), "--strategy", strategy, *pairs]


def serve(strategy: str) -> None:
    """jaxdp's own run of a strategy, driven by the lines of stdin; what `jaxdp bench` times is what is timed here."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jaxdp.data.pipeline import open_data
    from jaxdp.mesh.devices import claim
    from jaxdp.run.mesh_run import MeshRun

    config = build({"model": MODEL, "train": TRAIN, "strategy": {"name": strategy}})
    run = MeshRun(config, open_data(config), claim(DEVICES))
    run.compile()
    run.start()
    for line in sys.stdin:
        print(json.dumps({"seconds": run.window(int(line)).seconds}), flush=True)


def measure(torch_python: str, rounds: int, steps: int) -> dict[str, Any]:
    peers: list[Peer] = []
    try:
        for strategy in STRATEGIES:
            own = [sys.executable, __file__, "--serve", strategy]
            peers.append(start(own, f"jaxdp {strategy}"))
            peers.append(start(torch_command(torch_python, strategy), f"torch {strategy}"))
        for peer in peers:
            peer.ask(3)
        for index in range(rounds):
            for peer in peers if index % 2 == 0 else reversed(peers):
                peer.round(steps)
    finally:
        for peer in peers:
            peer.close()
    by_name = {peer.name: peer for peer in peers}
    ratios = {}
    for strategy in STRATEGIES:
        own, torch = by_name[f"jaxdp {strategy}"], by_name[f"torch {strategy}"]
        ratios[strategy] = {
            "tokens_per_second": _spread([t / j for j, t in zip(own.step_s, torch.step_s, strict=True)]),
            "tokens_per_second_best": min(torch.step_s) / min(own.step_s),
            "cpu": _spread([t / j for j, t in zip(own.cpu_s, torch.cpu_s, strict=True)]),
        }
    return {
        "model": MODEL,
        "train": TRAIN,
        "devices": DEVICES,
        "cores": os.cpu_count(),
        "load_average_at_end": os.getloadavg(),
        "rounds": rounds,
        "steps_a_round": steps,
        "programs": {peer.name: peer.result() for peer in peers},
        "jaxdp_over_torch": ratios,
        "versions": {"jax": _version(sys.executable, "jax"), "torch": _version(torch_python, "torch")},
        "date": time.strftime("%Y-%m-%d"),
    }


def _version(python: str, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _spread(values: list[float]) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive") if len(values) > 1 else values * 9
    return {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1], "n": len(values)}


def table(found: dict[str, Any]) -> str:
    lines = [f"{'program':12s} {'tokens/s':>9s} {'best':>7s} {'ms/step':>8s} {'CPU ms/step':>12s}"]
    for name, row in found["programs"].items():
        step_ms, cpu_ms = (1e3 * row[key]["median"] for key in ("step_time_s", "cpu_s_per_step"))
        rates = f"{row['tokens_per_second']:9.0f} {row['tokens_per_second_best']:7.0f}"
        lines.append(f"{name:12s} {rates} {step_ms:8.0f} {cpu_ms:12.0f}")
    for strategy, row in found["jaxdp_over_torch"].items():
        ratio, cpu = row["tokens_per_second"], row["cpu"]
        lines.append(
            f"{strategy}: {ratio['median']:.2f} of PyTorch (p10 {ratio['p10']:.2f}, p90 {ratio['p90']:.2f}; best step "
            f"over best step {row['tokens_per_second_best']:.2f}; by CPU seconds {cpu['median']:.2f})"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", help="the interpreter of an environment with torch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=3, help="steps a program takes at its turn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=STRATEGIES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve)
        return
    if not arguments.torch_python:
        parser.error("--torch-python: give the interpreter of an environment with torch")
    found = measure(arguments.torch_python, arguments.rounds, arguments.steps)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2) if arguments.json else table(found))


if __name__ == "__main__":
    main()
