"""One run over many processes: the losses of one process, one voice, one end for all, and checkpoints that move."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.job import rendezvous
from jaxdp.job.agreement import refuse_differences
from jaxdp.job.attribution import attribute_lateness
from jaxdp.job.processes import gather, on_first
from jaxdp.job.rendezvous import Refusal, parse_address
from jaxdp.job.scheduler import find_job
from jaxdp.job.stop import StopFlag
from jaxdp.job.xla_flags import refuse_bad_flags
from jaxdp.mesh.devices import host_groups
from jaxdp.strategies.rows import mesh_strategies
from tests.processes import PATIENCE_S, Done, Rank, finish, free_port, run, started

TOLERANCE = 1e-5
# Small, and with dropout: masks belong to sequences, wherever they are computed.
SMALL = (
    *("--set", "model.layers=2", "--set", "model.width=32", "--set", "model.heads=4", "--set", "model.ffn=64"),
    *("--set", "model.context=16", "--set", "model.dropout=0.1", "--set", "data.corpus=synthetic"),
    *("--set", "train.global_batch=16", "--set", "strategy.min_shard_bytes=0", "--quiet"),
)


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def told(done: list[Done]) -> list[str]:
    """Every line on any rank's stderr, in order of the ranks."""
    return [line for each in done for line in each.errors.splitlines()]


# What a job is, before JAX.


@pytest.mark.parametrize(
    ("coordinator", "processes", "process_id", "said"),
    [
        ("here:1234", None, 0, "--processes"),
        (None, 2, None, "--coordinator"),
        ("here", 2, 0, "HOST:PORT"),
        ("here:port", 2, 0, "HOST:PORT"),
        ("here:99999", 2, 0, "HOST:PORT"),
        ("here:1234", 1, 0, "at least 2"),
        ("here:1234", 2, 2, "0 to 1"),
        ("here:1234", 2, -1, "0 to 1"),
    ],
)
def test_an_impossible_job_is_refused(coordinator: str, processes: int, process_id: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        find_job(coordinator, processes, process_id)


def test_addresses() -> None:
    assert parse_address("node-1:8476") == ("node-1", 8476)
    assert str(parse_address("[::1]:8476")) == "[::1]:8476"
    assert parse_address("127.0.0.1:1").bind.host == "127.0.0.1" and parse_address("node-1:1").bind.host == ""


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[3-4]",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.1:4000",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "29500",
}
LAUNCHERS = (
    *("SLURM_", "OMPI_", "PMI_", "MPI_", "MV2_", "FLUX_", "KUBERNETES_", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_", "MASTER_", "TORCHELASTIC_"),
)


def start_as(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a launcher that sets these variables starts it."""
    for name in [name for name in os.environ if name.startswith((*LAUNCHERS, "CUDA_"))]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "processes", "process_id", "local_devices"),
    [
        ({}, 1, 0, None),
        (SLURM, 4, 3, (1,)),
        ({**SLURM, "CUDA_VISIBLE_DEVICES": "0"}, 4, 3, None),
        # One process a host sees all of its devices.
        ({**SLURM, "SLURM_STEP_NUM_NODES": "4", "SLURM_LOCALID": "0"}, 4, 3, None),
        # An allocation's own shell is one process, whatever was allocated.
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 1, 0, None),
        ({key: SLURM[key] for key in ("SLURM_JOB_ID", "SLURM_NTASKS")}, 1, 0, None),
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 1, 0, None),
        (OPEN_MPI, 2, 1, None),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2, 1, (0,)),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, 1, 0, None),
        (TORCHRUN, 4, 3, (1,)),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, 4, 3, None),
        # srun starts torchrun, one a host, and mpirun its daemons.
        ({**SLURM, **TORCHRUN, **dict.fromkeys(("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), "2"), "SLURM_PROCID": "1",
          "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, 4, 3, (1,)),
        ({**OPEN_MPI, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3", "SLURM_PROCID": "2"}, 2, 1, None),
        # What one launcher leaves out another one says, and half of what is said already is no harm.
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}, 4, 3, (1,)),
        ({**SLURM, "WORLD_SIZE": "4"}, 4, 3, (1,)),
        ({**SLURM, "RANK": "3", "WORLD_SIZE": "4"}, 4, 3, (1,)),
        # A run of one.
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, 1, 0, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 1, 0, None),
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "2"}, 1, 0, None),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "first:1234"}, 2, 1, None),
    ],
)  # fmt: skip
def test_the_schedulers_job_is_taken(
    variables: dict[str, str],
    processes: int,
    process_id: int,
    local_devices: tuple[int, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start_as(variables, monkeypatch)
    job = find_job(None, None, None)
    assert (job.processes, job.process_id, job.local_device_ids) == (processes, process_id, local_devices)


@pytest.mark.parametrize(
    ("variables", "coordinator", "address"),
    [
        (SLURM, None, "node3:61447"),
        ({**SLURM, "SLURM_STEP_NODELIST": "rack[2,4]n[007-9]x,other", "SLURM_STEP_ID": "1"}, None, "rack2n007x:61448"),
        (OPEN_MPI, None, "10.0.0.1:61441"),
        ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "4096.0;tcp6://[fe80::1,fe80::2]:4"}, None, "[fe80::1]:61441"),
        (TORCHRUN, None, "first:29500"),
        # torchrun's own store may listen on its port.
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, None, "first:29501"),
        (TORCHRUN, "other:1", "other:1"),
        (MPICH, "first:29400", "first:29400"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "first:29400", "first:29400"),
    ],
)
def test_where_a_launchers_processes_meet(
    variables: dict[str, str], coordinator: str | None, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_as(variables, monkeypatch)
    assert str(find_job(coordinator, None, None).address) == address


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4 without OMPI_COMM_WORLD_RANK"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "Open MPI started 4 .* --coordinator"),
        ({"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE='x'"),
        ({**SLURM, "SLURM_PROCID": "4"}, "SLURM_PROCID=4, SLURM_STEP_NUM_TASKS=4"),
        ({**SLURM, "SLURM_PROCID": "abc"}, "SLURM_PROCID='abc'"),
        ({**SLURM, "SLURM_LOCALID": "q"}, "SLURM_LOCALID='q'"),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_PROCID=1 without SLURM_STEP_NUM_TASKS"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK='x'"),
        ({**OPEN_MPI, "OMPI_MCA_orte_hnp_uri": "junk"}, "OMPI_MCA_orte_hnp_uri='junk'"),
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "SLURM_NTASKS=1, SLURM_STEP_NUM_TASKS=4"),
        (MPICH, "MPICH or Intel MPI started 2 .* --coordinator"),
        ({"PMI_RANK": "0"}, "PMI_RANK=0 without PMI_SIZE"),
        ({"PMI_RANK": "-1", "PMI_SIZE": "2"}, "PMI_RANK='-1'"),
        ({"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH started 2"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, "Flux started 2"),
        ({"RANK": "1"}, "RANK=1 without WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 without RANK"),
        ({**TORCHRUN, "MASTER_ADDR": ""}, "torchrun started 4 .* MASTER_ADDR and MASTER_PORT"),
        ({**TORCHRUN, "MASTER_PORT": "99999"}, "MASTER_ADDR, MASTER_PORT first:99999"),
        ({**TORCHRUN, **MPICH}, "torchrun .RANK=3, WORLD_SIZE=4., but MPICH or Intel MPI .PMI_RANK=1, PMI_SIZE=2."),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "4"}, "contradict each other"),
        ({**SLURM, "WORLD_SIZE": "8"}, "WORLD_SIZE=8 without RANK"),
    ],
)
def test_a_scheduler_that_tells_half_is_refused(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of its processes would be a run of its own."""
    start_as(variables, monkeypatch)
    with pytest.raises(BadInput, match=words):
        find_job(None, None, None)


@pytest.mark.parametrize(
    ("step", "warned"), [({}, True), ({"SLURM_STEP_ID": "4294967290"}, True), ({"SLURM_STEP_ID": "0"}, False)]
)
def test_slurms_nodes_that_are_left_idle_are_told_of(
    step: dict[str, str], warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not where srun was asked for the one process, as for a driver of Ray."""
    start_as({"SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0", **step}, monkeypatch)
    find_job(None, None, None).join()
    assert ["2 nodes" in line and "srun" in line for line in caplog.messages] == [True] * warned


def test_what_processes_must_have_alike_is_refused_by_name() -> None:
    refuse_differences([{"a": 1, "b": None}] * 3)
    with pytest.raises(BadInput, match=r"train.seed: 0 \(process 0, 2\), 1 \(process 1\); start"):
        refuse_differences([{"train.seed": seed, "same": 1} for seed in (0, 1, 0)])
    with pytest.raises(BadInput, match=r"XLA_FLAGS: not set \(process 0\), --a=1 \(process 1\)"):
        refuse_differences([{"XLA_FLAGS": None}, {"XLA_FLAGS": "--a=1"}])
    with pytest.raises(BadInput, match=r"k0: .*; and in k4, k5; start"):
        refuse_differences([{f"k{key}": rank for key in range(6)} for rank in (0, 1)])


def test_a_single_process_agrees_with_itself() -> None:
    assert gather({"a": 1}) == [{"a": 1}]
    assert on_first(lambda: 3) == 3
    with find_job(None, None, None) as job:
        job.join()
    assert not job.joined


# The rendezvous.


def meet_all(*ranks: Callable[[rendezvous.Address], Refusal | None]) -> list[Refusal | JaxdpError | None]:
    address = rendezvous.Address("127.0.0.1", free_port())

    def call(rank: Callable[[rendezvous.Address], Refusal | None]) -> Refusal | JaxdpError | None:
        try:
            return rank(address)
        except JaxdpError as error:
            return error

    with ThreadPoolExecutor() as pool:
        return list(pool.map(call, ranks))


def rank(processes: int, process_id: int, own: Refusal | None = None, timeout_s: float = 30.0) -> Any:
    return lambda address: rendezvous.meet(address, processes, process_id, timeout_s, own)


def test_all_meet_and_hear_the_first_refusal() -> None:
    assert meet_all(rank(3, 0), rank(3, 1), rank(3, 2)) == [None] * 3
    assert meet_all(rank(2, 0, Refusal("no", 3)), rank(2, 1, Refusal("other", 2))) == [Refusal("no", 3)] * 2
    (first, second) = meet_all(rank(2, 0), rank(2, 1, Refusal("no disk", 2)))
    assert first == second and first is not None and not isinstance(first, JaxdpError)
    assert re.fullmatch("process 1 on .*: no disk", first.message) and first.exit_code == 2


def test_who_is_missing_is_named() -> None:
    found = meet_all(rank(3, 0, timeout_s=1), rank(3, 2))
    assert found[0] == found[1] and "process 1 of 3 did not come" in str(found[0])
    (alone,) = meet_all(rank(2, 1, timeout_s=1))
    assert isinstance(alone, JaxdpError) and "process 0 was not reached" in str(alone)


def test_two_of_a_kind_and_unlike_counts_are_named() -> None:
    assert "two processes" in str(meet_all(rank(3, 0, timeout_s=3), rank(3, 1), rank(3, 1))[0])
    assert "--processes 4" in str(meet_all(rank(2, 0), rank(4, 1))[0])


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"process_id": "x"}\n', b"[" * 10_000 + b"\n"])
def test_a_stranger_on_the_port_is_ignored(said: bytes) -> None:
    def stranger(address: rendezvous.Address) -> None:
        while True:
            try:
                with socket.create_connection(address) as connection:
                    connection.sendall(said)
                    return
            except ConnectionRefusedError:
                time.sleep(0.01)

    def late(address: rendezvous.Address) -> Refusal | None:
        stranger(address)
        return rank(2, 1)(address)

    assert meet_all(rank(2, 0), late) == [None, None]


def test_waiting_ends_when_asked_to_stop() -> None:
    for process_id in (0, 1):
        with pytest.raises(JaxdpError, match="stopped while waiting"):
            rendezvous.meet(rendezvous.Address("127.0.0.1", free_port()), 2, process_id, 600, None, stop=True)
    flag = StopFlag()
    flag._own_code = 143
    with pytest.raises(JaxdpError) as stopped:
        rendezvous.meet(rendezvous.Address("127.0.0.1", free_port()), 2, 1, 600, None, stop=flag)
    assert stopped.value.exit_code == 143


def test_a_busy_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy, pytest.raises(BadInput, match="choose a free one"):
        rank(2, 0)(rendezvous.Address("127.0.0.1", busy.getsockname()[1]))


def test_a_flag_that_is_agreed_on_asks_only_until_somebody_stops() -> None:
    answers = iter([None, 143])
    flag = StopFlag(lambda own: next(answers))
    assert not flag and flag.exit_code is None
    assert flag.requested and flag.exit_code == 143 and flag.requested


# Where the devices are, and who is late.


def devices(*processes: int) -> Any:
    return [SimpleNamespace(process_index=process) for process in processes]


def test_shard_groups_lie_within_a_host() -> None:
    assert host_groups(devices(0, 0, 1, 1), ["a", "a"]) == 1
    assert host_groups(devices(0, 0, 1, 1), ["a", "b"]) == 2
    assert host_groups(devices(0, 1, 2, 3), ["a", "a", "b", "b"]) == 2
    assert host_groups(devices(0, 0, 0, 0, 1, 1), ["a", "b"]) == 3  # pairs


def test_who_is_late_is_told_with_what_it_costs() -> None:
    """Rank 1 takes .3 s; the others .1 s, but in one step in four rank 0 takes .5 s. Steps take .35 s."""
    arrivals_s = [(0.1, 0.3, 0.1), (0.1, 0.3, 0.1), (0.5, 0.3, 0.1), (0.1, 0.3, 0.1)]
    found = attribute_lateness(arrivals_s, ["a boot", "b boot", "c boot"], 0.35)
    rows = found["rows"]
    assert [row["host"] for row in rows] == ["a", "b", "c"]
    assert [row["slowdown"] for row in rows] == pytest.approx([1, 3, 1])
    assert [row["last_share"] for row in rows] == [0.25, 0.75, 0]
    assert [row["waited_s"] for row in rows] == pytest.approx([0.15, 0.05, 0.25])
    # Without rank 1 the last one comes at .1, .1, .5, .1 instead of .3, .3, .5, .3.
    assert found["slowest"] == 1
    assert found["gain_if_repaired"] == pytest.approx(0.35 / 0.2)
    assert found["gain_if_dropped"] == pytest.approx(0.35 / 0.2 * 2 / 3)


@pytest.mark.slow
def test_the_rank_that_straggles_is_found(tmp_path: Path) -> None:
    """Two devices a rank; one of rank 1's takes three times the others' pace."""
    done = run(
        *(2, "bench", *SMALL, "--strategy", "ddp", "--devices", "4", "--steps", "5", "--json", "--trace"),
        *("--attribute-stragglers", "--stragglers", "pace(seconds=0.3),persistent(worker=3,factor=3)"),
        *("--run-dir", str(tmp_path / "run")),
        folder=tmp_path,
    )
    assert [each.code for each in done] == [0, 0], told(done)
    (found,) = json.loads(done[0].out)
    assert found["intended_step_s"] == pytest.approx([0.3, 0.3, 0.3, 0.9])
    rows = found["ranks"]["rows"]
    assert found["ranks"]["slowest"] == 1 and rows[1]["last_share"] == 1 and rows[1]["waited_s"] == 0
    assert rows[1]["arrival_s"]["median"] >= 0.9 and rows[0]["arrival_s"]["median"] < 0.9
    assert 1 < found["ranks"]["gain_if_repaired"] < 3.5
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {1, 2, 3, 4}


# Whole runs.


def test_two_processes_bench_with_one_voice(tmp_path: Path) -> None:
    first, second = run(
        *(2, "bench", "--config", "nano", *SMALL, "--strategy", "ddp", "--steps", "3", "--warmup", "1", "--json"),
        *("--run-dir", str(tmp_path / "run")),
        folder=tmp_path,
    )
    assert (first.code, second.code) == (0, 0), first.errors + second.errors
    assert (second.out, second.errors, first.errors) == ("", "", "")
    (found,) = json.loads(first.out)
    assert found["devices"] == 2 and len(rows(tmp_path / "run")) == 4
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == found
    assert json.loads((tmp_path / "run" / "run.json").read_text())["processes"] == 2
    for index in (0, 1):
        log = (tmp_path / "run" / "logs" / f"process-{index:05d}.log").read_text()
        assert f"process {index} of 2" in log and "devices" in log and log.rstrip().endswith("ended")


def test_a_refusal_is_told_once_and_ends_all(tmp_path: Path) -> None:
    """Here process 1 alone has what is wrong; the folder that was there stays."""
    done = run(2, "bench", "--strategy", "fsdp", "--devices", "6", *SMALL, folder=tmp_path)
    assert [each.code for each in done] == [3, 3]
    assert len(told(done)) == 1 and "batch_undivided" in told(done)[0]
    done = run(2, "bench", "--strategy", "ps", *SMALL, folder=tmp_path)
    assert [each.code for each in done] == [2, 2]
    assert len(told(done)) == 1 and "--engine ray" in told(done)[0]


@pytest.mark.parametrize(
    ("address", "said"), [("127.0.0.1:{port}", "refused"), ("nowhere.invalid:6379", "no Ray"), ("here", "HOST:PORT")]
)
def test_a_ray_cluster_that_is_not_there_is_told_at_once(address: str, said: str, tmp_path: Path) -> None:
    """Ray itself asks on for a quarter of an hour."""
    pytest.importorskip("ray")
    address = address.format(port=free_port())
    command = [sys.executable, "-m", "cli", "bench", *SMALL, "--strategy", "ps", "--engine", "ray", "--workers", "2"]
    command += ["--address", address, "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1
    assert address in done.stderr and said in done.stderr


BAD_FLAGS = [
    ("\u2013xla_dump_to=/tmp/x", "two hyphens"),
    ("xla_dump_to=/tmp/x", "does not begin with --"),
    ("--xla_dump_to=/tmp/x \u2013xla_b=1", "two hyphens"),
    ("--xla_gpu_of_another_version=true --xla_b=1", "knows no --xla_gpu_of_another_version=true --xla_b=1"),
    ("--xla_gpu_enable_latency_hiding_scheduler=maybe", "maybe is no value of xla_gpu_enable_latency_hiding_scheduler"),
]


@pytest.mark.parametrize(("flags", "said"), BAD_FLAGS, ids=[said for _, said in BAD_FLAGS])
def test_what_xla_cannot_read_is_told_in_a_line(flags: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA itself aborts, with all its flags printed."""
    monkeypatch.setenv("XLA_FLAGS", flags)
    with pytest.raises(BadInput, match=said):
        refuse_bad_flags()


def test_what_xla_can_read_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    for flags in ("", "--xla_dump_to='/tmp/a b' --xla_cpu_enable_fast_math"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        refuse_bad_flags()


@pytest.mark.parametrize(
    ("platform", "said"), [("cuda", "pip install"), ("gup", "not in the list"), ("tpu,cpu", "tpu")]
)
def test_a_platform_that_is_not_here_is_told_in_a_line(platform: str, said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "bench", *SMALL, "--run-dir", str(tmp_path / "run")]
    environment = os.environ | {"JAX_PLATFORMS": platform}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
    if done.returncode == 0:
        pytest.skip(f"{platform} is here")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"JAX_PLATFORMS={platform}" in done.stderr and said in done.stderr


@pytest.mark.parametrize("when", ["starting", "compiling"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_ends_at_once_without_a_crash(when: str, number: signal.Signals, tmp_path: Path) -> None:
    """XLA crashes if Python raises in its compilation."""
    command = [sys.executable, "-m", "cli", "bench", "--config", "small", "--run-dir", str(tmp_path / "run")]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        if when == "compiling":
            while not (tmp_path / "run").exists():  # claimed just before the run is made
                time.sleep(0.05)
            time.sleep(1.0)
        else:
            time.sleep(0.1)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (128 + number, -number) and errors == ""
    assert when == "starting" or process.returncode == 128 + number


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 2])
def test_survivors_name_the_process_that_was_killed(victim: int, tmp_path: Path) -> None:
    """Whether their collective fails at once or waits."""
    folder = tmp_path / "run"
    arguments = ("train", *SMALL, "--set", "train.steps=100000", "--set", "train.global_batch=18")
    arguments = (*arguments, "--strategy", "ddp", "--run-dir", str(folder), "--stall-timeout", "10")
    with started(3, *arguments, folder=tmp_path) as ranks:
        wait_for_rows(folder, 20, ranks)
        ranks[victim].process.kill()
        done = finish(ranks)
    for index, survivor in enumerate(done):
        if index != victim:
            assert survivor.code == 1 and "unexpected" not in survivor.errors
            assert f"rank {victim} on" in survivor.errors or f"process {victim} on" in survivor.errors


def test_processes_that_were_started_differently_train_nothing(tmp_path: Path) -> None:
    """Of the environment only what a process keeps for itself may differ."""
    own = (
        ("--seed", "1", "--set", "optim.learning_rate=1e-3", "--warmup", "1"),
        ("--seed", "2", "--set", "optim.learning_rate=2e-3", "--warmup", "2"),
    )
    with started(2, "bench", *SMALL, "--run-dir", str(tmp_path / "run"), folder=tmp_path, own=own) as ranks:
        done = finish(ranks)
    assert [each.code for each in done] == [2, 2]
    (line,) = told(done)
    assert all(key in line for key in ("train.seed: 1 (process 0), 2", "optim.learning_rate", "--warmup"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_folder_that_holds_another_run_ends_all_alike(tmp_path: Path) -> None:
    held = tmp_path / "run"
    held.mkdir()
    (held / "run.json").write_text("{}")
    done = run(2, "train", "--strategy", "ddp", "--run-dir", str(held), *SMALL, folder=tmp_path)
    assert [each.code for each in done] == [2, 2]
    assert len(told(done)) == 1 and "holds another run" in told(done)[0]
    assert [path.name for path in held.iterdir()] == ["run.json"]


BENCH = ("bench", *SMALL, "--strategy", ",".join(mesh_strategies()), "--steps", "6", "--devices", "4", "--json")
BENCH = (*BENCH, "--set", "train.accumulation=2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """All strategies in one process: its folder and its document."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    command = [sys.executable, "-m", "cli", *BENCH, "--run-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_the_losses_are_those_of_one_process(processes: int, alone: Any, tmp_path: Path) -> None:
    """All strategies, accumulation included; hosts of two processes each, so that HSDP has its groups."""
    folder, document = alone
    hosts = ["a", "b"] if processes == 2 else ["a", "b", "a", "b"]
    done = run(processes, *BENCH, "--run-dir", str(tmp_path / "many"), folder=tmp_path, hosts=hosts)
    assert [each.code for each in done] == [0] * processes, told(done)
    for found, expected in zip(json.loads(done[0].out), document, strict=True):
        name = found["strategy"]
        for key in ("loss", "grad_norm"):
            many = [row[key] for row in rows(tmp_path / "many" / name)]
            assert many == pytest.approx([row[key] for row in rows(folder / name)], rel=TOLERANCE), name
        for key in ("devices", "collectives", "collective_bytes_per_device"):
            assert found[key] == expected[key], name


TRAIN = ("train", *SMALL, "--set", "train.steps=40", "--strategy", "fsdp", "--devices", "4", "--json")


def wait_for_rows(folder: Path, count: int, ranks: list[Rank]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "steps.jsonl").exists() or len(rows(folder)) < count:
        assert time.monotonic() < deadline and all(rank.process.poll() is None for rank in ranks)
        time.sleep(0.05)


def train_alone(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "cli", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_checkpoint_of_four_processes_goes_on_in_two_and_in_one(tmp_path: Path) -> None:
    whole, moved = tmp_path / "whole", tmp_path / "moved"
    expected = train_alone(*TRAIN, "--run-dir", str(whole))
    first = run(
        *(4, *TRAIN, "--steps", "13", "--save-every", "5", "--run-dir", str(moved)), folder=tmp_path, hosts="aabb"
    )
    assert [each.code for each in first] == [0] * 4, told(first)
    second = run(2, *TRAIN, "--steps", "26", "--resume", "auto", "--run-dir", str(moved), folder=tmp_path)
    assert [each.code for each in second] == [0] * 2, told(second)
    assert json.loads(second[0].out)["resumed_from"] == 13
    last = train_alone(*TRAIN, "--resume", "auto", "--run-dir", str(moved))
    assert last["resumed_from"] == 26 and last["step"] == 40
    for key in ("loss", "grad_norm", "learning_rate"):
        found = [row[key] for row in rows(moved)]
        assert found == pytest.approx([row[key] for row in rows(whole)], rel=2e-5), key
    assert last["eval_loss"] == pytest.approx(expected["eval_loss"], rel=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "zero1"])
def test_hosts_with_unequal_devices_train_and_save_as_one(strategy: str, tmp_path: Path) -> None:
    """A host with a device that failed: the others keep theirs, and the checkpoint goes on anywhere."""
    arguments = ("train", *SMALL, "--strategy", strategy, "--set", "train.global_batch=15", "--json")
    many, one = ("--run-dir", str(tmp_path / "many")), ("--run-dir", str(tmp_path / "one"))
    train_alone(*arguments, "--steps", "6", "--devices", "5", *one)
    with started(2, *arguments, "--steps", "4", *many, folder=tmp_path, devices=(3, 2)) as ranks:
        done = finish(ranks)
    assert [each.code for each in done] == [0, 0], told(done)
    last = train_alone(*arguments, "--steps", "6", "--devices", "3", "--resume", "auto", *many)
    assert last["resumed_from"] == 4
    for key in ("loss", "grad_norm"):
        found = [row[key] for row in rows(tmp_path / "many")]
        assert found == pytest.approx([row[key] for row in rows(tmp_path / "one")], rel=2e-5), key


@pytest.mark.slow
def test_what_fails_on_process_0_ends_all_and_is_told_once(tmp_path: Path) -> None:
    """Its disk is full: it cannot write the next step's line, while the others could go on."""
    folder = tmp_path / "run"
    endless = ("--set", "train.steps=100000", "--set", "optim.schedule=constant", "--run-dir", str(folder))
    with started(2, *TRAIN, *endless, "--devices", "2", folder=tmp_path) as ranks:
        wait_for_rows(folder, 3, ranks)
        full = 2**10
        resource.prlimit(ranks[0].process.pid, resource.RLIMIT_FSIZE, (full, full))
        done = finish(ranks)
    assert [each.code for each in done] == [1, 1], told(done)
    assert len(told(done)) == 1 and "steps.jsonl: a line was not written" in told(done)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "asked"), [(0, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_to_one_rank_stops_all_at_the_same_saved_step(who: int, asked: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = ("--set", "train.steps=100000", "--set", "optim.schedule=constant", "--run-dir", str(folder))
    arguments = (*TRAIN, *endless, "--devices", "2")
    with started(2, *arguments, folder=tmp_path) as ranks:
        wait_for_rows(folder, 3, ranks)
        ranks[who].process.send_signal(asked)
        done = finish(ranks)
    assert [each.code for each in done] == [128 + asked] * 2, told(done)
    summary = json.loads(done[0].out)
    assert summary["stopped"] and summary["checkpoint_step"] == summary["step"] == len(rows(folder))
    again = run(*(2, *arguments, "--steps", str(summary["step"] + 2), "--resume", "auto"), folder=tmp_path)
    assert [each.code for each in again] == [0] * 2, told(again)
    assert [row["step"] for row in rows(folder)] == list(range(summary["step"] + 2))
