"""How long the command line takes to answer: python benchmarks/startup.py [--runs 10] [--json]

The minimum of the runs of commands that should answer at once, over the time of importing what any such tool
needs (`import typer, pydantic, numpy, rich.progress`), taken in turns. Writes benchmarks/results/startup.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "startup.json"
YARDSTICK = "import typer, pydantic, numpy, rich.progress"
TARGET = 1.6
COMMANDS = {
    "refused config": ["bench", "--strategy", "ddp", "--set", "model.heads=3"],
    "sim": ["sim", "--workers", "4", "--steps", "10", "--compute-s", "0.1", "--json"],
    "check": ["check", "--config", "nano", "--strategy", "fsdp", "--devices", "8", "--json"],
}


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, check=False)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    programs = {
        "yardstick": [sys.executable, "-c", YARDSTICK],
        **{name: [str(Path(sys.executable).parent / "jaxdp"), *command] for name, command in COMMANDS.items()},
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(arguments.runs):
        for name, command in programs.items():
            times[name].append(seconds(command))
    least = {name: min(found) for name, found in times.items()}
    ratios = {name: least[name] / least["yardstick"] for name in COMMANDS}
    found = {"minimum_s": least, "ratio": ratios, "target": TARGET, "runs": arguments.runs}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for name, ratio in ratios.items():
            print(f"{name}: {least[name] * 1e3:.0f} ms, {ratio:.2f} of the yardstick (at most {TARGET})")


if __name__ == "__main__":
    main()
