"""Everything that can refuse a run, before any work: config, folder, data, pre-flight, and only then the devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdp.config import Config, dotted
from jaxdp.device_memory import take_memory_share
from jaxdp.errors import BadInput
from jaxdp.job import processes
from jaxdp.job.agreement import code_facts, refuse_differences
from jaxdp.job.processes import Job
from jaxdp.job.xla_flags import refuse_bad_flags
from jaxdp.predict.preflight import Report, check_allowed, preflight, require
from jaxdp.run.folder import RunFolder, fresh_run, open_run
from jaxdp.workload import open_data

if TYPE_CHECKING:
    import jax

    from jaxdp.task import DataSource


@dataclass(frozen=True)
class Prepared:
    """What a run starts from. The configs differ in their strategy only, so the data is the same for all.

    `hosts` are the groups of devices that share a host, `host_names` each process's host.
    """

    configs: tuple[Config, ...]
    data: "DataSource"
    folder: RunFolder
    devices: "tuple[jax.Device, ...]"
    reports: tuple[Report, ...]
    xla_flags: tuple[str, ...]
    hosts: int = 1
    host_names: tuple[str, ...] = ("",)

    @property
    def machines(self) -> int:
        return len(set(self.host_names))


def prepare(
    configs: Sequence[Config],
    devices: int | None,
    *,
    name: str,
    allow: Iterable[str] = (),
    run_dir: str | None = None,
    overwrite: bool = False,
    resume: bool = False,
    xla_flags: bool = True,
    job: Job | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """Checks in the order of cost. A number of devices that is given is checked before JAX is imported.

    `options` are the command's others that all processes must have alike, by their flags.
    Raises `BadInput` or `Refused`; then nothing has been written but possibly an empty folder.
    """
    job = job or Job()
    allow = check_allowed(allow)
    refuse_bad_flags()
    if run_dir == "":
        raise BadInput("--run-dir: is empty; name a folder or leave it out")
    if job.processes > 1 and any(config.strategy.name == "ps" for config in configs):
        raise BadInput(
            "--strategy ps: its workers are no processes of one job; start one, on several hosts with --engine ray"
        )
    if devices is not None:
        for config in configs:
            # How shard groups lie on hosts is known only to the processes together.
            if job.processes == 1 or "shard_devices" not in config.strategy.row.options:
                require(preflight(config, devices), allow)
    data = open_data(configs[0])
    job.join()
    if job.processes > 1:
        asked = {"command": name, "--devices": devices, "--allow": sorted(allow), "--xla-flags": xla_flags}
        refuse_differences(processes.gather({**asked, **(options or {}), **_facts(configs, data)}))

    import jax

    from jaxdp.mesh.devices import claim, host_groups, use_gpu_flags

    flags = use_gpu_flags(xla_flags)
    take_memory_share()
    host_names = processes.gather(processes.host_name())
    claimed = claim(devices, host_names)
    hosts = host_groups(claimed, host_names)
    memory_bytes = device_memory_bytes(claimed)
    reports = tuple(
        preflight(config, len(claimed), hosts, memory_bytes, platform=claimed[0].platform) for config in configs
    )
    for report in reports:
        require(report, allow)
    flags = flags if jax.default_backend() == "gpu" else ()
    folder = _claim_folder(name, run_dir, resume, overwrite)
    processes.write_log_to(folder.path)
    own = [str(device) for device in claimed if device.process_index == jax.process_index()]
    processes.log(f"devices {', '.join(own)} of {len(claimed)} on {len(set(host_names))} host(s)")
    return Prepared(tuple(configs), data, folder, tuple(claimed), reports, flags, hosts, tuple(host_names))


def _facts(configs: Sequence[Config], data: "DataSource") -> dict[str, Any]:
    """What is trained on what by which code, a fact a key; hosts may keep the same data under different paths."""
    config = configs[0]
    facts = dotted(config.model_dump(mode="json"))
    facts.pop("data.path", None)
    task_module = [config.task.function.partition(":")[0]] if config.task else []
    return {
        **facts,
        "strategy.name": ", ".join(config.strategy.name for config in configs),
        "data (sha256)": data.describe()["sha256"],
        **code_facts([*task_module, *config.plugins]),
    }


def _claim_folder(name: str, run_dir: str | None, resume: bool, overwrite: bool) -> RunFolder:
    """The run's folder: process 0 claims it, and the others write no records to it."""
    mine = None
    if processes.is_first():
        mine = open_run(Path(run_dir), resume=resume, overwrite=overwrite) if run_dir else fresh_run(name)
    path = processes.broadcast(str(mine.path) if mine else "")
    return mine or RunFolder(Path(path), writes=False)


def device_memory_bytes(devices: "Sequence[jax.Device]") -> int | None:
    """What the backend may allocate on the smallest device; None where it doesn't say, as on a CPU."""
    import jax

    own = [device.memory_stats() for device in devices if device.process_index == jax.process_index()]
    known = [found["bytes_limit"] for found in own if found and "bytes_limit" in found]
    limits = processes.gather(min(known, default=None))
    return min((limit for limit in limits if limit is not None), default=None)
