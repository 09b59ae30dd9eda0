"""`jaxdp launch`: one command in several processes of this host."""

import sys
from typing import Annotated

import typer

from cli.common import DebugOption, say
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
    max_restarts: Annotated[
        int,
        typer.Option(
            "--max-restarts",
            min=0,
            metavar="N",
            help="After a rank's death or standstill go on from the newest checkpoint, N times at most (train).",
        ),
    ] = 0,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Restart without the devices of the rank that failed.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Example: jaxdp launch -n 4 --max-restarts 3 -- train --strategy fsdp --run-dir runs/mine --save-every 50"""
    example = f"jaxdp launch -n {processes} -- bench --strategy fsdp"
    if "--" not in sys.argv or not command:
        raise BadInput(f"launch: give the command after --, as in: {example}")
    if command[0] not in PARALLEL:
        raise BadInput(f"launch: {command[0]} does not run in several processes; known: {', '.join(PARALLEL)}")
    if given := [word for word in command if word.partition("=")[0] in OWN]:
        raise BadInput(f"launch: {given[0]} is what launch gives to each process; leave it out of the command")
    if 0 < stall_timeout < MIN_STALL_TIMEOUT_S:
        raise BadInput(f"--stall-timeout {stall_timeout:g}: at least {MIN_STALL_TIMEOUT_S:g} s, or 0")
    from jaxdp.job.launch import Restarts
    from jaxdp.job.launch import launch as run_launch

    if elastic and not max_restarts:
        raise BadInput("--elastic: belongs to --max-restarts N; add it")
    program = [sys.executable, "-P", "-m", "cli"]  # -P: a folder `cli` in the current folder is not this one
    restarts = Restarts([*program, *_resumed(command, elastic)], max_restarts, elastic) if max_restarts else None
    code = run_launch(
        [*program, *command],
        processes,
        devices_per_process=devices_per_process,
        stall_timeout_s=stall_timeout,
        port=port,
        restarts=restarts,
    )
    raise typer.Exit(code)


def _resumed(command: list[str], elastic: bool) -> list[str]:
    """The command that takes up what `command` began."""
    flags = {word.partition("=")[0] for word in command}
    if command[0] != "train" or "--run-dir" not in flags:
        raise BadInput("--max-restarts: needs train with --run-dir, whose checkpoints a restart goes on from")
    if elastic and flags & {"--devices", "-n"}:
        raise BadInput("--elastic: the number of devices changes; leave --devices out of the command")
    if "--save-every" not in flags:
        say("warning: without --save-every only the last step is saved: a restart begins again")
    kept = [word for word in command if word != "--overwrite"]
    return [*kept, "--resume", "auto"]  # the last one counts
