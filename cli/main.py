"""The `jaxdp` command: one file a subcommand. Nothing here, nor at a command's top, imports JAX."""

import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from cli.advise import advise
from cli.bench import bench
from cli.check import check
from cli.probe import probe
from cli.sim import sim
from cli.train import train
from jaxdp.errors import JaxdpError

app = typer.Typer(
    name="jaxdp",
    help="Measure, predict, simulate, check and choose between DDP, FSDP and a parameter server.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (bench, train, check, advise, probe, sim):
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"jaxdp {version('jaxdp')}")
        raise typer.Exit()


@app.callback()
def jaxdp(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Measure, predict, simulate, check and choose between DDP, FSDP and a parameter server."""


def main() -> None:
    """Runs the command line: every error is one line on stderr, and the exit code says its kind."""
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        print("error: " + " ".join(describe(error).split()), file=sys.stderr)
        code = getattr(error, "exit_code", 1)
    sys.exit(code)


def describe(error: Exception) -> str:
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, JaxdpError):
        return str(error)
    first_line = (str(error).splitlines() or [""])[0]
    if "RESOURCE_EXHAUSTED" in first_line:
        return f"out of memory: {first_line}; use fewer tokens a device, more microbatches, remat=block or fsdp"
    return f"unexpected {type(error).__name__}: {first_line}; --debug shows where"
