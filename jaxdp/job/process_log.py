"""The log of one process of many: `logs/process-00003.log` in the run's folder (no JAX)."""

import logging
import logging.handlers
from pathlib import Path

LINE = logging.Formatter("%(asctime)s %(levelname)s %(message)s")


class ProcessLog:
    """Keeps this process's lines, and the library's warnings, until there is a file for them.

    Process 0 alone shows warnings on stderr.
    """

    def __init__(self, process_id: int):
        self._process_id = process_id
        self._kept = logging.handlers.MemoryHandler(capacity=1000, flushLevel=logging.CRITICAL + 1)
        self._own = logging.getLogger(f"jaxdp-process-{process_id}")
        self._own.propagate = False
        self._own.setLevel(logging.INFO)
        self._own.addHandler(self._kept)
        root = logging.getLogger()
        if process_id != 0:
            root.handlers.clear()
        root.addHandler(self._kept)

    def say(self, line: str) -> None:
        self._own.info(line)

    def write_to(self, folder: Path) -> None:
        path = folder / "logs" / f"process-{self._process_id:05d}.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = logging.FileHandler(path)
        except OSError as error:
            self.say(f"no log file: {error}")  # a host that doesn't share the folder may not be let to make one
            return
        target.setFormatter(LINE)
        target.handleError = lambda record: None  # a full disk is told where it matters
        self._kept.setTarget(target)
        self._kept.capacity = 1  # from here on every line goes through
        self._kept.flush()
