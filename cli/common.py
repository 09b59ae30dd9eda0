"""What every command shares: the common options, and one document on stdout."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxdp.errors import BadInput
from jaxdp.strategies.rows import STRATEGIES, all_strategies
from jaxdp.strict_json import to_json

if TYPE_CHECKING:
    from jaxdp.config import Config  # pydantic takes a tenth of a second, which a simulation can do without

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="FILE_OR_NAME", help="TOML file or shipped name; repeat, later ones win."),
]
TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="MODULE:FUNCTION", help="Train your own model: a function that returns a Task."),
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="A.B=C", help="Override one config key; repeat.")
]
PrintConfigOption = Annotated[bool, typer.Option("--print-config", help="Print the resolved config as TOML and stop.")]
DevicesOption = Annotated[
    int | None, typer.Option("--devices", "-n", min=1, help="Devices to use (default: all; 4 host devices on a CPU).")
]


def _refuse_empty(path: str | None) -> str | None:
    """A script's unset variable, say, must not choose the folder."""
    if path == "":
        raise BadInput("--run-dir '': names no folder; name one, or leave the option out")
    return path


RunDirOption = Annotated[
    str | None,
    typer.Option(
        "--run-dir", metavar="DIR", callback=_refuse_empty, help="Folder of the run's records (default: under runs/)."
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of parameters, data order and dropout.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace the run that the folder holds.")]
AllowOption = Annotated[
    list[str] | None, typer.Option("--allow", metavar="NAME", help="Let a check's finding pass; repeat.")
]
StragglersOption = Annotated[
    str | None,
    typer.Option("--stragglers", metavar="SPEC", help='Delay workers in real time: "persistent(worker=0,factor=3)".'),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


def print_json(document: Any) -> None:
    """One strict JSON document; what is not finite becomes null."""
    print(to_json(document, indent=2))


def say(line: str) -> None:
    """A line for people, on stderr, so that stdout stays a document."""
    print(line, file=sys.stderr, flush=True)


def load_configs(
    sources: list[str] | None, overrides: list[str] | None, strategies: str | None, flags: dict[str, Any]
) -> "list[Config]":
    """One config for each of the comma-separated strategies ("all": every one), else the config's own."""
    from jaxdp.config import load

    names: list[str | None] = [None] if strategies is None else list(split_strategies(strategies))
    configs = [load(sources or (), overrides or (), {**flags, "strategy.name": name}) for name in names]
    given = [key for key, value in flags.items() if key.startswith("server.") and value is not None]
    if given and all(config.strategy.name != "ps" for config in configs):
        raise BadInput(f"{given[0]}: is the parameter server's; add --strategy ps, or leave it out")
    return configs


def plain_warnings() -> None:
    """Warnings of the library as lines for people."""
    import logging

    logging.addLevelName(logging.WARNING, "warning")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)


def strategies_help(*more: str) -> str:
    return ", ".join([*STRATEGIES, *more])


def split_strategies(text: str) -> list[str]:
    names = all_strategies() if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"--strategy {text!r}: names no strategy; known: {strategies_help('all')}")
    if len(set(names)) < len(names):
        raise BadInput(f"--strategy {text}: names one twice; each is measured once")
    return names


def print_config(configs: "list[Config]") -> None:
    """The resolved config as TOML; of several, the first, since only their strategy differs."""
    from jaxdp.config import to_toml

    sys.stdout.write(to_toml(configs[0]))
