"""The flags of a run over many processes, shared by the commands that can be one."""

from typing import Annotated

import typer

PANEL = "Processes"

CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="HOST:PORT",
        envvar="JAXDP_COORDINATOR",
        help="Where the processes meet: process 0's host, a free port.",
        rich_help_panel=PANEL,
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        envvar="JAXDP_PROCESSES",
        help="Processes of this run (default: as SLURM, Open MPI or Kubernetes say, else 1).",
        rich_help_panel=PANEL,
    ),
]
ProcessIdOption = Annotated[
    int | None,
    typer.Option(
        "--process-id",
        metavar="I",
        envvar="JAXDP_PROCESS_ID",
        help="Which of them this one is, from 0.",
        rich_help_panel=PANEL,
    ),
]
JoinTimeoutOption = Annotated[
    float,
    typer.Option(
        "--join-timeout",
        metavar="S",
        min=1.0,
        envvar="JAXDP_JOIN_TIMEOUT_S",
        help="Seconds to wait for all of them to come.",
        rich_help_panel=PANEL,
    ),
]
StallTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--stall-timeout",
        metavar="S",
        min=0.0,
        envvar="JAXDP_STALL_TIMEOUT_S",
        help="Seconds without a sign of a process that end the run (default 60; 0: never).",
        rich_help_panel=PANEL,
    ),
]
