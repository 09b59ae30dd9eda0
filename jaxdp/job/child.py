"""A command that is ended with all that it started, however the one who started it ends (no JAX)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from jaxdp.job.launch import REAPER

GRACE_S = 5.0

# Tells the reaper of its process group and only then becomes the command: there is no moment to slip through. Not a
# `preexec_fn`, which must not be used where threads run, such as a progress bar's.
EXEC_IN_GROUP = """
import os, sys
reaper, command = int(sys.argv[1]), sys.argv[2:]
os.write(reaper, b"%d\\n" % os.getpid())
os.close(reaper)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"error: {command[0]}: cannot be started ({error.strerror})")
"""


@contextmanager
def started(command: Sequence[str], *, stdout: IO[bytes], stderr: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The command's process, without input and in a process group of its own.

    At the end of the `with` the whole group is terminated, and killed if it is still there after `GRACE_S`. It is
    killed too when this process is.
    """
    python = [sys.executable, "-I", "-S", "-c"]
    reaper = subprocess.Popen([*python, REAPER], stdin=subprocess.PIPE, start_new_session=True)
    assert reaper.stdin is not None
    try:
        told = reaper.stdin.fileno()
        process = subprocess.Popen(
            [*python, EXEC_IN_GROUP, str(told), *command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=(told,),
        )
        try:
            yield process
        finally:
            _end(process)
    finally:
        reaper.stdin.close()
        reaper.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        if process.poll() is None:
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(GRACE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
