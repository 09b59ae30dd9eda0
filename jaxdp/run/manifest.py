"""What makes a checkpoint whole: a manifest with the SHA-256 of each of its files (no JAX).

    checkpoints/00000100/manifest.json    what the run was, every leaf's shape and dtype, every file's digest
    checkpoints/00000100/state/...        the arrays, as Orbax lays them out

A checkpoint is written under another name and takes its number by one rename once its manifest is on the
disk. So a folder with a number is committed, and whatever is wrong in it happened later.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.run.folder import leads_inside
from jaxdp.strict_json import from_json, plain, sync_folder, to_json, write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
STEP = re.compile(r"\d{8,}")
SHOWN = 12  # differing keys in an error's one line

log = logging.getLogger(__name__)


class Damaged(JaxdpError):
    """A committed checkpoint is no longer what was saved; the message names the file."""


@dataclass(frozen=True)
class Manifest:
    """`leaves` maps a leaf's path to its type ("float32[4,64]"), `files` a file's name to bytes and SHA-256."""

    metadata: dict[str, Any]
    leaves: dict[str, str]
    files: dict[str, dict[str, Any]]


def step_folder(directory: Path, step: int) -> Path:
    return directory / f"{step:08d}"


def steps(directory: Path) -> list[int]:
    """The committed steps, in order."""
    if not directory.is_dir():
        return []
    return sorted(
        int(folder.name)
        for folder in directory.iterdir()
        if STEP.fullmatch(folder.name) and folder == step_folder(directory, int(folder.name))
    )


def seal(folder: Path, metadata: Mapping[str, Any], leaves: Mapping[str, str]) -> None:
    """Brings every file of `folder` to the disk, then writes the manifest."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            files[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "sha256": digest}
        else:
            sync_folder(path)
    write_atomically(folder / MANIFEST, _canonical(Manifest(plain(metadata), dict(leaves), files)))


def read(folder: Path) -> Manifest:
    """The manifest alone, proved intact; the other files are not looked at."""
    path = folder / MANIFEST
    if not leads_inside(path, folder.parent):
        raise Damaged(f"{path}: leads out of the checkpoint folder")
    try:
        content = path.read_bytes()
        document = from_json(content)
        if document["format"] != FORMAT:
            raise Damaged(f"{path}: format {document['format']!r}, this version reads {FORMAT}")
        manifest = Manifest(*(document[key] for key in ("metadata", "leaves", "files")))
        intact = content == _canonical(manifest) and _well_formed(manifest)
    except OSError as error:
        raise Damaged(f"{path}: {_reason(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Damaged(f"{path}: no whole manifest") from None
    if not intact:
        raise Damaged(f"{path}: not what was written (its own SHA-256 differs)")
    step = manifest.metadata.get("step")
    if STEP.fullmatch(folder.name) and step is not None and step != int(folder.name):
        raise Damaged(f"{folder}: is a copy of the checkpoint of step {step} under another number")
    return manifest


def verify(folder: Path) -> Manifest:
    """The manifest, after every file was read and found as it was written; raises `Damaged` naming the first not."""
    manifest = read(folder)
    for name, expected in manifest.files.items():
        path = folder / name
        if not leads_inside(path, folder):
            raise Damaged(f"{path}: leads out of the checkpoint folder")
        try:
            if not path.is_file():
                raise Damaged(f"{path}: missing")
            size = path.stat().st_size
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise Damaged(f"{path}: {_reason(error)}") from None
        if size != expected["bytes"]:
            raise Damaged(f"{path}: {size} bytes instead of {expected['bytes']}")
        if digest != expected["sha256"]:
            raise Damaged(f"{path}: not what was written (SHA-256 differs)")
    return manifest


def latest_good(directory: Path) -> tuple[int, Manifest] | None:
    """The newest step whose files all verify; each damaged one that is passed over is announced."""
    return _newest(directory, verify)


def peek(directory: Path, step: int | Literal["auto"]) -> tuple[int, Manifest] | None:
    """What `step` says about itself (for "auto", the newest readable one), without reading its arrays.

    None if "auto" finds no checkpoint at all.
    """
    if step == "auto":
        return _newest(directory, read)
    return step, read(existing(directory, step))


def existing(directory: Path, step: int) -> Path:
    """The folder of a committed step; refuses one that there is not, naming those there are."""
    known = steps(directory)
    if step not in known:
        there = f"there are {', '.join(map(str, known))}" if known else "there is none"
        raise BadInput(f"{directory}: no checkpoint of step {step}; {there}")
    return step_folder(directory, step)


def refuse_other(saved: Mapping[str, Any], wanted: Mapping[str, Any], where: Path) -> None:
    """Refuses to go on from a checkpoint whose metadata differ from `wanted` in one of its keys; names the keys."""
    found = [difference for key in wanted for difference in differences(saved.get(key), plain(wanted[key]), key)]
    if found:
        more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise BadInput(
            f"{where}: is another run's checkpoint: {'; '.join(found[:SHOWN])}{more}. "
            "Give the run that config, or another --run-dir"
        )


def differences(saved: Any, wanted: Any, path: str) -> list[str]:
    """Every differing key with both values, dotted paths, in order of the keys."""
    if isinstance(saved, Mapping) and isinstance(wanted, Mapping):
        keys = sorted(saved.keys() | wanted.keys())
        return [d for key in keys for d in differences(saved.get(key), wanted.get(key), f"{path}.{key}")]
    return [] if saved == wanted else [f"{path} is {_shown(saved)} there and {_shown(wanted)} here"]


def _newest(directory: Path, proof: Callable[[Path], Manifest]) -> tuple[int, Manifest] | None:
    known = steps(directory)
    for step in reversed(known):
        try:
            return step, proof(step_folder(directory, step))
        except Damaged as damage:
            log.warning("checkpoint of step %d is damaged and passed over: %s", step, damage)
    if known:
        raise Damaged(f"{directory}: none of its checkpoints is whole; start again with --overwrite")
    return None


def _canonical(manifest: Manifest) -> bytes:
    """The only bytes that stand for a manifest, its own digest included: any other content is damage."""
    body = asdict(manifest)
    digest = hashlib.sha256(to_json(body).encode()).hexdigest()
    return (to_json({"format": FORMAT, "sha256": digest, **body}, indent=1) + "\n").encode()


def _well_formed(manifest: Manifest) -> bool:
    return (
        isinstance(manifest.metadata, dict)
        and isinstance(manifest.leaves, dict)
        and len(manifest.files) > 0
        and all(file.keys() == {"bytes", "sha256"} for file in manifest.files.values())
    )


def _reason(error: OSError) -> str:
    return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def _shown(value: Any) -> str:
    return "absent" if value is None else str(value)
