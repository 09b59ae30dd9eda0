"""Who started this process, by the variables that each launcher sets: one row a launcher (no JAX)."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from jaxdp.errors import BadInput
from jaxdp.job.rendezvous import Address, parse_address

REMEDY = "unset what is left over, or give --coordinator, --processes and --process-id"
OPEN_MPI_URI = "OMPI_MCA_orte_hnp_uri"  # so spelt
FIRST_PORT, PORTS = 61_440, 4096  # of these one is chosen by a job's number, as JAX does


@dataclass(frozen=True)
class Launcher:
    """Names of variables: how many processes there are, which this one is, and the same on this host; then the hosts.

    `address` reads where they meet, None where the launcher doesn't say. `parents` are an outer launcher's (process,
    processes), one a host, each of which started its host's part.
    """

    name: str
    processes: str
    process_id: str
    local_id: str = ""
    local_processes: str = ""
    hosts: str = ""
    address: Callable[[], Address | None] = lambda: None
    parents: tuple[str, str] | None = None


@dataclass(frozen=True)
class Place:
    """What launchers say of this process. `own_device`: its number on a host that it shares with others."""

    name: str
    processes: int
    process_id: int
    own_device: int | None
    address: Address | None


def find_place() -> Place | None:
    """This process's place, by the innermost launcher that started several processes; None if none did.

    Raises `BadInput` for a number that can't be read, for half of a launcher's variables (each of its processes would
    be a run of its own), and for launchers that contradict each other.
    """
    several: list[Launcher] = []
    halves: list[Launcher] = []
    for launcher in LAUNCHERS:
        processes, process_id = _counts(launcher)
        if processes is not None and process_id is not None:
            if process_id >= processes:
                raise BadInput(f"{_said(launcher)}: its variables contradict each other; {REMEDY}")
            if processes > 1:
                several.append(launcher)
        # A SLURM script's own shell has the number 0, and no step.
        elif (processes or 0) > 1 or (process_id is not None and (process_id, launcher.name) != (0, "SLURM")):
            halves.append(launcher)
    for half in halves:
        _refuse_half(half, several)
    for inner, outer in pairwise(several):
        if not _agree(inner, outer):
            raise BadInput(f"{_said(inner)}, but {_said(outer)}: they contradict each other; {REMEDY}")
    if not several:
        return None
    alike = [launcher for launcher in several if _counts(launcher) == _counts(several[0])]
    processes, process_id = _counts(several[0])
    assert processes is not None and process_id is not None
    own = next((device for launcher in alike if (device := _own_device(launcher)) is not None), None)
    address = next((address for launcher in alike if (address := launcher.address())), None)
    return Place(several[0].name, processes, process_id, own, address)


def number(name: str) -> int | None:
    """A launcher's count; None where it isn't set. A run of one must not come of what can't be read."""
    text = os.environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise BadInput(f"{name}={text!r}: the launcher's variable is no number; {REMEDY}")
    return int(text) if text else None


def _counts(launcher: Launcher) -> tuple[int | None, int | None]:
    return number(launcher.processes), number(launcher.process_id)


def _said(launcher: Launcher) -> str:
    processes, process_id = _counts(launcher)
    return f"{launcher.name} ({launcher.process_id}={process_id}, {launcher.processes}={processes})"


def _refuse_half(launcher: Launcher, several: Sequence[Launcher]) -> None:
    """Half of a launcher's variables is harmless where it repeats what another one says."""
    processes, process_id = _counts(launcher)
    if any(processes in (None, _counts(other)[0]) and process_id in (None, _counts(other)[1]) for other in several):
        return
    there, lacking = launcher.processes, launcher.process_id
    if processes is None:
        there, lacking = lacking, there
    raise BadInput(f"{there}={number(there)} without {lacking}: {launcher.name} names no job; {REMEDY}")


def _agree(inner: Launcher, outer: Launcher) -> bool:
    """Both say the same, or the outer one started the inner one's part on each host."""
    if _counts(inner) == _counts(outer):
        return True
    if inner.parents:
        return (number(inner.parents[1]), number(inner.parents[0])) == _counts(outer)
    return outer.name == "SLURM" and number(outer.hosts) == number(outer.processes)


def _own_device(launcher: Launcher) -> int | None:
    local_id, local_processes = number(launcher.local_id), number(launcher.local_processes)
    processes, hosts = number(launcher.processes), number(launcher.hosts)
    alone = local_processes == 1 or (processes is not None and processes == hosts)
    return None if alone else local_id


def _master() -> Address | None:
    """torchrun's; its own store may listen on that port, which then tells the next one."""
    host, port = os.environ.get("MASTER_ADDR", "").strip(), number("MASTER_PORT")
    if not host or port is None:
        return None
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    return parse_address(f"{host}:{port + taken}", "MASTER_ADDR, MASTER_PORT")


def _jax_address() -> Address | None:
    text = os.environ.get("JAX_COORDINATOR_ADDRESS", "").strip()
    return parse_address(text, "JAX_COORDINATOR_ADDRESS") if text else None


def _mpirun_address() -> Address | None:
    """Where Open MPI 4's mpirun runs, whose first process is on the same host."""
    uri = os.environ.get(OPEN_MPI_URI, "")
    if not uri:
        return None
    match = re.match(r"(\d+)\.\d+;tcp(?:://([^,:]+)|6://\[([^],]+))", uri)
    if match is None:
        raise BadInput(f"{OPEN_MPI_URI}={uri!r}: Open MPI's variable can't be read; {REMEDY}")
    job, host, host6 = match.groups()
    return Address(host or host6, FIRST_PORT + int(job) // PORTS % PORTS)


def _slurm_address() -> Address | None:
    """The first host of a step; each step has a port of its own."""
    nodes, job = os.environ.get("SLURM_STEP_NODELIST", "").strip(), number("SLURM_JOB_ID")
    if not nodes or job is None:
        return None
    counts = {name: number(name) for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS")}
    if None not in counts.values() and len(set(counts.values())) > 1:
        told = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise BadInput(f"{told}: SLURM's variables contradict each other; {REMEDY}")
    first = re.match(r"(?:\[[^]]*\]|[^,\[])+", nodes)  # up to the first comma outside brackets
    host = re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first[0] if first else "")
    port = FIRST_PORT + (job + (number("SLURM_STEP_ID") or 0)) % PORTS
    return parse_address(f"{host}:{port}", "SLURM_STEP_NODELIST")


# Innermost first: srun or mpirun starts torchrun, a process a host, and srun the daemons of mpirun.
LAUNCHERS = (
    Launcher(
        "torchrun",
        *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        address=_master,
        parents=("GROUP_RANK", "GROUP_WORLD_SIZE"),
    ),
    Launcher("JAX", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", address=_jax_address),
    Launcher(
        "Open MPI",
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        address=_mpirun_address,
    ),
    Launcher(
        "MVAPICH",
        *("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ),
    Launcher("MPICH or Intel MPI", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", hosts="FLUX_JOB_NNODES"),
    # The step's counts: an allocation's own shell is one process, whatever was allocated.
    Launcher(
        "SLURM",
        *("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
        hosts="SLURM_STEP_NUM_NODES",
        address=_slurm_address,
    ),
)
