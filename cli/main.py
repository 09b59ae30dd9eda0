"""The `jaxdp` command: one file a subcommand. Nothing here, nor at a command's top, imports JAX."""

import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import typer

from cli.bench import bench
from cli.train import train
from jaxdp.errors import JaxdpError

app = typer.Typer(
    name="jaxdp",
    help="Measure, predict, simulate, check and choose between DDP, FSDP and a parameter server.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (bench, train):
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
    """Runs the command line: every expected error is one line on stderr, and the exit code says its kind."""
    try:
        code = app(standalone_mode=False)
    except (JaxdpError, typer.TyperException) as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        print("error: " + " ".join(message.split()), file=sys.stderr)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)
