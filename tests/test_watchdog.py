"""The watchdog: real processes without any launcher, a store that lives in rank 0 as JAX's does."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
RANKS = 3
LIMIT_S = 2.0

# A dictionary that rank 0 serves: while it is stopped calls block, and once it is dead they fail.
RANK = """
import hashlib, os, sys, threading, time
from multiprocessing.managers import BaseManager
from jaxdp.job import watchdog

rank, limit_s, address = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
kept = {}

class Store:
    def key_value_set(self, key, value, allow_overwrite=False):
        if key in kept and not allow_overwrite:
            raise ValueError(f"ALREADY_EXISTS: {key}")
        kept[key] = value
    def key_value_dir_get(self, key):
        return [(name, value) for name, value in list(kept.items()) if name.startswith(key)]

BaseManager.register("store", Store)
manager = BaseManager(address, authkey=b"test")
if rank == 0:
    threading.Thread(target=manager.get_server().serve_forever, daemon=True).start()
while True:
    try:
        manager.connect()
        break
    except (ConnectionRefusedError, FileNotFoundError):
        time.sleep(0.01)
store = manager.store()
watchdog.QUIET_LIMITS = float(sys.argv[4])
watchdog.start(rank, 3, limit_s, store)
while not watchdog._watch.latest.keys() >= ({0, 1, 2} if rank == 0 else {0}):
    time.sleep(0.01)
print("ready", flush=True)
"""
WAITS = "time.sleep(600)"


def start(room: Path, body: str, quiet_limits: float = 1000.0) -> list[subprocess.Popen[str]]:
    """The ranks, all of which have heard of each other."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK + body, str(rank), str(LIMIT_S), str(room / "socket"), str(quiet_limits)],
            cwd=ROOT,
            stdin=-1,
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for rank in range(RANKS)
    ]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    return ranks


def ends(ranks: list[subprocess.Popen[str]], *which: int) -> list[tuple[int, str]]:
    """Exit code and stderr of some ranks, which end by themselves; the others are killed then."""
    try:
        said = {rank: ranks[rank].communicate(timeout=15 * LIMIT_S)[1] for rank in which}
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [(ranks[rank].returncode, said[rank]) for rank in which]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_rank_that_is_stopped_or_dead_ends_the_others_and_is_named(tmp_path: Path, number: signal.Signals) -> None:
    ranks = start(tmp_path, WAITS)
    ranks[1].send_signal(number)
    line = rf"watchdog: rank 1 on {socket.gethostname()} gave no sign for \d\.\d s: it is dead, stopped or cut off"
    for code, said in ends(ranks, 0, 2):
        assert code == 1 and re.fullmatch(rf"{line}; ending the run\n", said)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_rank_0_that_holds_the_store_is_named_too(tmp_path: Path, number: signal.Signals) -> None:
    ranks = start(tmp_path, WAITS)
    ranks[0].send_signal(number)
    line = f"watchdog: rank 0 on {socket.gethostname()} gave no sign for "
    for code, said in ends(ranks, 1, 2):
        assert code == 1 and said.startswith(line) and len(said.splitlines()) == 1


def test_nobody_is_silent_who_computes_without_python_or_is_done(tmp_path: Path) -> None:
    body = """
if rank == 1:
    watchdog.stop()
    sys.exit()
if rank == 2:
    started = time.monotonic()
    while time.monotonic() - started < 1.5 * limit_s:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # like a compilation, without the interpreter's lock
else:
    time.sleep(1.5 * limit_s)
watchdog.stop()
"""
    assert ends(start(tmp_path, body), 0, 1, 2) == [(0, "")] * 3


@pytest.mark.slow
def test_a_job_that_is_suspended_as_a_whole_goes_on(tmp_path: Path) -> None:
    ranks = start(tmp_path, 'sys.stdin.readline()\nprint("alive", flush=True)\ntime.sleep(2 * limit_s)\n')
    for rank in ranks:
        rank.send_signal(signal.SIGSTOP)
    until(lambda: all(psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED for rank in ranks))
    suspended = time.monotonic()
    until(lambda: time.monotonic() - suspended > 2 * LIMIT_S)
    for rank in ranks:
        rank.send_signal(signal.SIGCONT)
    for rank in ranks:
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "alive\n"
    time.sleep(1.5 * LIMIT_S)
    assert all(rank.poll() is None for rank in ranks)
    ends(ranks)


def test_who_holds_up_a_run_that_makes_no_progress_is_told(tmp_path: Path) -> None:
    body = """
for step in range(5 if rank == 1 else 8):
    watchdog.progress(f"step {step} of many")
time.sleep(600)
"""
    ranks = start(tmp_path, body, quiet_limits=0.5)
    assert ranks[0].stderr is not None
    line = ranks[0].stderr.readline()
    assert "none has got further" in line
    assert line.endswith(f"rank 1 on {socket.gethostname()} is furthest behind: step 4 of many\n")
    assert all(rank.poll() is None for rank in ranks)
    ends(ranks)


def test_it_loads_no_jax_and_one_process_has_nobody_to_watch() -> None:
    code = """
import sys, threading
from jaxdp.job import watchdog
watchdog.start(0, 1, 60.0)
watchdog.start(0, 2, None)
watchdog.progress("step 1")
watchdog.stop()
assert threading.active_count() == 1 and "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env=os.environ | {"PYTHONWARNINGS": "error"})
