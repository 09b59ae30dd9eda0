"""Where a result comes from: versions, commit, machine and the resolved config, for `run.json`."""

import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from jaxdp.config import Config
from jaxdp.versions import versions
from jaxdp.workload import unit, units_per_batch


def provenance(
    config: Config,
    devices: Sequence[jax.Device],
    data: dict[str, Any],
    preflight: dict[str, Any],
    xla_flags: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything needed to judge or repeat a run, as strict JSON."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config": config.model_dump(exclude={"model", "data"} if config.task else {"task"}),
        "unit": unit(config),
        "tokens_per_step": units_per_batch(config),
        "devices": [{"id": d.id, "kind": d.device_kind, "platform": d.platform} for d in devices],
        "processes": jax.process_count(),
        "data": data,
        "preflight": preflight,
        "xla_flags": list(xla_flags),
        "versions": versions(),
        "machine": {"system": platform.system(), "machine": platform.machine(), "host": platform.node()},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The commit that this code was run from, with "+" if files differ from it; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
