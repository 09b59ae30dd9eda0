"""Puts real output into the README: python benchmarks/readme.py

Runs the command that the README shows, keeps its output in benchmarks/results/readme-bench.txt, and writes it
between the README's markers.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "readme-bench.txt"
ARGUMENTS = ["bench", "--strategy", "ddp,fsdp,ps", "--quiet"]
BLOCK = re.compile(r"(\$ jaxdp bench --strategy ddp,fsdp,ps\n).*?(\n```)", re.S)


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "cli", *ARGUMENTS, "--run-dir", f"{place}/run"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = "\n".join(line.rstrip() for line in done.stdout.replace(f"{place}/run", "runs/NAME").splitlines())
    OUTPUT.write_text(shown + "\n")
    readme = ROOT / "README.md"
    readme.write_text(BLOCK.sub(lambda found: found[1] + shown + found[2], readme.read_text(), count=1))


if __name__ == "__main__":
    main()
