"""The folder of one run: claimed by one process, and nothing is written outside it (no JAX)."""

import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from jaxdp import strict_json
from jaxdp.errors import BadInput
from jaxdp.strict_json import JsonLines

CLAIM = ".jaxdp-run"  # marks a folder as a run's, and is locked while a process writes there
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,=+-]{0,127}")


class RunFolder:
    """A folder held by this process until `release` or the end of a `with`.

    Of a run over many processes one holds it. The others need no claim, and what they would write of the run's
    records (`writes` False) comes to nothing.
    """

    def __init__(self, path: Path, claim: int | None = None, *, writes: bool = True):
        self.path = path
        self.writes = writes
        self._claim = claim

    def file(self, name: str) -> Path:
        """The path of `name` ("summary.json", "figures/loss.svg"); refuses every way out of the folder."""
        for part in name.split("/"):
            safe_name(part)
        path = self.path / name
        if not leads_inside(path, self.path):
            raise BadInput(f"{path}: is a link out of the run folder; remove it or choose another --run-dir")
        return path

    def write_json(self, name: str, value: Any) -> Path:
        path = self.file(name)
        if self.writes:
            strict_json.write_json(path, value)
        return path

    def lines(self, name: str) -> "JsonLines | NoLines":
        return JsonLines(self.file(name)) if self.writes else NoLines()

    def release(self) -> None:
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class NoLines:
    """The log of a process that writes none."""

    def append(self, row: Mapping[str, Any]) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def open_run(path: Path, *, resume: bool = False, overwrite: bool = False) -> RunFolder:
    """Creates and claims the folder of a run.

    A folder that holds a run is refused unless that run is resumed or overwritten, and one that holds
    anything else always; so is one that is not writable, or that another process is writing to.
    """
    if resume and overwrite:
        raise BadInput("--overwrite: would delete the run that --resume continues; give only one of them")
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = [entry for entry in path.iterdir() if entry.name != CLAIM]
        if held:
            _refuse_held(path, held, resume, overwrite)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        claim = _claim(path)
        if overwrite:
            for entry in held:
                remove(entry)
    except OSError as error:
        raise _unusable(path, error) from None
    return RunFolder(path, claim)


def fresh_run(name: str, root: Path = Path("runs")) -> RunFolder:
    """A new folder under `root`, named by the time and `name`."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{safe_name(name)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for count in range(1, 10_000):
            path = root / (stem if count == 1 else f"{stem}-{count}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return open_run(path)
    except OSError as error:
        raise _unusable(root, error) from None
    raise BadInput(f"{root / stem}: taken ten thousand times over; choose another --run-dir")


def safe_name(name: str) -> str:
    """`name`, if it is one plain path component; refuses "..", separators, absolute paths and hidden files."""
    if not NAME.fullmatch(name):
        raise BadInput(f"{name!r}: not a safe name; use letters, digits and . _ , = + - with a letter or digit first")
    return name


def leads_inside(path: Path, folder: Path) -> bool:
    """Whether `path`, with every link and ".." followed, stays in `folder`."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a NUL in the name
        return False


def remove(path: Path) -> None:
    """Removes a file, a link (never what it points to) or a folder; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refuse_held(path: Path, held: list[Path], resume: bool, overwrite: bool) -> None:
    if not (path / CLAIM).is_file() and not (path / "run.json").is_file():
        names = ", ".join(sorted(entry.name for entry in held)[:3])
        raise BadInput(f"--run-dir {path}: holds files that are no run's ({names}); choose an empty or new folder")
    if not resume and not overwrite:
        raise BadInput(
            f"--run-dir {path}: holds another run; continue it with --resume auto, replace it with "
            "--overwrite, or choose another folder"
        )


def _claim(path: Path) -> int:
    claim = os.open(path / CLAIM, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(claim)
        raise BadInput(f"--run-dir {path}: another process is writing to it; stop that one first") from None
    except OSError:
        pass  # a file system without locks: go on without this protection
    return claim


def _unusable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"--run-dir {path}: cannot be written ({error.strerror}); choose another folder")
