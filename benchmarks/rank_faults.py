"""Random ranks of a training run are killed and stopped: does it end in time, name the rank, leave nothing, resume?

    python benchmarks/rank_faults.py                  # ten of each under `jaxdp launch`, and by hand: half an hour
    python benchmarks/rank_faults.py --each 1 --json

Every round trains with checkpoints, hits one rank at a random moment after a new checkpoint, waits for the end, and
continues the run from its folder, which tells the step it resumed from. "launch" has a supervisor; "by hand" are three
processes without one, as SLURM or people on several hosts start them: there JAX or the watchdog in each rank must
see it.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from jaxdp.job.launch import free_port
from jaxdp.run import manifest

RANKS, STALL_S, SAVE_EVERY = 3, 10.0, 5
MAX_S = 3 * STALL_S  # to end: the stall limit, then the grace of the others, on a busy machine
FAULTS = (signal.SIGKILL, signal.SIGSTOP)
RESULT = Path(__file__).parent / "results" / "rank_faults.json"
TRAIN = ["train", "--strategy", "fsdp", "--config", "nano", "--set", "train.global_batch=12", "--resume", "auto"]
TRAIN += ["--set", "train.steps=100000", "--save-every", str(SAVE_EVERY), "--quiet"]
COMMAND = [sys.executable, "-P", "-m", "cli"]
LAUNCH = [*COMMAND, "launch", "-n", str(RANKS), "--stall-timeout", str(STALL_S), "--"]


@contextmanager
def under_launch(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    with subprocess.Popen([*LAUNCH, *TRAIN, "--run-dir", str(folder)], stderr=-1, text=True) as process:
        yield [process]


@contextmanager
def by_hand(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    joining = {"JAXDP_COORDINATOR": f"127.0.0.1:{free_port()}", "JAXDP_PROCESSES": str(RANKS)}
    joining |= {"JAXDP_STALL_TIMEOUT_S": str(STALL_S), "JAX_NUM_CPU_DEVICES": "1"}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                subprocess.Popen(
                    [*COMMAND, *TRAIN, "--run-dir", str(folder)],
                    env=os.environ | joining | {"JAXDP_PROCESS_ID": str(rank)},
                    stderr=-1,
                    text=True,
                )
            )
            for rank in range(RANKS)
        ]


WAYS = {"launch": under_launch, "by hand": by_hand}


def ranks_of(folder: Path) -> list[psutil.Process]:
    """All living processes of the run in this folder, and what they started with the same arguments."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        named = str(folder) in (process.info["cmdline"] or ()) and "JAXDP_PROCESS_ID" in (process.info["environ"] or {})
        if named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def rank_of(processes: list[subprocess.Popen[str]], rank: int) -> psutil.Process:
    """The process of a rank: one of those started by hand, or the launcher's child."""
    if len(processes) > 1:
        return psutil.Process(processes[rank].pid)
    children = psutil.Process(processes[0].pid).children()
    return next(child for child in children if child.environ().get("JAXDP_PROCESS_ID") == str(rank))


def saved(folder: Path) -> int:
    return max(manifest.steps(folder / "checkpoints"), default=0) if folder.exists() else 0


def round_of(way: str, fault: signal.Signals, folder: Path, draw: random.Random) -> dict[str, Any]:
    before = saved(folder)
    with WAYS[way](folder) as processes:
        while saved(folder) <= before:
            if any(process.poll() is not None for process in processes):
                sys.exit(f"the run ended before it was hit: {[process.communicate()[1] for process in processes]}")
            time.sleep(0.05)
        time.sleep(draw.uniform(0, 2))
        rank = draw.randrange(RANKS)
        victim = rank_of(processes, rank)
        victim.send_signal(fault)
        started = time.monotonic()
        watched = [process for process in processes if process.pid != victim.pid]
        while any(process.poll() is None for process in watched) and time.monotonic() - started < MAX_S:
            time.sleep(0.02)
        end_s = time.monotonic() - started
        left = [process for process in ranks_of(folder) if process.pid != victim.pid or way == "launch"]
        if fault == signal.SIGSTOP and way != "launch" and victim.status() != psutil.STATUS_STOPPED:
            sys.exit(f"rank {rank} was continued by someone else ({victim.status()}): no result")
        for process in [*processes, *ranks_of(folder)]:
            process.kill()
        said = "".join(process.communicate()[1] for process in watched)
    newest = saved(folder)
    resumed = subprocess.run(
        [*LAUNCH, *TRAIN, "--run-dir", str(folder), "--steps", str(newest + 1), "--json"],
        capture_output=True,
        text=True,
    )
    if resumed.returncode:
        sys.exit(f"the next run failed: {resumed.stderr}")
    return {
        "way": way,
        "fault": fault.name,
        "rank": rank,
        "end_s": end_s,
        # Without a supervisor JAX ends a job whose process 0 is killed, sooner than anyone else can speak.
        "named_by": "jaxdp" if f"rank {rank} " in said else "JAX" if rank == 0 and "leader task" in said else None,
        "exit_codes": sorted({as_a_shell_says(process.returncode) for process in watched}),
        "left": len(left),
        "newest_checkpoint": newest,
        "resumed_from": json.loads(resumed.stdout)["resumed_from"],
    }


def as_a_shell_says(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def line(row: dict[str, Any]) -> str:
    codes = ", ".join(map(str, row["exit_codes"]))
    named = f"named by {row['named_by']}" if row["named_by"] else "NOT NAMED"
    return (
        f"{row['way']:8} {row['fault']:8} rank {row['rank']}: ended in {row['end_s']:4.1f} s, {named}, exit {codes}, "
        f"{row['left']} left, newest checkpoint {row['newest_checkpoint']}, resumed from {row['resumed_from']}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10, help="rounds of each fault (default 10)")
    parser.add_argument("--way", choices=list(WAYS), action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the rows, and keep no record of them")
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    rows = []
    with tempfile.TemporaryDirectory() as room:
        for way in given.way or WAYS:
            for fault in FAULTS:
                for _ in range(given.each):
                    rows.append(round_of(way, fault, Path(room) / "run", draw))
                    print(line(rows[-1]), file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(rows))
    else:
        RESULT.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
