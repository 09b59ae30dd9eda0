"""What runs: the versions of the packages that decide a result, and of this code (no JAX)."""

import hashlib
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("jaxdp", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "ray")


def versions() -> dict[str, str]:
    """Python's version and those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def code_sha256() -> str:
    """Of this package's sources, whatever they were installed from."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
