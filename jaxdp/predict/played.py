"""A scheduled program played on a device's rates: one stream computes, one communicates (no JAX).

Kernels follow one another; a collective runs beside them from its start on, one collective after the other, and the
program waits where it awaits one that has not ended. What it waits is that collective's exposed time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jaxdp.hlo.collectives import Collective
from jaxdp.hlo.schedule import Await, Begin, Kernel, Operation
from jaxdp.timeline import Span

MAX_SPANS = 20_000  # of a timeline; longer ones are no help


@dataclass(frozen=True)
class KernelRates:
    """What one device reaches in a single kernel: FLOP/s, bytes/s, and the seconds that a launch takes at least."""

    product_flops: float
    attention_flops: float
    memory_bandwidth: float
    launch_s: float = 0.0

    def seconds(self, kernel: Kernel) -> float:
        """A roofline: the longer of computing and moving, and never less than a launch."""
        flops = self.attention_flops if kernel.kind == "attention" else self.product_flops
        return max(kernel.flops / flops, kernel.bytes / self.memory_bandwidth, self.launch_s)


@dataclass
class Overlap:
    """One collective over all its runs in a step: its time, how much of it shows, and what ran meanwhile."""

    collective: Collective
    count: int = 0
    seconds: float = 0.0
    exposed_s: float = 0.0
    products_between: int = 0  # in all its runs together
    kernels_between: int = 0

    @property
    def hidden_s(self) -> float:
        return self.seconds - self.exposed_s


@dataclass(frozen=True)
class Played:
    """`step_s` is `compute_s` and what shows of the communication; `spans` those of a timeline."""

    step_s: float
    compute_s: float
    overlaps: tuple[Overlap, ...]
    spans: tuple[Span, ...]

    @property
    def exposed_s(self) -> float:
        return sum(overlap.exposed_s for overlap in self.overlaps)


@dataclass
class _Player:
    kernel_s: Callable[[Kernel], float]
    collective_s: Callable[[Collective], float]
    now_s: float = 0.0
    compute_s: float = 0.0
    link_free_s: float = 0.0
    ends_s: dict[str, float] = field(default_factory=dict)  # of the collectives under way
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    def play(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Kernel):
                self._compute(operation)
            elif isinstance(operation, Begin):
                self._begin(operation.collective)
            elif isinstance(operation, Await):
                self._await(operation.name)
            else:
                for _ in range(operation.trips):
                    self.play(operation.body)

    def _compute(self, kernel: Kernel) -> None:
        seconds = self.kernel_s(kernel)
        for name in self.ends_s:
            self.overlaps[name].kernels_between += 1
            self.overlaps[name].products_between += kernel.kind != "other"
        self._span("compute", kernel.op_name or kernel.name, self.now_s, self.now_s + seconds)
        self.now_s += seconds
        self.compute_s += seconds

    def _begin(self, collective: Collective) -> None:
        overlap = self.overlaps.setdefault(collective.name, Overlap(collective))
        seconds = self.collective_s(collective)
        start_s = max(self.now_s, self.link_free_s)
        self.link_free_s = self.ends_s[collective.name] = start_s + seconds
        overlap.count += 1
        overlap.seconds += seconds
        self._span("communication", f"{collective.kind} {collective.where}", start_s, start_s + seconds)

    def _await(self, name: str) -> None:
        waited_s = max(0.0, self.ends_s.pop(name, self.now_s) - self.now_s)
        self.overlaps[name].exposed_s += waited_s
        self.now_s += waited_s

    def _span(self, track: str, name: str, start_s: float, end_s: float) -> None:
        if len(self.spans) < MAX_SPANS:
            self.spans.append(Span(0, track, name, start_s, end_s))


def play(
    operations: Sequence[Operation],
    kernel_s: Callable[[Kernel], float],
    collective_s: Callable[[Collective], float],
) -> Played:
    """One step of a program, given the seconds of a kernel and of one run of a collective."""
    player = _Player(kernel_s, collective_s)
    player.play(operations)
    overlaps = tuple(player.overlaps.values())
    return Played(player.now_s, player.compute_s, overlaps, tuple(player.spans))
