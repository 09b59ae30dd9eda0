"""What became of a cell's process: told from its exit code and from what it said last (no JAX)."""

import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

from jaxdp.records import Status
from jaxdp.strict_json import from_json

# jaxdp's own line (`run.oom`), XLA's, C++'s, Python's, Slurm's.
OUT_OF_MEMORY = re.compile(
    r"out of memory|RESOURCE_EXHAUSTED|bad_alloc|MemoryError|cannot allocate memory|oom.kill", re.IGNORECASE
)
SAID_LAST = 40  # lines that are read for the cause
LONGEST_REASON = 500
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
REFUSED = (2, 3)


class Outcome(NamedTuple):
    status: Status
    reason: str | None = None
    result: dict[str, Any] | None = None


def outcome(code: int, stdout: bytes, said: str, oom_kills: int | None) -> Outcome:
    """The outcome of a process that ended by itself; `said` is its stderr, `oom_kills` the kernel's in the meantime.

    A death by SIGKILL, which nobody here sent, counts as out of memory if the kernel has killed something for that,
    or doesn't say whether it has.
    """
    if code == 0:
        return _result(stdout)
    lines = [line.strip() for line in said.splitlines() if line.strip()][-SAID_LAST:]
    errors = [line for line in lines if "error: " in line]
    if exhausted := [line for line in errors or lines if OUT_OF_MEMORY.search(line)]:
        return Outcome("oom", _reason(exhausted[-1]))
    if code in KILLED and oom_kills != 0:
        sure = "by the kernel, out of memory" if oom_kills else "with SIGKILL, most likely by the kernel for its memory"
        return Outcome("oom", f"killed {sure}; use fewer devices or less memory per device")
    last = _reason((errors or lines or ["it said nothing"])[-1])
    if code in REFUSED and errors:
        return Outcome("refused", last)
    return Outcome("error", last if code > 0 and errors else f"{_ending(code)}: {last}")


def kernel_oom_kills() -> int | None:
    """How many processes the kernel has killed for memory since the machine's start; None where it doesn't say."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        return int(counters["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _result(stdout: bytes) -> Outcome:
    try:
        document = from_json(stdout)
    except ValueError:
        document = None
    if not (isinstance(document, list) and len(document) == 1 and isinstance(document[0], dict)):
        return Outcome("error", "ended well, but did not print one result as JSON")
    return Outcome("ok", None, document[0])


def _reason(line: str) -> str:
    return (line.partition("error: ")[2] or line)[:LONGEST_REASON]


def _ending(code: int) -> str:
    return f"exit code {code}" if code > 0 else f"ended by signal {-code} ({signal.strsignal(-code)})"
