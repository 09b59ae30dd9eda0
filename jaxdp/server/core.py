"""The parameter server as a pure state machine: no thread, clock, network or array (no JAX).

Whoever drives it (threads, a Ray actor, the simulator's virtual time) calls, one call at a time:

    server = Server(make_policy("ssp", bound=3), workers=range(8))
    version = server.pull(worker)              # may start now on this version, or None: wait
    sequence = server.sequences[worker]        # the number of the step it is to compute
    reply = server.push(worker, sequence, version, tokens, payload)
    reply = server.leave(worker)               # died, or was declared dead
    reply = server.join(worker)                # came (back); its next sequence is in `sequences`
    reply = server.join(*workers)              # came back together: none is moved on for another's sake

Every reply has a `status`, the `update` to apply now (or None) and the workers `released` by it: those
whose `pull` was answered None and would now be granted. A released worker calls `pull` again.

* A *version* is the number of updates so far. The staleness of a push is the number of updates between
  its pull and its application.
* A *sequence* numbers a worker's steps and names its part of the data, (sequence, worker). The server
  says which one comes next. A push whose sequence was taken or passed over is a `duplicate` and changes
  nothing.
  In lockstep (sync, backup) the sequence is the version, so that a late or returning worker takes up the
  step the others are at; otherwise it counts the worker's own steps and has no gaps.
* `applied`: an update was made, with this push in it. `waiting`: held until its update is complete; under
  softsync the worker goes on meanwhile. `dropped`: late under lockstep, or from a worker that has left.
* `tokens` are the token positions a push consumed, padding included. Their running sum over applied
  pushes drives the learning-rate schedule: tokens / tokens of a global batch = steps.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.policies import Correction, Policy, learning_rate_scale

Status = Literal["applied", "waiting", "duplicate", "dropped", "left", "joined"]


class Push(NamedTuple):
    worker: int
    sequence: int
    version: int  # the version it was computed on
    tokens: int
    payload: Any


class Update(NamedTuple):
    """What to apply: the mean of `pushes`, with the learning rate of `tokens` times `rate_scale`."""

    version: int  # after the update
    tokens: int  # consumed before the update
    pushes: tuple[Push, ...]  # in the order of the workers, so that their sum does not depend on arrival
    staleness: tuple[int, ...]  # of each push
    rate_scale: float


class Reply(NamedTuple):
    status: Status
    update: Update | None = None
    released: tuple[int, ...] = ()


_new = tuple.__new__  # faster than calling the class, in the path that every push takes
_DUPLICATE = Reply("duplicate")
_DROPPED = Reply("dropped")
_WAITING = Reply("waiting")


class Server:
    """The state of one parameter server. Every call takes O(1) amortised, plus O(n) for each update of n pushes."""

    def __init__(self, policy: Policy, workers: Iterable[int] = (), correction: Correction = "none") -> None:
        self.policy = policy
        self.correction: Correction = correction
        self.version = 0
        self.tokens = 0
        self.applied = 0  # pushes
        self.dropped = 0
        self.duplicates = 0
        self.lost_versions = 0  # updates undone by restarts from an older snapshot
        self.sequences: dict[int, int] = {}  # of the workers present: the step each computes next
        self._absent: dict[int, int] = {}
        self._held: list[Push] = []
        self._waiting: dict[int, int] = {}  # worker -> steps it will have completed when it starts
        self._slowest = 0  # the least completed steps of the workers present, kept up under a bound only
        self._at_slowest = 0
        self._bound = 0 if policy.lockstep else policy.bound
        self._tracks_slowest = policy.bound is not None and not policy.lockstep
        self._immediate = policy.immediate
        self.join(*workers)

    def pull(self, worker: int, ahead: int = 0) -> int | None:
        """The version to compute on, or None if the worker must wait until a reply releases it.

        `ahead` counts the worker's pushes still on their way (a prefetching worker has one).
        """
        completed = self.sequences.get(worker)
        if completed is None:
            raise JaxdpError(f"worker {worker} is not part of the run (left, or never joined); join first")
        if self._bound is None:
            return self.version
        if completed + ahead - self._floor() > self._bound:
            self._waiting[worker] = completed + ahead
            return None
        self._waiting.pop(worker, None)
        if self.policy.lockstep:
            if ahead:
                raise BadInput("pull: in lockstep there is no step to prefetch for before the push")
            self.sequences[worker] = self.version
        return self.version

    def push(self, worker: int, sequence: int, version: int, tokens: int = 1, payload: Any = None) -> Reply:
        """Takes a gradient computed on `version`; see the module's head for the replies.

        Raises `BadInput` for a sequence or a version that the server never gave out.
        """
        expected = self.sequences.get(worker)
        if expected is None:
            self.dropped += 1
            return _DROPPED
        if sequence < expected:
            self.duplicates += 1
            return _DUPLICATE
        lockstep = self.policy.lockstep
        given_out = sequence == expected and 0 <= version <= self.version and tokens >= 0
        if not given_out or (lockstep and version != sequence):
            raise BadInput(
                f"push of worker {worker}: sequence {sequence}, version {version}, {tokens} tokens; expected "
                f"sequence {expected} and a version up to {self.version}{' equal to it' if lockstep else ''}"
            )
        self.sequences[worker] = expected + 1
        push = _new(Push, (worker, sequence, version, tokens, payload))
        if self._immediate:
            update = self._update_of_one(push)
            if self._tracks_slowest and expected == self._slowest:
                return Reply("applied", update, self._one_less_at_slowest())
            return _new(Reply, ("applied", update, ()))
        if lockstep and version != self.version:
            self.dropped += 1
            return _DROPPED
        self._held.append(push)
        update = self._complete()
        released = self._one_less_at_slowest() if self._tracks_slowest and expected == self._slowest else ()
        if update is None:
            return Reply("waiting", None, released) if released else _WAITING
        return Reply("applied", update, (*released, *self._release()))

    def leave(self, worker: int) -> Reply:
        """Takes a dead worker out, which may complete an update or release others; what it pushed stays."""
        if worker not in self.sequences:
            return Reply("left")
        self._absent[worker] = self.sequences.pop(worker)
        self._waiting.pop(worker, None)
        self._find_slowest()
        return Reply("left", self._complete(), self._release())

    def join(self, *workers: int) -> Reply:
        """Lets workers in, never behind those present: each takes up their step, or its own next one if that is later.

        Workers that come back together, as after a restart, are not held against one another: each goes on where it
        was, so that no step of a slower one is passed over.
        """
        floor = self._floor() if self.sequences else 0
        for worker in workers:
            if worker not in self.sequences:
                self.sequences[worker] = max(self._absent.pop(worker, 0), floor)
                if self.policy.lockstep:
                    self.sequences[worker] = max(self.sequences[worker], self.version)
        self._find_slowest()
        return Reply("joined", self._complete(), self._release())

    @property
    def held(self) -> int:
        """Pushes that wait for their update."""
        return len(self._held)

    def snapshot(self) -> dict[str, Any]:
        """The state as plain JSON. Held pushes are left out: their sequences are to be computed again."""
        sequences = self._absent | self.sequences
        for push in reversed(self._held):
            sequences[push.worker] = push.sequence
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return {**counters, "sequences": [list(item) for item in sorted(sequences.items())]}

    @classmethod
    def restore(
        cls, policy: Policy, state: Mapping[str, Any], correction: Correction = "none", seen_version: int = 0
    ) -> "Server":
        """A server continued from `snapshot()`, with no worker present: all have to join.

        `seen_version` is the highest version any worker is known to have pulled. The restored server goes
        on above it and counts the updates lost, so that the version never goes backwards.
        Raises `BadInput` if the state is damaged.
        """
        server = cls(policy, correction=correction)
        try:
            counters = {name: state[name] for name in _COUNTERS}
            sequences = dict(state["sequences"])
        except (KeyError, TypeError, ValueError):
            raise BadInput("server state: damaged; restore from an older checkpoint") from None
        for name, value in [*counters.items(), *sequences.items(), *(("", s) for s in sequences.values())]:
            if type(value) is not int or value < 0:
                raise BadInput(f"server state: {name or 'sequence'} is {value!r}, not a count")
        for name, value in counters.items():
            setattr(server, name, value)
        server.lost_versions += max(0, seen_version - server.version)
        server.version = max(server.version, seen_version)
        server._absent = sequences
        return server

    def _update_of_one(self, push: Push) -> Update:
        before, tokens = self.version, self.tokens
        self.version = version = before + 1
        self.tokens = tokens + push[3]
        self.applied += 1
        stale = before - push[2]
        scale = learning_rate_scale(self.correction, stale) if stale > 1 else 1.0
        return _new(Update, (version, tokens, (push,), (stale,), scale))

    def _update(self, pushes: tuple[Push, ...]) -> Update:
        before, tokens = self.version, self.tokens
        self.version += 1
        self.tokens += sum(push.tokens for push in pushes)
        self.applied += len(pushes)
        staleness = tuple(before - push.version for push in pushes)
        scale = learning_rate_scale(self.correction, sum(staleness) / len(staleness))
        return Update(before + 1, tokens, pushes, staleness, scale)

    def _complete(self) -> Update | None:
        """The update of the held pushes if they suffice. In lockstep only those of workers present count."""
        held, needed = self._held, self.policy.needed(len(self.sequences))
        if len(held) < needed or not self.sequences:
            return None
        if self.policy.lockstep and sum(push.worker in self.sequences for push in held) < needed:
            return None
        self._held = []
        return self._update(tuple(sorted(held, key=_place)))

    def _floor(self) -> int:
        """Completed steps against which a worker's lead is measured."""
        return self.version if self.policy.lockstep else self._slowest

    def _release(self) -> tuple[int, ...]:
        if not self._waiting:
            return ()
        limit = self._floor() + (self._bound or 0)
        released = tuple(worker for worker, steps in self._waiting.items() if steps <= limit)
        for worker in released:
            del self._waiting[worker]
        return released

    def _one_less_at_slowest(self) -> tuple[int, ...]:
        self._at_slowest -= 1
        if self._at_slowest:
            return ()
        self._find_slowest()
        return self._release()

    def _find_slowest(self) -> None:
        if self._tracks_slowest and self.sequences:
            self._slowest = min(self.sequences.values())
            self._at_slowest = sum(steps == self._slowest for steps in self.sequences.values())


_COUNTERS = ("version", "tokens", "applied", "dropped", "duplicates", "lost_versions")


def _place(push: Push) -> tuple[int, int]:
    return push.worker, push.sequence
