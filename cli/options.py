"""A command's signature for Typer: groups of flags, and keys that a config declares once.

    @with_options
    def bench(own: BenchOptions, keys: Annotated[Mapping[str, Any], Keys(Config, "task", "server")]) -> None: ...

A parameter that is a dataclass stands for the flags its fields declare. One that is marked by `Keys` stands for a flag
for each of these keys, with help, type, choices, range and default as the schema has them; it receives the values that
were set, by their keys. The schema also refuses what is out of range: Typer converts, and nothing else.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer

from jaxdp.errors import BadInput

# Where a flag is not named as its key is.
FLAGS = {"server.shards": "--server-shards", "strategy.name": "--strategy"}
METAVARS = {
    "task": "MODULE:FUNCTION",
    "stragglers": "SPEC",
    "strategy.name": "S",
    "hardware": "PRESET|FILE",
    "run": "FOLDER",
    "train": "FILE_OR_NAME",
    "server.address": "HOST:PORT",
}
HIDDEN_ALIASES = {"stragglers": ("--delays", "--unevenness")}
PANELS = {"server": "Server"}


class Keys:
    """Marks a parameter that receives the keys `names` of `schema`; a section's name stands for all its keys.

    The schema is a config, or a dataclass whose fields' metadata have `description` and perhaps `range`.
    """

    def __init__(self, schema: type, *names: str, panel: str | None = None, metavars: Mapping[str, str] | None = None):
        self.schema, self.names, self.panel = schema, names, panel
        self.metavars = {**METAVARS, **(metavars or {})}

    def parameters(self) -> "Iterator[inspect.Parameter]":
        for name in self.names:
            for key in _declared(self.schema, name, ""):
                yield from _flag_parameters(key, self.metavars, self.panel or PANELS.get(key.name.partition(".")[0]))


class Key(NamedTuple):
    """A key as its schema declares it; `ranged` is `>=1`, say, or empty."""

    name: str
    type: Any
    default: Any
    description: str
    ranged: str

    @property
    def flag(self) -> str:
        return FLAGS.get(self.name, "--" + self.name.rpartition(".")[2].replace("_", "-"))


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer wants it: with one parameter for each flag."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: (hint, list(_parameters(hint))) for name, hint in hints.items() if name != "return"}

    @wraps(command)
    def run(**values: Any) -> None:
        command(**{name: _receive(hint, parameters, values) for name, (hint, parameters) in groups.items()})

    flags = [parameter for _, parameters in groups.values() for parameter in parameters]
    run.__signature__ = inspect.Signature(flags)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return run


def _parameters(hint: Any) -> Iterator[inspect.Parameter]:
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__[0].parameters()
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        default = default if field.default_factory is MISSING else field.default_factory()
        yield _parameter(field.name, hints[field.name], default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _flag_parameters(key: Key, metavars: Mapping[str, str], panel: str | None) -> Iterator[inspect.Parameter]:
    """The key's flag, and its hidden aliases as parameters of their own."""
    aliases = HIDDEN_ALIASES.get(key.name, ())
    for flag in (key.flag, *aliases):
        kind, metavar, parser = key.type, metavars.get(key.name), None
        words = flag
        if get_origin(kind) is Literal:
            kind, metavar = str, "|".join(get_args(kind))
        elif get_origin(kind) is tuple:
            kind, metavar, parser = Any, "X[,X...]", _numbers(flag)
        elif kind is bool:
            words = f"{flag}/--no-{flag.removeprefix('--')}"
        elif kind in (int, float):
            metavar = metavar or f"{kind.__name__.upper()}{key.ranged}"
        else:
            kind = str
        option = typer.Option(
            words,
            metavar=metavar,
            help=_help(key),
            parser=parser,
            hidden=flag in aliases,
            rich_help_panel=panel,
        )
        name = flag.strip("-").replace("-", "_")
        yield _parameter(name, Annotated[kind | None, option, key], None)


def _help(key: Key) -> str:
    if key.default in (None, "", 0, (), math.inf):
        return key.description
    return f"{key.description.rstrip('.')} (default: {key.default})."


def _receive(hint: Any, parameters: list[inspect.Parameter], values: Mapping[str, Any]) -> Any:
    """The group, or the keys' values that were set."""
    if get_origin(hint) is not Annotated:
        return hint(**{parameter.name: values[parameter.name] for parameter in parameters})
    by_key: dict[str, Any] = {}
    for parameter in parameters:
        key: Key = parameter.annotation.__metadata__[-1]
        if (value := values[parameter.name]) is None:
            continue
        if key.name in by_key:
            raise BadInput(f"{key.flag}: is there twice, under two names; leave one of them out")
        by_key[key.name] = value
    return by_key


def _numbers(flag: str) -> Callable[[str], tuple[float, ...]]:
    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError:
            raise BadInput(f"{flag} {text}: expected a number, or several with commas between them") from None

    return parse


def _declared(schema: type, name: str, prefix: str) -> Iterator[Key]:
    """The key, or all keys of the section, of this name."""
    here, _, below = name.partition(".")
    if is_dataclass(schema):
        field = next(field for field in fields(schema) if field.name == here)
        kind, _ = _bare(field.type)
        yield Key(prefix + here, kind, field.default, field.metadata["description"], field.metadata.get("range", ""))
        return
    field = schema.model_fields[here]  # pyright: ignore[reportAttributeAccessIssue]
    kind, constraints = _bare(field.annotation)
    if below:
        yield from _declared(kind, below, f"{prefix}{here}.")
    elif field.default_factory is not None:
        for inner in kind.model_fields:
            yield from _declared(kind, inner, f"{prefix}{here}.")
    else:
        limits = [*constraints, *field.metadata]
        signs = {">=": "ge", ">": "gt"}.items()
        ranges = [f"{sign}{getattr(limit, name):g}" for limit in limits for sign, name in signs if hasattr(limit, name)]
        yield Key(prefix + here, kind, field.default, field.description, "".join(ranges))


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without None and without its constraints, and these; of alternatives the last."""
    constraints: tuple[Any, ...] = ()
    while get_origin(annotation) in (Union, UnionType, Annotated):
        if get_origin(annotation) is Annotated:
            constraints = tuple(c for meta in annotation.__metadata__ for c in getattr(meta, "metadata", (meta,)))
            annotation = annotation.__origin__
        else:
            annotation = [part for part in get_args(annotation) if part is not NoneType][-1]
    return annotation, constraints
