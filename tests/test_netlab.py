"""The network laboratory really runs where the system allows it, and leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NETLAB = [sys.executable, str(ROOT / "benchmarks" / "netlab.py")]


@pytest.mark.slow
def test_two_hosts_train_over_a_shaped_link() -> None:
    done = subprocess.run([*NETLAB, "smoke"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert "2 hosts at 100 Mbit/s, DDP: " in done.stdout
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert "jaxdplab" not in left.stdout
    assert not list(Path("/etc/netns").glob("jaxdplab*"))
