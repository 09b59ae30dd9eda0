"""The user's cache folder: what can be computed again, kept by name (no JAX).

A cache that cannot be read or written costs time, never a run.
"""

import hashlib
import os
import tempfile
from pathlib import Path

DIGEST_BYTES = hashlib.sha256().digest_size


def folder() -> Path:
    """`$XDG_CACHE_HOME/jaxdp`, by default `~/.cache/jaxdp`."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "jaxdp"


def read(name: str) -> bytes | None:
    """What was kept under `name`; None if nothing was, or if its bytes are no longer those written."""
    try:
        kept = (folder() / name).read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: this user has no home folder
        return None
    digest, content = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def write(name: str, content: bytes) -> None:
    """Keeps `content` under `name`; another process sees all of it or nothing."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=folder(), prefix=f"{name}.partial-")
    except (OSError, RuntimeError):
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
        Path(partial).replace(folder() / name)
    except OSError:
        Path(partial).unlink(missing_ok=True)
