"""Stopping in good order: the first SIGTERM or Ctrl-C asks, the second one ends the process at once."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAME_REQUEST_S = 0.1  # `timeout`, a launcher and the terminal may each deliver one request: not a second one
SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar hides

log = logging.getLogger(__name__)


class StopFlag:
    """While entered, SIGTERM and SIGINT set `requested` and `exit_code` (143, 130), to be polled.

    A watcher thread reads signals from a pipe that the interpreter's C handler fills, so that a second
    signal works even while the main thread compiles or saves and runs no Python. Off the main thread,
    where Python allows no handlers, entering does nothing.

    In a run over many processes `agree` turns this one's exit code into that of all. Then reading the flag is a
    step that all take together, at the same places of the program, and what was read once stays.

    `at_once`: there is nothing to save, and the first signal ends the process. Either way Python's KeyboardInterrupt is
    kept out of XLA, which crashes when it is raised in a compilation.
    """

    def __init__(
        self,
        agree: Callable[[int | None], int | None] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self._at_once = at_once
        self._own_code: int | None = None
        self._agreed_code: int | None = None
        self._agree = agree
        self._asked_at = 0.0
        self._old_handlers: dict[signal.Signals, Any] = {}
        self._watcher: threading.Thread | None = None

    @property
    def exit_code(self) -> int | None:
        """Of what was read so far; without other processes, of the signal received."""
        return self._agreed_code if self._agree else self._own_code

    @property
    def requested(self) -> bool:
        if self._agree and self._agreed_code is None:
            self._agreed_code = self._agree(self._own_code)
        return self.exit_code is not None

    def __bool__(self) -> bool:
        return self.requested

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._old_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._old_handlers = {number: signal.signal(number, _stay) for number in SIGNALS}
        self._watcher = threading.Thread(target=self._watch, name="stop", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is None:
            return
        for number, handler in self._old_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._writer)  # the watcher reads the end and returns
        self._watcher.join()
        self._watcher = None
        os.close(self._reader)

    def _watch(self) -> None:
        while received := os.read(self._reader, 1):
            if received[0] in SIGNALS:
                self._ask(received[0])

    def _ask(self, number: int) -> None:
        now = time.monotonic()
        if self._at_once:
            _end(128 + number)
        if self._own_code is None:
            self._own_code, self._asked_at = 128 + number, now
            name = signal.Signals(number).name
            log.warning("%s: saving and stopping; a second signal ends the run at once, unsaved", name)
        elif now - self._asked_at > SAME_REQUEST_S:
            _end(128 + number)


def _end(code: int) -> None:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, SHOW_CURSOR)
    os._exit(code)


def _stay(number: int, frame: FrameType | None) -> None:
    """Keeps the signal from ending the process; the watcher acts on it."""
