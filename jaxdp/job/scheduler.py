"""Which job this process belongs to: the one that was given, else the one that a launcher started it in (no JAX)."""

import os

from jaxdp.errors import BadInput
from jaxdp.job import watchdog
from jaxdp.job.launchers import find_place, number
from jaxdp.job.processes import JOIN_TIMEOUT_S, Job
from jaxdp.job.rendezvous import parse_address

SPECIAL_STEPS = 4_000_000_000  # of SLURM: the batch script's shell, an interactive one


def find_job(
    coordinator: str | None,
    processes: int | None,
    process_id: int | None,
    join_timeout_s: float = JOIN_TIMEOUT_S,
    stall_timeout_s: float | None = None,
    stop: object = False,
) -> Job:
    """The job as it was given, else as a launcher or Kubernetes started it, else a run of one process.

    A coordinator that is given alone is where a launcher's processes meet. Raises `BadInput` for what cannot be.
    """
    given = {"--coordinator": coordinator, "--processes": processes, "--process-id": process_id}
    absent = [name for name, value in given.items() if value is None]
    if processes is None and process_id is None:
        found = _launched(coordinator, join_timeout_s)
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


def _launched(coordinator: str | None, timeout_s: float) -> Job:
    """What the launcher says; a lone process, as in an interactive allocation, is a run of one."""
    place = find_place()
    if place is None and coordinator is None:
        return _on_kubernetes(timeout_s)
    if place is None:
        raise BadInput(
            "--processes, --process-id: missing; they go together with --coordinator, unless a launcher "
            "(torchrun, mpirun, srun) numbers the processes"
        )
    address = place.address if coordinator is None else parse_address(coordinator)
    if address is None:
        master = " (for torchrun MASTER_ADDR and MASTER_PORT)" if place.name == "torchrun" else ""
        raise BadInput(
            f"{place.name} started {place.processes} processes, but does not say where they can meet{master}: give "
            "--coordinator HOST:PORT or JAXDP_COORDINATOR, process 0's host and a free port there"
        )
    # A process that sees a single device has no need to choose.
    alone = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")) == 1
    own = None if place.own_device is None or alone else (place.own_device,)
    return Job(address, place.processes, place.process_id, own)


def _on_kubernetes(timeout_s: float) -> Job:
    """An indexed job's pods, as JAX reads them; else one process, which remembers if it leaves SLURM's nodes idle."""
    if not (os.environ.get("KUBERNETES_SERVICE_HOST") and os.environ.get("JOB_COMPLETION_INDEX")):
        return Job(warning=_idle_nodes())
    from jax._src.clusters import ClusterEnv

    try:
        address, processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, int(timeout_s)
        )
    except (RuntimeError, ValueError, KeyError, IndexError) as error:
        raise BadInput(f"Kubernetes' variables: JAX can't read them ({' '.join(str(error).split())})") from None
    if address is None or processes is None or process_id is None:
        raise BadInput(
            "Kubernetes numbers this pod, but JAX cannot join it to a job without jax[k8s]; "
            "install that, or give --coordinator, --processes and --process-id"
        )
    return Job(parse_address(address), processes, process_id) if processes > 1 else Job()


def _idle_nodes() -> str | None:
    """What to say of a SLURM allocation of several nodes in which this process was not started by srun."""
    nodes = number("SLURM_JOB_NUM_NODES") or number("SLURM_NNODES") or 1
    step = os.environ.get("SLURM_STEP_ID", "")
    started_as_one = step.isdecimal() and int(step) < SPECIAL_STEPS
    if nodes < 2 or started_as_one:
        return None
    return (
        f"this SLURM allocation has {nodes} nodes, and this process uses the devices of one; "
        "start it with srun to use all (configs/cluster/slurm.sbatch)"
    )
