"""Real straggling: a worker is held back until the time that its delays mean a step to take."""

import time
from collections.abc import Callable

from jaxdp.stragglers.delays import Delays

BEAT_S = 0.5  # a worker that is held back shows that often that it lives


class Pacer:
    """One worker's delays in real time. `sleep(seconds)` returns True if the run is over meanwhile."""

    def __init__(self, delays: Delays, worker: int, origin_s: float, sleep: Callable[[float], bool]) -> None:
        self.delays = delays
        self.worker = worker
        self.origin_s = origin_s
        self._sleep = sleep

    def hold(self, sequence: int, started_s: float) -> tuple[float, bool]:
        """Waits until a step that started at `started_s`, and is computed by now, has taken its intended time.

        Returns the intended seconds, and whether an outage took the worker down meanwhile (its step is lost).
        """
        computed_s = time.perf_counter() - started_s
        if not self.delays:
            return computed_s, False
        at_s = started_s - self.origin_s
        intended_s = self.delays.step_seconds(self.worker, sequence, computed_s, at_s)
        outage = self.delays.next_outage(self.worker, at_s)
        if outage.start_s < at_s + intended_s:
            self.until(self.origin_s + outage.start_s)
            return intended_s, True
        self.until(started_s + intended_s)
        return intended_s, False

    def recover(self) -> None:
        """Waits for the end of the outage the worker is in."""
        now_s = time.perf_counter()
        outage = self.delays.next_outage(self.worker, now_s - self.origin_s)
        if outage.start_s <= now_s - self.origin_s:
            self.until(self.origin_s + outage.end_s)

    def link(self, seconds: float) -> None:
        """Waits after a transfer of these seconds as long as a slower link would have taken."""
        self.until(time.perf_counter() + (self.delays.bandwidth_divisor(self.worker) - 1) * seconds)

    def until(self, when_s: float) -> None:
        while (left_s := when_s - time.perf_counter()) > 0 and not self._sleep(min(left_s, BEAT_S)):
            pass
