"""A small process that saves in a loop, to be killed, starved of disk space or asked to stop.

python tests/saver.py loop FOLDER         saves every step and prints it
python tests/saver.py starved FOLDER      saves steps until the disk is full; exits as the command line would
python tests/saver.py stopped FOLDER      like loop, until a signal asks to stop
"""

import resource
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdp.errors import JaxdpError
from jaxdp.job.stop import StopFlag
from jaxdp.run.checkpoint import Checkpoints


def state(step: int) -> dict[str, Any]:
    """About 4 MB that the step alone determines."""
    draw = np.random.default_rng(step)
    values = {f"w{i}": draw.standard_normal((512, 256), dtype=np.float32) for i in range(8)}
    return {"step": np.int32(step).reshape(()), "params": values}


def loop(checkpoints: Checkpoints, stop: StopFlag | None = None) -> None:
    target = jax.eval_shape(lambda: state(0))
    restored = checkpoints.restore("auto", target)
    step = restored.step + 1 if restored else 0
    print("ready", flush=True)
    while not stop:
        checkpoints.save(step, jax.device_put(state(step)), {"step": step})
        print(step, flush=True)
        step += 1


def starve() -> None:
    """No file may grow beyond 64 KiB: what a full disk looks like, without filling one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, resource.RLIM_INFINITY))


def main(how: str, folder: Path) -> int:
    try:
        with StopFlag() as stop, Checkpoints(folder) as checkpoints:
            if how == "loop":
                loop(checkpoints)
            elif how == "stopped":
                loop(checkpoints, stop)
            elif how == "filled":
                for step in range(1000):
                    checkpoints.save(step, state(step), {"step": step})
            else:
                checkpoints.save(0, state(0), {"step": 0})
                checkpoints.wait()
                starve()
                checkpoints.save(1, state(1), {"step": 1})
        return stop.exit_code or 0
    except JaxdpError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
