"""`launch`: real processes that start, stop, fail and die together, and none of them left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from jaxdp.errors import BadInput
from jaxdp.job import device_shares
from jaxdp.job import launch as launching
from jaxdp.job.stop import SAME_REQUEST_S

ROOT = Path(__file__).parents[1]

LAUNCHER = """
import sys
from jaxdp.job.launch import Restarts, launch
command = [sys.executable, "-c", sys.argv[2]]
restarts = Restarts([*command, "again"], int(sys.argv[4]), sys.argv[5] == "elastic") if sys.argv[4:] else None
options = {"devices_per_process": 1, "stall_timeout_s": float(sys.argv[3]), "port": None, "restarts": restarts}
sys.exit(launch(command, int(sys.argv[1]), **options))
"""
# What every toy rank begins with. `meet` returns when all ranks have come; each says who it is on stderr.
RANK = """
import os, signal, socket, subprocess, sys, time
rank, ranks = int(os.environ.get("JAXDP_PROCESS_ID", 0)), int(os.environ.get("JAXDP_PROCESSES", 1))
from pathlib import Path
room = Path(os.environ["ROOM"])
def come(name):
    (room / f"{name}.new{rank}").write_text(str(os.getpid()))
    (room / f"{name}.new{rank}").rename(room / f"{name}{rank}")
def meet(name):
    come(name)
    while not all((room / f"{name}{other}").exists() for other in range(ranks)):
        time.sleep(0.01)
"""
SLEEPS = """
meet("here")
time.sleep(600)
"""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    return tmp_path


def start(room: Path, ranks: int, body: str, stall_timeout_s: float = 60.0, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHER, str(ranks), RANK + body, str(stall_timeout_s), *more]
    environment = os.environ | {"ROOM": str(room), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)


def run(room: Path, ranks: int, body: str, stall_timeout_s: float = 60.0, *more: str) -> tuple[int, str, str]:
    with start(room, ranks, body, stall_timeout_s, *more) as process:
        out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def wait_for(room: Path, *names: str) -> list[int]:
    """The ids of the processes that have come under these names."""
    until(lambda: all((room / name).exists() for name in names))
    return [int((room / name).read_text()) for name in names]


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_ended(processes: list[int]) -> None:
    until(lambda: not any(map(runs, processes)))


def runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_each_rank_gets_its_place_and_rank_0_alone_is_heard(room: Path) -> None:
    body = """
meet("here")
names = ("JAXDP_COORDINATOR", "JAXDP_STALL_TIMEOUT_S", "JAX_NUM_CPU_DEVICES")
(room / f"told{rank}").write_text(" ".join(os.environ[name] for name in names))
print("document", rank)
print("progress", rank, file=sys.stderr)
"""
    assert run(room, 3, body) == (0, "document 0\n", "progress 0\n")
    told = [(room / f"told{rank}").read_text() for rank in range(3)]
    assert len(set(told)) == 1
    address, stall, devices = told[0].split()
    assert (address.startswith("127.0.0.1:"), stall, devices) == (True, "60", "1")


def test_a_single_process_has_nobody_to_join(room: Path) -> None:
    body = 'print([name for name in os.environ if name.startswith("JAXDP_")])'
    assert run(room, 1, body)[:2] == (0, "[]\n")


@pytest.mark.parametrize("failing", [0, 2])
def test_one_failure_ends_all_and_its_code_and_last_words_are_told(room: Path, failing: int) -> None:
    body = f"""
meet("here")
if rank == {failing}:
    print("the reason", file=sys.stderr)
    sys.exit(7)
time.sleep(600)
"""
    code, out, errors = run(room, 3, body)
    assert (code, out) == (7, "")
    assert f"rank {failing} " in errors and "exit code 7; ended the 2 other(s)" in errors
    assert errors.count("the reason") == 1
    assert_ended(wait_for(room, "here0", "here1", "here2"))


def test_what_all_refuse_alike_is_told_by_rank_0_alone(room: Path) -> None:
    body = """
meet("here")
print("error: not like this", file=sys.stderr)
sys.exit(3)
"""
    assert run(room, 3, body) == (3, "", "error: not like this\n")


def test_a_rank_that_was_killed_is_the_cause_though_its_peers_fail_of_it_sooner(room: Path) -> None:
    body = """
meet("here")
if rank == 1:
    meet_again = lambda: all((room / f"gone{other}").exists() for other in (0, 2))
    while not meet_again():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
come("gone")
print("peer closed", file=sys.stderr)
sys.exit(1)
"""
    code, _, errors = run(room, 3, body)
    assert code == 128 + signal.SIGKILL
    assert errors.splitlines()[1].startswith("launch: rank 1 ") and "SIGKILL" in errors
    assert "rank 2| peer closed" in errors


def test_the_last_words_are_bounded_whatever_a_rank_says(room: Path) -> None:
    body = """
if rank == 1:
    sys.stdout.write("x" * 10_000_000 + "\\n" * 10_000 + "the end")
    sys.exit(5)
"""
    code, _, errors = run(room, 2, body)
    assert code == 5 and "rank 1| the end" in errors
    assert len(errors) < launching.TAIL_LINES * launching.TAIL_LINE_BYTES + 1000


def test_a_rank_that_ignores_sigterm_is_killed_with_all_it_started(room: Path) -> None:
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(room / f"child{rank}").write_text(str(child.pid))
meet("here")
if rank == 1:
    sys.exit(9)
time.sleep(600)
"""
    code, _, _ = run(room, 2, body)
    assert code == 9
    assert_ended(wait_for(room, "here0", "here1", "child0", "child1"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_request_to_stop_reaches_every_rank_once_and_they_save(room: Path, number: int, code: int) -> None:
    body = """
from jaxdp.job.stop import StopFlag
with StopFlag() as stop:
    meet("here")
    while not stop:
        time.sleep(0.01)
    meet("stopping")
    time.sleep(0.5)  # a second signal would end it in this time
    (room / f"saved{rank}").touch()
sys.exit(stop.exit_code)
"""
    process = start(room, 3, body)
    wait_for(room, "here0", "here1", "here2")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert all((room / f"saved{rank}").exists() for rank in range(3))
    assert errors.count("saving and stopping") == 1 and "rank" not in errors and "launch: stopped by" in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_request_ends_all_at_once(room: Path, number: int) -> None:
    body = """
signal.signal(signal.SIGTERM, lambda *_: come("asked"))
signal.signal(signal.SIGINT, lambda *_: come("asked"))
meet("here")
while True:
    time.sleep(600)
"""
    process = start(room, 2, body)
    ranks = wait_for(room, "here0", "here1")
    process.send_signal(number)
    wait_for(room, "asked0", "asked1")
    time.sleep(3 * SAME_REQUEST_S)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert_ended(ranks)


def test_ranks_that_do_not_stop_together_are_ended_after_the_stall_timeout(room: Path) -> None:
    body = """
if rank == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
meet("here")
time.sleep(600)
"""
    process = start(room, 2, body, stall_timeout_s=2.0)
    ranks = wait_for(room, "here0", "here1")
    process.terminate()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 143 and "rank 1 " in errors
    assert_ended(ranks)


def test_nothing_outlives_a_launcher_that_is_killed(room: Path) -> None:
    body = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(room / f"child{rank}").write_text(str(child.pid))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
meet("here")
time.sleep(600)
"""
    process = start(room, 2, body)
    processes = wait_for(room, "here0", "here1", "child0", "child1")
    processes += [each.pid for each in psutil.Process(process.pid).children()]  # its reaper too
    process.kill()
    process.communicate(timeout=30)
    assert_ended(processes)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_within_the_stall_timeout(room: Path, victim: int) -> None:
    process = start(room, 2, SLEEPS, stall_timeout_s=2.0)
    ranks = wait_for(room, "here0", "here1")
    os.kill(ranks[victim], signal.SIGSTOP)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"rank {victim} (process {ranks[victim]}) has been stopped" in errors
    assert_ended(ranks)


def test_a_rank_stopped_for_a_moment_goes_on(room: Path) -> None:
    process = start(room, 2, 'meet("here")\nwhile not (room / "go").exists(): time.sleep(0.01)', stall_timeout_s=60.0)
    ranks = wait_for(room, "here0", "here1")
    os.kill(ranks[1], signal.SIGSTOP)
    until(lambda: psutil.Process(ranks[1]).status() == psutil.STATUS_STOPPED)
    os.kill(ranks[1], signal.SIGCONT)
    (room / "go").touch()
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("body", "more", "code", "out", "said"),
    [
        # The rank that died takes its devices along, until one is left.
        ("die = rank == 1", ("2", "elastic"), 0, "['again'] 1", ["restarts with 2", "restarts with 1"]),
        ("die = rank == 1", ("1", "elastic"), 137, "", ["restarts with 2", "rank 1"]),
        ("die = rank == 1 and not again", ("1", "fixed"), 0, "['again'] 3", ["restarts with 3"]),
        # What the program decides is no death, and is not asked again.
        ("sys.exit(1)", ("2", "fixed"), 1, "", []),
        ("sys.exit(3)", ("2", "elastic"), 3, "", []),
        # A number of ranks that the resumed run refuses is made smaller.
        (
            "die = rank == 1 and ranks == 3\nif ranks == 2: sys.exit(3)",
            *(("1", "elastic"), 0, "['again'] 1", ["with 2", "with 1"]),
        ),
    ],
)
def test_after_a_death_the_job_comes_back(
    body: str, more: tuple[str, ...], code: int, out: str, said: list[str], room: Path
) -> None:
    lines = ("", "again = sys.argv[1:] == ['again']", body, "if die: os.kill(os.getpid(), signal.SIGKILL)")
    others = (
        "if ranks > 1 and not again or die: time.sleep(600)" if "again" in body else "if ranks > 1: time.sleep(600)"
    )
    done = run(room, 3, "\n".join((*lines, others, "if rank == 0: print(sys.argv[1:], ranks)\n")), 60.0, *more)
    assert (done[0], done[1].strip()) == (code, out), done[2]
    assert all(line in done[2] for line in said) and done[2].count("restarts with") == len(
        [s for s in said if "with" in s]
    )


def test_a_busy_port_is_named_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(BadInput, match=f"--port {port}: is taken by another process; leave --port out"):
            launching.checked_port(port)
    assert launching.checked_port(port) == port


def test_too_many_processes_are_refused() -> None:
    with pytest.raises(BadInput, match="--devices-per-process"):
        launching.launch(["true"], 65, devices_per_process=1, stall_timeout_s=60.0, port=None)


@pytest.mark.parametrize(
    ("visible", "processes", "devices", "expected"),
    [
        ("0,1,2,3", 2, 1, ["0", "1"]),
        ("4,5,6,7", 2, 2, ["4,5", "6,7"]),
        ("GPU-a,MIG-b", 2, 1, ["GPU-a", "MIG-b"]),
        ("0,-1,2", 1, 1, ["0"]),  # as CUDA reads it: -1 ends the list
    ],
)
def test_gpus_are_dealt_out_by_rank(
    monkeypatch: pytest.MonkeyPatch, visible: str, processes: int, devices: int, expected: list[str]
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    shares = device_shares.device_shares(processes, devices)
    assert shares == [{"CUDA_VISIBLE_DEVICES": names} for names in expected]


def test_more_ranks_than_gpus_are_refused_and_a_host_without_any_uses_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(BadInput, match=r"-n 3: .* 2 visible here"):
        device_shares.device_shares(3, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_shares.device_shares(2, 3) == [{"JAX_NUM_CPU_DEVICES": "3"}] * 2


def test_gpus_are_found_by_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: H (UUID: GPU-a)'\necho '  MIG 1g (UUID: MIG-b)'\necho 'GPU 1: H'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_shares.visible_gpus() == ["0", "1"]


BAD = [
    (("-n", "2", "bench", "--strategy", "fsdp"), "after --"),
    (("-n", "2"), "after --"),
    (("-n", "2", "--"), "after --"),
    (("-n", "2", "--", "frob"), "frob"),
    (("-n", "2", "--", "sim"), "known: bench, train"),
    (("-n", "2", "--", "launch", "-n", "2", "--", "bench"), "launch does not run"),
    (("-n", "2", "--", "bench", "--processes=3"), "--processes=3 is what launch gives"),
    (("-n", "0", "--", "bench"), "--processes"),
    (("--", "bench"), "--processes"),
    (("-n", "2", "--stall-timeout", "0.5", "--", "bench"), "--stall-timeout"),
    (("-n", "2", "--max-restarts", "1", "--", "bench"), "needs train with --run-dir"),
    (("-n", "2", "--elastic", "--", "train"), "--max-restarts"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "cli", "launch", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert told in done.stderr


def cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "cli", "launch", "-n", "2", "--", *words, "--config", "nano"]


@pytest.mark.slow
def test_a_bench_prints_one_document_for_all_its_processes(tmp_path: Path) -> None:
    words = ("bench", "--strategy", "ddp", "--steps", "4", "--json", "--run-dir", str(tmp_path / "run"))
    done = subprocess.run(cli(*words), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)
    assert (document["devices"], document["strategy"]) == (2, "ddp")


@pytest.mark.slow
def test_a_training_run_stops_saves_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train = cli("train", "--strategy", "fsdp", "--run-dir", str(folder), "--resume", "auto", "--json")
    process = subprocess.Popen([*train, "--set", "train.steps=100000"], cwd=ROOT, stdout=-1, stderr=-1, text=True)
    steps = folder / "steps.jsonl"
    until(lambda: steps.exists() and steps.read_text().count("\n") > 3, timeout_s=120)
    process.terminate()
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    stopped = json.loads(out)
    assert stopped["stopped"] and stopped["checkpoint_step"] == stopped["step"] >= 3
    more = ["--set", "train.steps=100000", "--steps", str(stopped["step"] + 2)]
    done = subprocess.run([*train, *more], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed_from"] == stopped["step"]


@pytest.mark.slow
def test_training_survives_ranks_that_are_killed_and_stopped() -> None:
    """One of each; ten of each, with and without a launcher, are that script's campaign."""
    script = ROOT / "benchmarks" / "rank_faults.py"
    command = [sys.executable, str(script), "--each", "1", "--way", "launch", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout):
        assert row["named_by"] and row["left"] == 0 and 0 not in row["exit_codes"], row
        assert row["resumed_from"] == row["newest_checkpoint"], row
