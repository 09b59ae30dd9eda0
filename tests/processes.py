"""Ranks of one job on this machine: real processes of the command line, none of which outlives its test."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PATIENCE_S = 240.0  # far beyond what a rank needs, on a busy machine too


class Done(NamedTuple):
    code: int
    out: str
    errors: str


class Rank(NamedTuple):
    process: subprocess.Popen
    output: Path

    def done(self, deadline: float) -> Done:
        code = self.process.wait(max(1.0, deadline - time.monotonic()))
        return Done(code, self.output.with_suffix(".out").read_text(), self.output.with_suffix(".err").read_text())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def started(
    processes: int,
    *arguments: str,
    folder: Path,
    hosts: Sequence[str] = (),
    only: Sequence[int] | None = None,
    own: Sequence[Sequence[str]] = (),
    devices: Sequence[int] = (),
) -> Iterator[list[Rank]]:
    """`jaxdp ARGUMENTS` as so many ranks (or `only` some of them), on `hosts` of these names; killed at the end.

    `own` are further arguments of each rank, `devices` the number of each one's host devices.
    """
    environment = {**os.environ, "JAXDP_COORDINATOR": f"127.0.0.1:{free_port()}", "JAXDP_PROCESSES": str(processes)}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    folder.mkdir(parents=True, exist_ok=True)
    ranks = []
    try:
        for index in only or range(processes):
            place = {"JAXDP_PROCESS_ID": str(index), **({"JAXDP_HOST_NAME": hosts[index]} if hosts else {})}
            place |= {"JAX_NUM_CPU_DEVICES": str(devices[index])} if devices else {}
            output = folder / f"rank{index}"
            with output.with_suffix(".out").open("w") as out, output.with_suffix(".err").open("w") as errors:
                command = [sys.executable, "-m", "cli", *arguments, *(own[index] if own else ())]
                process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=errors, env={**environment, **place})
            ranks.append(Rank(process, output))
        yield ranks
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()


def finish(ranks: Sequence[Rank]) -> list[Done]:
    """What became of the ranks; raises if one does not end."""
    deadline = time.monotonic() + PATIENCE_S
    return [rank.done(deadline) for rank in ranks]


def run(processes: int, *arguments: str, folder: Path, hosts: Sequence[str] = ()) -> list[Done]:
    with started(processes, *arguments, folder=folder, hosts=hosts) as ranks:
        return finish(ranks)
