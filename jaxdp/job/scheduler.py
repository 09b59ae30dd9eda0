"""Which job this process belongs to: the one that was given, else the one that a scheduler started it in (no JAX)."""

import os

from jaxdp.errors import BadInput
from jaxdp.job import watchdog
from jaxdp.job.processes import JOIN_TIMEOUT_S, Job
from jaxdp.job.rendezvous import parse_address

SCHEDULED = ("SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")


def find_job(
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    stall_timeout_s: float | None = None,
    stop: object = False,
) -> Job:
    """The job as it was given, else as SLURM, Open MPI or Kubernetes started it, else a run of one process.

    Raises `BadInput` for what cannot be, without importing JAX; a scheduler's variables are JAX's own to read.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    absent = [name for name, value in given.items() if value is None]
    if len(absent) == len(given):
        found = _scheduled(join_timeout_s)
    elif absent:
        raise BadInput(f"{', '.join(absent)}: missing; --coordinator, --processes and --process-id go together")
    else:
        assert coordinator is not None and processes is not None and process_id is not None
        if processes < 2:
            raise BadInput(f"--processes {processes}: a job has at least 2; one needs none of these options")
        if not 0 <= process_id < processes:
            raise BadInput(f"--process-id {process_id}: of {processes} processes they are 0 to {processes - 1}")
        found = Job(parse_address(coordinator), processes, process_id)
    found.join_timeout_s = join_timeout_s
    stall_timeout_s = watchdog.DEFAULT_STALL_TIMEOUT_S if stall_timeout_s is None else stall_timeout_s
    if 0 < stall_timeout_s < watchdog.MIN_STALL_TIMEOUT_S:
        raise BadInput(f"--stall-timeout {stall_timeout_s:g}: at least {watchdog.MIN_STALL_TIMEOUT_S:g} s, or 0")
    found.stall_timeout_s = stall_timeout_s
    found.stop = stop
    return found


def _scheduled(timeout_s: float) -> Job:
    """What the scheduler says; a lone process, as in an interactive allocation, is a run of one."""
    found = {name: os.environ.get(name, "") for name in SCHEDULED}
    steps, ranks = _number("SLURM_STEP_NUM_TASKS"), _number("OMPI_COMM_WORLD_SIZE")
    if found["SLURM_STEP_NODELIST"] and steps > 1:
        one_device = steps > _number("SLURM_STEP_NUM_NODES")
    elif found["OMPI_MCA_orte_hnp_uri"] and ranks > 1:
        one_device = _number("OMPI_COMM_WORLD_LOCAL_SIZE") > 1
    elif ranks > 1:
        raise BadInput(
            f"Open MPI started {ranks} processes, but does not say where they can meet: give --coordinator HOST:PORT, "
            "--processes N, and --process-id I from OMPI_COMM_WORLD_RANK"
        )
    elif found["KUBERNETES_SERVICE_HOST"] and found["JOB_COMPLETION_INDEX"]:
        one_device = False
    else:
        return Job()
    from jax._src.clusters import ClusterEnv

    try:
        address, processes, process_id, local = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(timeout_s)
        )
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        raise BadInput(f"the scheduler's variables: JAX can't read them ({' '.join(str(error).split())})") from None
    if address is None or processes is None or process_id is None:
        raise BadInput(
            "the scheduler's variables are there, but JAX makes no job of them (on Kubernetes it needs jax[k8s]); "
            "give --coordinator, --processes and --process-id"
        )
    if processes == 1 and max(steps, ranks) <= 1:
        return Job()
    if processes < max(steps, ranks) or not 0 <= process_id < processes:
        raise BadInput(f"the scheduler's variables contradict each other: process {process_id} of {processes}")
    # JAX would give every process a single device, though it be its host's only process or see no other.
    alone = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) == 1
    own = tuple(local) if one_device and local and not alone else None
    return Job(parse_address(address), processes, process_id, own)


def _number(name: str) -> int:
    """A scheduler's count, 0 where it isn't set; a run of one must not come of a variable that can't be read."""
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise BadInput(f"{name}={text!r}: the scheduler's variable is no number; unset it, or give --coordinator")
    return int(text or 0)
