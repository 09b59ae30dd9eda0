"""`jaxdp launch`: one command in several processes of this host."""

import sys
from typing import Annotated

import typer

from cli.common import DebugOption
from jaxdp.errors import BadInput
from jaxdp.job.watchdog import DEFAULT_STALL_TIMEOUT_S, MIN_STALL_TIMEOUT_S

PARALLEL = ("bench", "train")  # the commands that can run in several processes
OWN = ("--coordinator", "--processes", "--process-id")
CONTEXT = {"allow_interspersed_args": False}  # so that a forgotten -- is what gets told, not the command's own options


def launch(
    processes: Annotated[int, typer.Option("--processes", "-n", min=1, metavar="N", help="Processes to start.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="bench or train ...")] = None,
    devices_per_process: Annotated[
        int,
        typer.Option("--devices-per-process", min=1, metavar="D", help="GPUs of each, or host devices on a CPU."),
    ] = 1,
    stall_timeout: Annotated[
        float,
        typer.Option(
            "--stall-timeout", min=0.0, metavar="S", help="End a run whose rank is stuck within so long (0: never)."
        ),
    ] = DEFAULT_STALL_TIMEOUT_S,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, metavar="P", help="Where they meet (default: a free one).")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Example: jaxdp launch -n 4 -- bench --strategy fsdp"""
    example = f"jaxdp launch -n {processes} -- bench --strategy fsdp"
    if "--" not in sys.argv or not command:
        raise BadInput(f"launch: give the command after --, as in: {example}")
    if command[0] not in PARALLEL:
        raise BadInput(f"launch: {command[0]} does not run in several processes; known: {', '.join(PARALLEL)}")
    if given := [word for word in command if word.partition("=")[0] in OWN]:
        raise BadInput(f"launch: {given[0]} is what launch gives to each process; leave it out of the command")
    if 0 < stall_timeout < MIN_STALL_TIMEOUT_S:
        raise BadInput(f"--stall-timeout {stall_timeout:g}: at least {MIN_STALL_TIMEOUT_S:g} s, or 0")
    from jaxdp.job.launch import launch as run_launch

    # -P: a folder `cli` in the current folder is not this one.
    code = run_launch(
        [sys.executable, "-P", "-m", "cli", *command],
        processes,
        devices_per_process=devices_per_process,
        stall_timeout_s=stall_timeout,
        port=port,
    )
    raise typer.Exit(code)
