"""The `jaxdp` command: one file a subcommand. Nothing here, nor at a command's top, imports JAX."""

import inspect
import os
import sys
import traceback
from importlib import import_module
from typing import Annotated

import typer

from jaxdp.errors import JaxdpError
from jaxdp.registry import load_plugins

# Each is the function of that name in cli/NAME.py, whose docstring goes on after this line.
COMMANDS = {
    "bench": "Measure throughput, memory and communication of strategies, in turns on the same batches.",
    "train": "Train under one strategy, with checkpoints.",
    "check": "Check shards, batch, memory and boundaries of a config without training.",
    "advise": "Predict every strategy's memory and step time on a cluster, and recommend one.",
    "probe": "Measure products, memory, unevenness and collectives of the devices here, and the network between hosts.",
    "sim": "Simulate strategies under uneven workers in virtual time, replay a trace, or rerun a published experiment.",
    "report": "Turn runs into scaling curves, tables and a page; two folders with the same cells are compared.",
    "sweep": "Measure strategies, devices and any config keys as a grid; interrupted, it runs only what is missing.",
    "launch": "Run a command in several supervised processes: they start, stop and fail together.",
    "reproduce": "Test the study's findings F1 to F6 here and by prediction: a verdict, values and a figure each.",
}

app = typer.Typer(
    name="jaxdp",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def register(arguments: list[str]) -> None:
    """Adds the command that is asked for; where none is, all of them, by their summaries alone if only to be listed."""
    named = next((word for word in arguments if not word.startswith("-")), None)
    completing = "_JAXDP_COMPLETE" in os.environ
    for name in [named] if named in COMMANDS and not completing else COMMANDS:
        if name == named or completing:
            module = import_module(f"cli.{name}")
            command, context = getattr(module, name), getattr(module, "CONTEXT", None)
            text = f"{COMMANDS[name]}\n\n{inspect.getdoc(command)}"
            app.command(name, help=text, context_settings=context)(command)
        else:
            app.command(name, help=COMMANDS[name])(_print_version)


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
