"""Strict JSON and its files: no NaN, documents written whole or not at all, logs that survive a crash (no JAX)."""

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from jaxdp.errors import JaxdpError


def plain(value: Any) -> Any:
    """`value` in JSON's own types; what is not finite becomes None, arrays become lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # NumPy and JAX, which are not imported for this
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_json(value: Any, indent: int | None = None) -> str:
    """One strict JSON document: no NaN, no infinity."""
    return json.dumps(plain(value), allow_nan=False, indent=indent)


def from_json(text: str | bytes) -> Any:
    """Parses strict JSON; raises `ValueError` for anything else, NaN and absurd nesting included."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_json(path: Path, value: Any) -> None:
    """Writes the document whole or not at all: after a crash the file is the old one or the new one."""
    write_atomically(path, (to_json(value, indent=2) + "\n").encode())


def write_atomically(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise JaxdpError(f"{path}: not written ({error.strerror})") from error


def sync_folder(folder: Path) -> None:
    """Makes the renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class JsonLines:
    """An append-only log, a JSON object a line. Opening it cuts off a last line that a crash left torn."""

    def __init__(self, path: Path):
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)  # a line is one write
            self._file.truncate(_whole_bytes(path))
        except OSError as error:
            raise JaxdpError(f"{path}: cannot be opened ({error.strerror})") from error

    def append(self, row: Mapping[str, Any]) -> None:
        line = (to_json(row) + "\n").encode()
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(_whole_bytes(self.path))
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise JaxdpError(f"{self.path}: a line was not written ({error.strerror})") from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a log, without a torn last line; raises naming the line that is not a JSON object."""
    rows = []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise JaxdpError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = from_json(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise JaxdpError(f"{path}:{number}: not a JSON object; remove the line")
        rows.append(row)
    return rows


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the rows of a log that are not `wanted`, such as those past a checkpoint; not while the log is open."""
    if path.exists():
        rows = [row for row in read_lines(path) if wanted(row)]
        write_atomically(path, "".join(to_json(row) + "\n" for row in rows).encode())


def _whole_bytes(path: Path) -> int:
    """The bytes up to and including the last line end."""
    return path.read_bytes().rfind(b"\n") + 1


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
