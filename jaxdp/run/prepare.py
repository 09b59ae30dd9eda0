"""Everything that can refuse a run, before any work: config, folder, data, pre-flight, and only then the devices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.learn.corpora import open_corpus
from jaxdp.learn.data import Data, open_data
from jaxdp.plan.preflight import Report, check_allowed, preflight, require
from jaxdp.run.folder import RunFolder, fresh_run, open_run

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Prepared:
    """What a run starts from. The configs differ in their strategy only, so the data is the same for all."""

    configs: tuple[Config, ...]
    data: Data
    folder: RunFolder
    devices: "tuple[jax.Device, ...]"
    reports: tuple[Report, ...]
    xla_flags: tuple[str, ...]


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
) -> Prepared:
    """Checks in the order of cost. A number of devices that is given is checked before JAX is imported.

    Raises `BadInput` or `Refused`; then nothing has been written but possibly an empty folder.
    """
    allow = check_allowed(allow)
    if run_dir == "":
        raise BadInput("--run-dir: is empty; name a folder or leave it out")
    if devices is not None:
        for config in configs:
            require(preflight(config, devices), allow)
    corpus = open_corpus(configs[0])

    import jax

    from jaxdp.mesh.devices import claim, use_gpu_flags

    flags = use_gpu_flags(xla_flags)
    claimed = claim(devices)
    hosts = len({device.process_index for device in claimed})
    memory_bytes = device_memory_bytes(claimed[0])
    reports = tuple(
        preflight(config, len(claimed), hosts, memory_bytes, platform=claimed[0].platform) for config in configs
    )
    for report in reports:
        require(report, allow)
    flags = flags if jax.default_backend() == "gpu" else ()
    folder = open_run(Path(run_dir), resume=resume, overwrite=overwrite) if run_dir else fresh_run(name)
    return Prepared(tuple(configs), open_data(configs[0], corpus), folder, tuple(claimed), reports, flags)


def device_memory_bytes(device: "jax.Device") -> int | None:
    """What the backend may allocate on a device; None where it doesn't say, as on a CPU."""
    found = device.memory_stats()
    return found.get("bytes_limit") if found else None
