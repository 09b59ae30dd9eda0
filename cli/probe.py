"""`jaxdp probe`: measure this machine, or those of a job, for `jaxdp advise --hardware FILE`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import DebugOption, DevicesOption, JsonOption, QuietOption, plain_warnings, print_json, say
from cli.process_options import (
    CoordinatorOption,
    JoinTimeoutOption,
    ProcessesOption,
    ProcessIdOption,
    StallTimeoutOption,
)
from jaxdp.errors import BadInput


def probe(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a hardware.toml.")] = None,
    devices: DevicesOption = None,
    coordinator: CoordinatorOption = None,
    processes: ProcessesOption = None,
    process_id: ProcessIdOption = None,
    join_timeout: JoinTimeoutOption = 300.0,
    stall_timeout: StallTimeoutOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure matrix products, memory, unevenness and collectives of the devices here, and the network between hosts.

    Example: jaxdp probe --out hardware.toml
    """
    from jaxdp.job.scheduler import find_job
    from jaxdp.job.stop import StopFlag

    plain_warnings()
    with (
        StopFlag(at_once=True),
        find_job(coordinator, processes, process_id, join_timeout, stall_timeout) as job,
    ):
        if job.first and out is not None:
            _refuse_unwritable(out)
        job.join()
        from jaxdp.job.processes import gather, host_name, on_first
        from jaxdp.mesh.devices import claim
        from jaxdp.predict.probe import probe as measure

        hosts = gather(host_name())
        profile = measure(claim(devices, hosts), hosts, gather)
        on_first(lambda: _give(profile, out, json_, quiet))


def _refuse_unwritable(out: Path) -> None:
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"--out {out}: no file can be written there; name one in a folder that is yours")


def _give(profile: dict[str, Any], out: Path | None, json_: bool, quiet: bool) -> None:
    from jaxdp.predict.probe import to_toml

    if out is not None:
        from jaxdp.strict_json import write_atomically

        write_atomically(out, to_toml(profile).encode())
        if not quiet:
            say(f"written: {out}")
    if json_:
        print_json(profile)
    elif out is None:
        sys.stdout.write(to_toml(profile))
