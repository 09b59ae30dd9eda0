"""Stragglers in real time: a worker is held back until its step has taken what its delays say. All sleeping is here."""

import time
from collections.abc import Callable

from jaxdp.stragglers.delays import Delays

BEAT_S = 0.5  # a sleep is cut in pieces of this, so that a worker that is held back shows that it lives


def sleep(seconds: float) -> bool:
    """Sleeps; returns whether the run is over meanwhile, which it never is by itself."""
    time.sleep(seconds)
    return False


class Injector:
    """Delays in real time, counted from `origin_s` on the monotonic clock.

    `wait(seconds)` sleeps and returns True if the run is over meanwhile.
    """

    def __init__(self, delays: Delays, wait: Callable[[float], bool] = sleep, origin_s: float | None = None) -> None:
        self.delays = delays
        self.origin_s = time.perf_counter() if origin_s is None else origin_s
        self._wait = wait

    def hold(self, worker: int, step: int, started_s: float) -> tuple[float, bool]:
        """Waits until a step that started at `started_s`, and is computed by now, has taken its intended time.

        Returns the intended seconds, and whether an outage took the worker down meanwhile (its step is lost).
        """
        computed_s = time.perf_counter() - started_s
        if not self.delays:
            return computed_s, False
        at_s = started_s - self.origin_s
        intended_s = self.delays.step_seconds(worker, step, computed_s, at_s)
        outage = self.delays.next_outage(worker, at_s)
        down = outage.start_s < at_s + intended_s
        self._until(self.origin_s + outage.start_s if down else started_s + intended_s)
        return intended_s, down

    def recover(self, worker: int) -> None:
        """Waits for the end of the outage the worker is in."""
        now_s = time.perf_counter() - self.origin_s
        outage = self.delays.next_outage(worker, now_s)
        if outage.start_s <= now_s:
            self._until(self.origin_s + outage.end_s)

    def slow_link(self, worker: int, seconds: float) -> None:
        """Waits after a transfer of these seconds as long as a slower link would have taken."""
        self._until(time.perf_counter() + (self.delays.bandwidth_divisor(worker) - 1) * seconds)

    def _until(self, when_s: float) -> None:
        while (left_s := when_s - time.perf_counter()) > 0 and not self._wait(min(left_s, BEAT_S)):
            pass
