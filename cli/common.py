"""What commands share: groups of flags that are no config keys, and one document on stdout."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxdp.errors import BadInput
from jaxdp.strict_json import to_json

if TYPE_CHECKING:
    from jaxdp.config import Config
    from jaxdp.job.processes import Job

SetOption = Annotated[list[str], typer.Option("--set", "-s", metavar="A.B=C", help="Override one config key; repeat.")]
PrintConfigOption = Annotated[bool, typer.Option("--print-config", help="Print the resolved config as TOML and stop.")]
DevicesOption = Annotated[
    int | None, typer.Option("--devices", "-n", min=1, help="Devices to use (default: all; 4 host devices on a CPU).")
]
AllowOption = Annotated[list[str], typer.Option("--allow", metavar="NAME", help="Let a check's finding pass; repeat.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]


def _refuse_empty(path: str | None) -> str | None:
    """A script's unset variable, say, must not choose the folder."""
    if path == "":
        raise BadInput("--run-dir '': names no folder; name one, or leave the option out")
    return path


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Where the config comes from, apart from the flags of its keys."""

    config: Annotated[
        list[str],
        typer.Option(
            "--config", "-c", metavar="FILE_OR_NAME", help="TOML file or shipped name; repeat, later ones win."
        ),
    ] = field(default_factory=list)
    set_: SetOption = field(default_factory=list)
    print_config: PrintConfigOption = False

    def load(self, keys: Mapping[str, Any], record: Path | None = None) -> "list[Config]":
        """One config for each strategy that is named; without a config that of a run's record, if there is one."""
        from jaxdp.config import load_strategies

        recorded = [str(record)] if record and record.is_file() else []
        return load_strategies(self.config or recorded, self.set_, keys)

    @property
    def words(self) -> list[str]:
        """The command line's words that these options were read from."""
        named = (("--config", self.config), ("--set", self.set_))
        return [word for flag, values in named for value in values for word in (flag, value)]


@dataclass(frozen=True, kw_only=True)
class FolderOptions:
    """Where the records go."""

    run_dir: Annotated[
        str | None,
        typer.Option(
            "--run-dir",
            metavar="DIR",
            callback=_refuse_empty,
            help="Folder of the run's records (default: under runs/).",
        ),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")] = False


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the commands that train share."""

    devices: DevicesOption = None
    xla_flags: Annotated[
        bool, typer.Option("--xla-flags/--no-xla-flags", help="XLA's overlap flags for GPUs (listed in the records).")
    ] = True
    allow: AllowOption = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")] = (
        False
    )
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False
    debug: DebugOption = False


def process_option(name: str, metavar: str, variable: str, description: str, **limits: Any) -> Any:
    return typer.Option(name, metavar=metavar, envvar=variable, help=description, rich_help_panel="Processes", **limits)


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """A run over many processes."""

    coordinator: Annotated[
        str | None,
        process_option(
            "--coordinator",
            "HOST:PORT",
            "JAXDP_COORDINATOR",
            "Where the processes meet: process 0's host, a free port.",
        ),
    ] = None
    processes: Annotated[
        int | None,
        process_option(
            "--processes",
            "N",
            "JAXDP_PROCESSES",
            "Processes of this run (default: as SLURM, Open MPI or Kubernetes say, else 1).",
        ),
    ] = None
    process_id: Annotated[
        int | None,
        process_option("--process-id", "I", "JAXDP_PROCESS_ID", "Which of them this one is, from 0."),
    ] = None
    join_timeout: Annotated[
        float,
        process_option(
            "--join-timeout", "S", "JAXDP_JOIN_TIMEOUT_S", "Seconds to wait for all of them to come.", min=1.0
        ),
    ] = 300.0
    stall_timeout: Annotated[
        float | None,
        process_option(
            "--stall-timeout",
            "S",
            "JAXDP_STALL_TIMEOUT_S",
            "Seconds without a sign of a process that end the run (default 60; 0: never).",
            min=0.0,
        ),
    ] = None

    def find(self, stop: object = False) -> "Job":
        """The job that this process belongs to."""
        from jaxdp.job.scheduler import find_job

        return find_job(self.coordinator, self.processes, self.process_id, self.join_timeout, self.stall_timeout, stop)


def print_json(document: Any) -> None:
    """One strict JSON document; what is not finite becomes null."""
    print(to_json(document, indent=2))


def say(line: str) -> None:
    """A line for people, on stderr, so that stdout stays a document."""
    print(line, file=sys.stderr, flush=True)


def plain_warnings() -> None:
    """Warnings of the library as lines for people."""
    import logging

    logging.addLevelName(logging.WARNING, "warning")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)


def print_config(configs: "list[Config]") -> None:
    """The resolved config as TOML; of several, the first, since only their strategy differs."""
    from jaxdp.config import to_toml

    sys.stdout.write(to_toml(configs[0]))
