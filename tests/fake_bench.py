"""Stands for `jaxdp bench` where a sweep is tested: ends at once, in the way that its --set train.seed asks for.

Writes its process id into its run folder first, so that one can see which processes were started and are left.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    arguments = sys.argv[1:]
    settings = dict(word.split("=", 1) for word in arguments if "=" in word)
    folder = Path(arguments[arguments.index("--run-dir") + 1])
    folder.mkdir(parents=True)  # fails where the sweep has not removed what a killed one left
    grandchild = subprocess.Popen(["sleep", "600"]) if settings.get("train.seed") in ("3", "33", "7") else None
    (folder / "pids").write_text(f"{os.getpid()} {grandchild.pid if grandchild else ''}")
    match settings.get("train.seed", "0"):
        case "1":
            sys.exit("error: ddp ran out of memory while training: 4 sequences of 64 tokens")
        case "2":
            print("step 1 done", file=sys.stderr)
            print("error: step 2 of ddp: the loss is nan", file=sys.stderr)
            sys.exit(1)
        case "3":
            time.sleep(600)
        case "33":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "4":
            os.kill(os.getpid(), signal.SIGKILL)
        case "5":
            print("error: memory: needs 9.00 GiB", file=sys.stderr)
            sys.exit(3)
        case "6":
            print("no document")
            sys.exit(0)
        case "8":
            os.abort()
    strategy, devices = (arguments[arguments.index(flag) + 1] for flag in ("--strategy", "--devices"))
    result = {"strategy": strategy, "devices": int(devices), "tokens_per_second": 1.0, "step_time_s": {"median": 1.0}}
    print(json.dumps([result]))


if __name__ == "__main__":
    main()
