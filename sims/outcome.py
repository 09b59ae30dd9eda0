"""What one strategy did in one simulated run (one seed), in the units that the results are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Counts and seconds of one run. Rates are taken over `window_s`, which leaves the warm-up out.

    `staleness` counts applied gradients by their staleness; `mean_step_s` is each worker's mean compute time.
    """

    virtual_time_s: float
    steps: int
    window_s: float
    updates: int  # within the window
    useful: int  # gradients that reached the model within the window
    wasted: float  # computing without effect (dropped, abandoned or lost), as a share of all computing
    busy_s: np.ndarray  # of each worker, within the window
    mean_step_s: np.ndarray
    staleness: Mapping[int, int]
    worker_staleness: Sequence[float | None]
    server_busy_share: float | None = None
    server_queue: float | None = None  # mean pushes waiting for or in their application

    @property
    def useful_per_second(self) -> float:
        return self.useful / self.window_s

    @property
    def slowdown(self) -> float | None:
        """Times slower than if every worker took the mean step and waited for nobody; None if computing is free."""
        mean_s = float(self.mean_step_s.mean())
        return len(self.mean_step_s) / mean_s / self.useful_per_second if mean_s else None

    @property
    def idle_share(self) -> np.ndarray:
        return 1.0 - self.busy_s / self.window_s
