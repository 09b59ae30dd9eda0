"""What devices, stacks and networks reach: the coefficients of `coefficients.toml`, each with its source.

Every number stands there as `name = [value, source]`. A device or stack takes what it lacks from `default`.
"""

import bisect
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from jaxdp.predict.calibrated.runs import Run
from jaxdp.predict.presets import Sheet, sheet

OWN_STACK = "jaxdp"
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
    """A cluster's links, bytes/s one way a device. `domain` devices share the fast one, `per_host` a host.

    `step_s` and `link_step_s` are the seconds of a ring's step between domains and within. `measured`: the bus
    bandwidth between hosts where it was measured, in place of the formula.
    """

    link: float
    nic: float
    domain: int
    per_host: int
    step_s: float
    link_step_s: float
    congestion: float
    measured: Bus = ()

    def levels(self, n: float) -> tuple[float, float]:
        """(devices in a domain, domains) of n devices next to each other."""
        inside = min(n, self.domain)
        return inside, n / inside

    def slower(self, divisor: float) -> "Network":
        return replace(self, link=self.link / divisor, nic=self.nic / divisor)

    def one_pass(self, kind: str, whole: float, inside: float, domains: float, messages: float = 1) -> float:
        """Seconds of an all-gather or a reduce-scatter of `whole` bytes in so many messages."""
        return self._seconds(kind, whole, inside, domains, messages * (inside * domains - 1))

    def all_reduce(self, whole: float, inside: float, domains: float, messages: float = 1) -> float:
        """Seconds of an all-reduce, whose rings between domains each carry what one device of a domain has."""
        steps = 2 * domains if domains > 1 else 2 * (inside - 1)
        return self._seconds("all-reduce", 2 * whole, inside, domains, messages * steps)

    def _seconds(self, kind: str, sent: float, inside: float, domains: float, steps: float) -> float:
        n = inside * domains
        if n <= 1:
            return 0.0
        if self.measured:
            return sent * (n - 1) / n / self._bus(kind, domains)
        within = sent * (inside - 1) / inside / self.link
        if domains <= 1:
            return within + steps * self.link_step_s
        across = sent * (domains - 1) / domains / (inside * self.nic) * domains**self.congestion
        return max(across, within) + steps * self.step_s

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
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    _groups: dict[tuple[type, str], Any] = field(default_factory=dict, compare=False, repr=False)

    def rates(self, device: str) -> Rates:
        return self._group("devices", device, Rates)

    def stack(self, name: str) -> Stack:
        return self._group("stacks", name, Stack)

    def entry(self, name: str) -> Entry:
        """A value with its source, a device's or stack's own or the default's."""
        kind, _, last = name.split(".")
        name = name if name in self.values else f"{kind}.default.{last}"
        return self.values[name], self.sources[name]

    def shares(self, network: str = "default") -> Shares:
        return self._group("networks", network, Shares)

    def network(self, run: Run) -> Network:
        device = sheet(run.device)
        device = device._replace(nic_bandwidth=run.nic_bandwidth or device.nic_bandwidth)
        return self.network_of(device, run.network)

    def network_of(self, device: Sheet, name: str = "default") -> Network:
        """The links of such devices."""
        shares = self.shares(name)
        return Network(
            link=device.link_bandwidth * shares.link,
            nic=device.nic_bandwidth * shares.nic,
            domain=device.domain,
            per_host=device.per_host,
            step_s=shares.step_s,
            link_step_s=shares.link_step_s,
            congestion=shares.congestion,
            measured=self.measured.get(name, ()),
        )

    def stacks(self) -> list[str]:
        """jaxdp's own first."""
        names = {name.split(".")[1] for name in self.values if name.startswith("stacks.")} - {"default"}
        return sorted(names, key=lambda name: (name != OWN_STACK, name))

    def _group(self, kind: str, name: str, of: Any) -> Any:
        if (of, name) not in self._groups:
            own, usual, values = f"{kind}.{name}.", f"{kind}.default.", self.values
            names = [entry.name for entry in fields(of)]
            self._groups[of, name] = of(**{each: values.get(own + each, values.get(usual + each)) for each in names})
        return self._groups[of, name]


def usable_bytes(memory_bytes: float, stack: Stack) -> float:
    """What a stack can fill of a device's memory. What is sold as GB are GiB: an H100's 80 GB hold 79.6 GiB."""
    return stack.usable * memory_bytes / 1e9 * 2**30


@cache
def shipped() -> Coefficients:
    entries, measured = read(FILE)
    values = {name: value for name, (value, _) in entries.items()}
    return Coefficients(values, measured, {name: source for name, (_, source) in entries.items()})


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
