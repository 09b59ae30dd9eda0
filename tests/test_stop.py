"""Stopping by signal: real processes, real signals."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxdp.job.stop import SAME_REQUEST_S, StopFlag
from jaxdp.run import manifest as manifests
from tests import saver

# Each prints "ready", then works in one of the ways a run can be busy, until asked to stop.
PROLOGUE = """
import hashlib, sys, time
from jaxdp.job.stop import StopFlag
def work_without_python(rounds):
    hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)  # like a compilation: C code without the interpreter's lock
with StopFlag() as stop:
    print("ready", flush=True)
"""
POLLS = """
    while not stop.requested:
        time.sleep(0.01)
    print("saved", flush=True)
sys.exit(stop.exit_code)
"""
COMPILES_A_WHILE = """
    work_without_python(2_000_000)
    assert stop.requested
    print("saved", flush=True)
sys.exit(stop.exit_code)
"""
COMPILES_FOR_EVER = """
    work_without_python(2_000_000_000)
"""
NEVER_POLLS = """
    while True:
        time.sleep(1)
"""


def start(work: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", PROLOGUE + work], stdout=-1, stderr=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("work", [POLLS, COMPILES_A_WHILE])
def test_the_first_signal_asks_and_gives_the_exit_code(work: str, number: signal.Signals, code: int):
    process = start(work)
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "saved\n")
    assert "Traceback" not in errors and number.name in errors


@pytest.mark.parametrize("work", [NEVER_POLLS, COMPILES_FOR_EVER])
@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_the_second_signal_ends_the_process_whatever_it_does(work: str, second: signal.Signals, code: int):
    process = start(work)
    process.send_signal(signal.SIGTERM)
    time.sleep(3 * SAME_REQUEST_S)
    assert process.poll() is None
    process.send_signal(second)
    out, errors = process.communicate(timeout=20)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in errors


def test_one_request_delivered_several_times_is_still_one():
    process = start(POLLS.replace("while not stop.requested:", "while not stop.requested or time.sleep(0.5):"))
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (143, "saved\n")


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs GNU timeout")
def test_the_timeout_command_lets_a_run_save():
    command = ["timeout", "2", sys.executable, "-c", PROLOGUE + POLLS]
    assert "saved" in subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_saving_lets_the_save_finish(tmp_path: Path, number: signal.Signals):
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    command = [sys.executable, saver.__file__, "stopped", str(tmp_path)]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdout.readline()  # the save of step 0 is under way
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    last = max([0, *map(int, out.split())])
    assert manifests.steps(tmp_path)[-1] == last
    manifests.verify(manifests.step_folder(tmp_path, last))
    assert [path.name for path in tmp_path.iterdir() if not path.name.isdigit()] == []


def test_the_old_handlers_and_the_wakeup_return():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads = threading.active_count()
    with StopFlag() as outer:
        with StopFlag() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert inner.requested and inner.exit_code == 143
        assert not outer
        os.kill(os.getpid(), signal.SIGINT)
    assert outer.exit_code == 130
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_other_signals_do_not_stop(monkeypatch: pytest.MonkeyPatch):
    seen = []
    old = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1] and not stop
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_off_the_main_thread_it_does_nothing():
    result = []

    def run() -> None:
        with StopFlag() as stop:
            result.append((bool(stop), stop.exit_code))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert result == [(False, None)]
    assert signal.getsignal(signal.SIGTERM) is before
