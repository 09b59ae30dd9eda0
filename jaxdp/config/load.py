"""Reads a config: files merged left to right, then overrides, then flags; a mistake is one line with the key's path."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from jaxdp.config.schema import Config, Section
from jaxdp.errors import BadInput
from jaxdp.registry import load_plugins
from jaxdp.strategies.rows import STRATEGIES, all_strategies
from jaxdp.strict_json import from_json
from jaxdp.suggest import suggest

SHIPPED = Path(__file__).parents[1] / "configs"
RECORD = "run.json"

AnySection = TypeVar("AnySection", bound=Section)


def load(
    sources: str | Iterable[str] = (), overrides: Iterable[str] = (), flags: Mapping[str, Any] | None = None
) -> Config:
    """The config of a TOML file or shipped name (nano if none), or of several; then `a.b=c` overrides, then flags.

    A run's record (`run.json`) is a source too. What comes later wins.
    `flags` maps dotted keys to values; None means not given.
    Raises `BadInput` naming the file or the key, and the nearest valid key.
    """
    merged: dict[str, Any] = {}
    for source in [sources] if isinstance(sources, str) else sources or ("nano",):
        _merge(merged, _read(find(source)))
    for override in overrides:
        _merge(merged, parse_override(override))
    for key, value in (flags or {}).items():
        if value is not None:
            _merge(merged, _nested(key, value))
    return build(merged)


def load_strategies(sources: Iterable[str], overrides: Iterable[str], flags: Mapping[str, Any]) -> list[Config]:
    """The configs of the strategies that the flag `strategy.name` joins by commas; "all" means each but the exhibits.

    Raises `BadInput` as `load` does, and for flags of the server when no strategy has one.
    """
    names = _split(flags["strategy.name"]) if flags.get("strategy.name") is not None else [None]
    configs = [load(sources, overrides, {**flags, "strategy.name": name}) for name in names]
    of_server = [key for key in flags if key.startswith("server.")]
    if of_server and all(config.strategy.name != "ps" for config in configs):
        raise BadInput(f"{of_server[0]}: is the parameter server's; add --strategy ps, or leave it out")
    return configs


def _split(text: str) -> list[str]:
    names = all_strategies() if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadInput(f"--strategy {text!r}: names no strategy; known: {', '.join(STRATEGIES)}, all")
    if len(set(names)) < len(names):
        raise BadInput(f"--strategy {text}: names one twice; each is measured once")
    return names


def build(values: Mapping[str, Any]) -> Config:
    """Validates plain values; raises `BadInput` with every mistake's key on one line.

    The modules of `plugins` load first, so that the values may name their rows.
    """
    plugins = values.get("plugins", ())
    load_plugins(plugins if isinstance(plugins, list | tuple) and all(isinstance(p, str) for p in plugins) else ())
    return validate(Config, values)


def validate(section: type[AnySection], values: Mapping[str, Any]) -> AnySection:
    """Plain values as a section, this module's or another's; raises `BadInput` as `build` does."""
    _refuse_unknown(values, section, prefix="")
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise BadInput("; ".join(_one_line(e) for e in error.errors())) from None


def find(source: str, folder: Path = SHIPPED, asked: str = "--config") -> Path:
    """The file of a path or of a name shipped in `folder`; `asked` begins the error's line."""
    path, names = Path(source), shipped_names(folder)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise BadInput(f"{asked} {source}: no such file; shipped: {', '.join(names)}")
        return path
    if source in names:
        return folder / f"{source}.toml"
    raise BadInput(f"{asked} {source}: neither a file nor shipped{suggest(source, names)}")


def shipped_names(folder: Path = SHIPPED) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.toml"))


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested table by dotted keys; lists and empty tables stay values."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and value
        found |= dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return found


def _read(path: Path) -> dict[str, Any]:
    return read_toml(path) if path.name != RECORD else _recorded(path)


def _recorded(path: Path) -> dict[str, Any]:
    """The config of a run's record."""
    try:
        values = from_json(path.read_bytes())["config"]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: is no record of a run") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path}: is no record of a run")
    return _without_none(values)


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    pairs = ((key, _without_none(value) if isinstance(value, Mapping) else value) for key, value in table.items())
    return {key: value for key, value in pairs if value is not None}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not TOML: {error}") from None


def parse_override(text: str) -> dict[str, Any]:
    """`a.b=c` as nested tables; `c` is a TOML value, or else a plain string."""
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", key.strip()):
        raise BadInput(f"--set {text}: expected section.key=value")
    try:
        parsed: Any = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return _nested(key.strip(), parsed)


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key == "task" and isinstance(value, str):  # another function has other arguments
            kept = into.get(key, {})
            into[key] = {**(kept if kept.get("function", value) == value else {}), "function": value}
        elif isinstance(value, Mapping) and isinstance(into.setdefault(key, {}), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _refuse_unknown(values: Mapping[str, Any], section: type[BaseModel], prefix: str) -> None:
    for key, value in values.items():
        if key not in section.model_fields:
            known = [prefix + name for name in section.model_fields] if prefix else _all_keys(section)
            raise BadInput(f"{prefix}{key}: unknown key{suggest(prefix + key, known)}")
        inner = section.model_fields[key].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not isinstance(value, Mapping):
                raise BadInput(
                    f"{prefix}{key}: is a section; set one of its keys, such as {key}.{next(iter(inner.model_fields))}"
                )
            _refuse_unknown(value, inner, f"{prefix}{key}.")


def _all_keys(section: type[BaseModel]) -> list[str]:
    keys = list(section.model_fields)
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += [f"{name}.{key}" for key in field.annotation.model_fields]
    return keys


def _one_line(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if isinstance(part, str) and not part.startswith("function"))
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{where}.{message}" if where else message
    got = "" if isinstance(error["input"], Mapping) else f", not {error['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{got}"
