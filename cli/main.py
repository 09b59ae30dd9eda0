"""The `jaxdp` command: one file a subcommand. Nothing here, nor at a command's top, imports JAX."""

import os
import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer

from jaxdp.errors import JaxdpError
from jaxdp.registry import load_plugins

# Each is the function of that name in cli/NAME.py.
COMMANDS = ("bench", "train", "check", "advise", "probe", "sim", "report", "sweep", "launch", "reproduce")

app = typer.Typer(
    name="jaxdp",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def register(arguments: list[str]) -> None:
    """Adds the command that is asked for, or all of them where none is named: then they are to be listed."""
    named = next((word for word in arguments if not word.startswith("-")), None)
    completing = "_JAXDP_COMPLETE" in os.environ
    for name in [named] if named in COMMANDS and not completing else COMMANDS:
        module = import_module(f"cli.{name}")
        app.command(name, context_settings=getattr(module, "CONTEXT", None))(getattr(module, name))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
        load_plugins()
        register(sys.argv[1:])
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
    return f"unexpected {type(error).__name__}: {first_line}; --debug shows where"
