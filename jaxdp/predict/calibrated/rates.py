"""What devices, stacks and networks reach: the coefficients of `coefficients.toml`, each with its source.

Every number stands there as `name = [value, source]`. A device or stack takes what it lacks from `default`.
"""

import bisect
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from jaxdp.predict.calibrated.devices import DEVICES
from jaxdp.predict.calibrated.runs import Run

FILE = Path(__file__).with_name("coefficients.toml")
Entry = tuple[float, str]  # a value and its source


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of a device's data sheet that training reaches.

    `products`: of the bfloat16 peak. `narrow`: the power of a narrower format's gain in peak that remains.
    `memory`: of the memory's bandwidth. `flash1`, `flash2`, `fused`: of the bfloat16 peak, by attention kernel, in long
    contexts. It is half at `attention_context` tokens, and falls with heads narrower than 128 by the power
    `attention_width`.
    """

    products: float
    narrow: float
    memory: float
    flash1: float
    flash2: float
    fused: float
    attention_context: float
    attention_width: float


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What a stack repeats, overlaps, and keeps.

    Time: `products` scales the device's rate; `passes` is how often a block's values cross the memory, `logit_passes`
    the float32 logits, `cast` the bytes per value of scaling to float8, `launch_s` the time to launch a block's
    kernels, `recompute` the share of a block's forward pass that recomputing it takes. `overlap` is the share of FSDP's
    communication that computing can hide, `overlap_end` that of gradients and parameters of DDP and ZeRO; `jitter`
    the share of a step that each doubling of hosts adds. `gradient_bytes` a parameter are reduced,
    `accumulation_bytes` cross the memory for each microbatch.
    Memory: bytes a parameter held whole under DDP and ZeRO-1 (`parameter_bytes`, `held_gradient_bytes`,
    `optimizer_bytes`, `buffer_bytes`), `gathered_bytes` of a block's under FSDP; `saved` scales the saved values,
    `logit_bytes` are those of a logit; `fixed_gib` is the runtime's own, `usable` the share that can be filled.
    """

    products: float
    passes: float
    logit_passes: float
    cast: float
    launch_s: float
    recompute: float
    overlap: float
    overlap_end: float
    jitter: float
    gradient_bytes: float
    accumulation_bytes: float
    parameter_bytes: float
    held_gradient_bytes: float
    optimizer_bytes: float
    buffer_bytes: float
    gathered_bytes: float
    saved: float
    logit_bytes: float
    fixed_gib: float
    usable: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of a link's and a NIC's bandwidth, seconds that a ring adds per device and message.

    `congestion`: the power of the number of hosts by which bandwidth falls.
    """

    link: float
    nic: float
    link_step_s: float
    step_s: float
    congestion: float


Bus = tuple[tuple[float, float, float, float], ...]  # hosts; all-reduce, all-gather, reduce-scatter in bytes/s


@dataclass(frozen=True)
class Network:
    """A cluster's links. `measured`: the bus bandwidth between hosts where it was measured, in place of the formula."""

    link: float
    nic: float
    domain: int
    shares: Shares
    measured: Bus = ()

    def one_pass(self, kind: str, whole: float, n: float, messages: float) -> float:
        """Seconds of an all-gather or a reduce-scatter of `whole` bytes in so many messages over n devices."""
        return self._seconds(kind, whole, n, min(n, self.domain), messages, n)

    def all_reduce(self, whole: float, n: float, messages: float, spread: bool = False) -> float:
        """Seconds of an all-reduce; `spread`: every device is in another domain."""
        inside = 1 if spread else min(n, self.domain)
        return self._seconds("all-reduce", 2 * whole, n, inside, messages, 2 * n / inside)

    def _seconds(self, kind: str, sent: float, n: float, inside: float, messages: float, steps: float) -> float:
        hosts = n / inside
        if self.measured:
            return sent * (n - 1) / n / self._bus(kind, hosts)
        within = sent * (inside - 1) / inside / self.link
        if hosts <= 1:
            return within + messages * n * self.shares.link_step_s
        across = sent * (hosts - 1) / hosts / (inside * self.nic) * hosts**self.shares.congestion
        return max(across, within) + messages * steps * self.shares.step_s

    def _bus(self, kind: str, hosts: float) -> float:
        """On a line through the logarithms of what was measured, beyond the last as before it."""
        column = {"all-reduce": 1, "all-gather": 2, "reduce-scatter": 3}[kind]
        points = [(math.log(row[0]), math.log(row[column])) for row in self.measured]
        x = math.log(hosts)
        last = max(1, min(bisect.bisect_left(points, (x,)), len(points) - 1))
        (x0, y0), (x1, y1) = points[last - 1], points[last]
        return math.exp(y0 + (y1 - y0) * (x - x0) / (x1 - x0))


@dataclass(frozen=True)
class Coefficients:
    """Values by dotted name (`devices.h100.products`), and networks that were measured."""

    values: Mapping[str, float]
    measured: Mapping[str, Bus]
    _groups: dict[tuple[type, str], Any] = field(default_factory=dict, compare=False, repr=False)

    def rates(self, device: str) -> Rates:
        return self._group("devices", device, Rates)

    def stack(self, name: str) -> Stack:
        return self._group("stacks", name, Stack)

    def network(self, run: Run) -> Network:
        sheet, shares = DEVICES[run.device], self._group("networks", run.network, Shares)
        return Network(
            link=sheet.link_gbytes * 1e9 * shares.link,
            nic=(run.nic_gbytes or sheet.nic_gbytes) * 1e9 * shares.nic,
            domain=sheet.domain,
            shares=shares,
            measured=self.measured.get(run.network, ()),
        )

    def stacks(self) -> list[str]:
        return sorted({name.split(".")[1] for name in self.values if name.startswith("stacks.")} - {"default"})

    def _group(self, kind: str, name: str, of: Any) -> Any:
        if (of, name) not in self._groups:
            own, usual, values = f"{kind}.{name}.", f"{kind}.default.", self.values
            names = [entry.name for entry in fields(of)]
            self._groups[of, name] = of(**{each: values.get(own + each, values.get(usual + each)) for each in names})
        return self._groups[of, name]


@cache
def shipped() -> Coefficients:
    entries, measured = read(FILE)
    return Coefficients({name: value for name, (value, _) in entries.items()}, measured)


def read(path: Path) -> tuple[dict[str, Entry], dict[str, Bus]]:
    """The file's entries by dotted name, and its measured networks."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    measured = {
        name: tuple((row[0], *(1e9 * value for value in row[1:])) for row in table.pop("measured"))
        for name, table in document["networks"].items()
        if "measured" in table
    }
    return dict(_entries(document)), measured


def _entries(document: Mapping[str, Mapping[str, Mapping[str, list[float | str]]]]) -> Iterator[tuple[str, Entry]]:
    for kind, groups in document.items():
        for group, table in groups.items():
            for name, (value, source) in table.items():
                yield f"{kind}.{group}.{name}", (float(value), str(source))
