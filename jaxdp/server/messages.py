"""What the server's loop and an engine say to each other (no JAX)."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxdp.server.core import Push, Update
from jaxdp.server.metrics import Spans
from jaxdp.task import Batch

Rows = Callable[[int, int], Batch]  # (sequence, worker) -> the worker's rows of that step


class PullRequest(NamedTuple):
    """A worker is ready for parameters. One that had left joins again by asking."""

    worker: int


class Arrived(NamedTuple):
    """A push: `payload` carries `loss` and `tokens`, sums over its valid tokens, and the gradient.

    `asks`: the worker waits for its next parameters; then no `PullRequest` follows.
    """

    worker: int
    sequence: int
    version: int
    payload: Any
    spans: Spans
    asks: bool = True


class Left(NamedTuple):
    """A worker is gone: for good and for this reason, or for a planned outage (`error` None)."""

    worker: int
    error: str | None


class ShardsLost(Exception):
    """Shards died and were restored as they were last saved; `core` is the state machine's state of that moment."""

    def __init__(self, core: dict[str, Any]) -> None:
        super().__init__("server shards were lost and restored")
        self.core = core


Message = PullRequest | Arrived | Left


class PullGrant(NamedTuple):
    """Permission to compute a step on the parameters of `version`."""

    worker: int
    sequence: int
    version: int
    reading: Any


class Applied(NamedTuple):
    grad_norm: float  # of the averaged gradients, before clipping
    learning_rate: float  # 0 if the update was skipped


class Engine(Protocol):
    """Workers and server shards, wherever they run. All calls come from one thread, the loop's."""

    @property
    def workers(self) -> int: ...

    @property
    def parameter_bytes(self) -> int: ...

    def give(self, grant: PullGrant) -> None:
        """Lets a worker compute; it will answer with `Arrived` or `Left`."""
        ...

    def take(self, timeout_s: float) -> Message | None:
        """The next message in order of arrival, or None after the time is over."""
        ...

    def backlog(self) -> int:
        """Messages that wait to be taken."""
        ...

    def silent_s(self, worker: int) -> float:
        """Seconds since the worker's last sign of life."""
        ...

    def read(self, version: int) -> Any:
        """The shards' parameters, which are at `version`: what a `PullGrant` carries."""
        ...

    def apply(self, update: Update, step: float) -> Applied: ...

    def norm(self, push: Push) -> float:
        """The norm of a push's mean gradient."""
        ...

    def forget(self, before: int) -> None:
        """No push computed on a version below `before` will come."""
        ...

    def save(self, core: dict[str, Any]) -> None:
        """Remembers the shards' state, with the state machine's, for shards that die; then `ShardsLost` has it."""
        ...

    def state(self, step: int) -> Any:
        """A copy of the whole train state."""
        ...

    def close(self) -> None: ...
