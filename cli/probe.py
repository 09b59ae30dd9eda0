"""`jaxdp probe`: measure this machine, or those of a job, for `jaxdp advise --hardware FILE`."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common import DevicesOption, JobOptions, OutputOptions, plain_warnings, print_json, say
from cli.options import with_options
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a hardware.toml.")] = None
    devices: DevicesOption = None


@with_options
def probe(own: ProbeOptions, job_options: JobOptions, output: OutputOptions) -> None:
    """Example: jaxdp probe --out hardware.toml"""
    plain_warnings()
    with StopFlag(at_once=True), job_options.find() as job:
        if job.first and own.out is not None:
            _refuse_unwritable(own.out)
        job.join()
        from jaxdp.job.processes import gather, host_name, on_first
        from jaxdp.mesh.devices import claim
        from jaxdp.predict.probe import probe as measure

        hosts = gather(host_name())
        profile = measure(claim(own.devices, hosts), hosts, gather)
        on_first(lambda: _give(profile, own.out, output))


def _refuse_unwritable(out: Path) -> None:
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise BadInput(f"--out {out}: no file can be written there; name one in a folder that you may write to")


def _give(profile: dict[str, Any], out: Path | None, output: OutputOptions) -> None:
    from jaxdp.predict.probe import to_toml

    if out is not None:
        from jaxdp.strict_json import write_atomically

        write_atomically(out, to_toml(profile).encode())
        if not output.quiet:
            say(f"written: {out}")
    if output.json:
        print_json(profile)
    elif out is None:
        sys.stdout.write(to_toml(profile))
