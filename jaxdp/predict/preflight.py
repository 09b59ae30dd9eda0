"""The fast check: what will go wrong with a config on a number of devices, found before JAX starts.

`preflight` returns every finding; `require` stops a run that has an error nobody allowed.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from jaxdp.config import Config
from jaxdp.errors import BadInput, Refused
from jaxdp.predict import checks
from jaxdp.predict.checks import Diagnostic
from jaxdp.predict.memory import memory
from jaxdp.predict.sharding import Leaf, shards
from jaxdp.strategies.rules import ShardRule

ERRORS = ("block_split", "batch_undivided", "group_undivided", "bad_spec", "memory", "unplanned_collective", "data")
WARNINGS = ("replicated", "uneven")
FORMER = ("undivided_dim",)  # allowed still, though any count of devices divides now
NO_PROGRAM = ("batch_undivided", "group_undivided", "bad_spec")  # a check may let them pass, a run cannot


@dataclass(frozen=True)
class Report:
    """`ok` when every error is `allowed`. `parameters` has a row for each leaf; bytes are a device's.

    `state_bytes` (parameters, gradients, optimizer) is exact, `padding_bytes` what of it is padding.
    `memory_bytes` is what a step needs: None for a user's task that was not compiled. `compiled` is the program's
    collectives and memory, where it was compiled.
    """

    devices: int
    findings: tuple[Diagnostic, ...]
    parameters: tuple[dict[str, Any], ...]
    memory_bytes: int | None
    compiled: dict[str, Any] | None = None
    state_bytes: int | None = None
    padding_bytes: int | None = None
    strategy: str = ""
    allowed: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        return all(finding.severity != "error" or finding.name in self.allowed for finding in self.findings)

    @property
    def runs(self) -> bool:
        """Whether there is a program at all, however slow or large."""
        return all(finding.name not in NO_PROGRAM for finding in self.findings)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What the check cannot say."""
        if self.memory_bytes is not None or not self.parameters:
            return ()
        return ("a step's activations and temporaries (of the user's task: --compile tells)",)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "strategy": self.strategy,
            "devices": self.devices,
            "findings": [asdict(finding) for finding in self.findings],
            "parameters": list(self.parameters),
            "state_bytes": self.state_bytes,
            "padding_bytes": self.padding_bytes,
            "memory_bytes": self.memory_bytes,
            "unknown": list(self.unknown),
            "compiled": self.compiled,
            "how": {"memory_bytes": "compiled" if self.compiled else "predicted"},
        }


def preflight(
    config: Config,
    devices: int,
    hosts: int = 1,
    memory_bytes: int | None = None,
    rule: ShardRule | None = None,
    platform: str | None = None,
) -> Report:
    """Checks the config's strategy, or another `rule`, on `devices` that have `memory_bytes` each (None: unknown).

    Without a `platform` ("cpu", "gpu", "tpu") devices whose memory is known are GPUs, others CPUs.
    """
    if devices < 1 or hosts < 1:
        raise BadInput(f"devices {devices}, hosts {hosts}: at least 1 of each is needed")
    server = config.server
    if config.strategy.name == "ps" and server.engine == "ray" and server.workers:
        devices = server.workers * server.devices_per_worker  # the cluster's; this process has its own
    if group := checks.group_undivided(config, devices, hosts):
        return Report(devices, (group,), (), None, strategy=config.strategy.name)
    placed = shards(config, devices, hosts, rule)
    platform = platform or ("cpu" if memory_bytes is None else "gpu")
    state = placed.state_bytes
    needed = memory(config, devices, hosts, platform=platform).total if config.task is None else None
    findings = (
        *checks.batch(config, devices),
        *checks.blocks(config, devices),
        *(finding for leaf in placed.leaves for finding in checks.specs(leaf, placed)),
        *checks.uneven(config, placed),
        *checks.replicated(config, placed),
        *checks.memory(config, needed or state, memory_bytes),
    )
    rows = tuple(_row(leaf) for leaf in placed.leaves)
    return Report(
        devices,
        findings,
        rows,
        needed,
        state_bytes=state,
        padding_bytes=placed.padding_bytes,
        strategy=config.strategy.name,
    )


def require(report: Report, allow: Iterable[str] = ()) -> None:
    """What a run needs: raises `Refused`, in one line, for the first error not allowed, or that allows no program."""
    allow = check_allowed(allow).difference(NO_PROGRAM)
    refused = [f for f in report.findings if f.severity == "error" and f.name not in allow]
    if refused:
        first = refused[0]
        way_out = "" if first.name in NO_PROGRAM else f", or pass --allow {first.name}"
        more = f" (and {len(refused) - 1} more: see jaxdp check)" if len(refused) > 1 else ""
        raise Refused(f"{first}{way_out}{more}")


def check_allowed(names: Iterable[str]) -> frozenset[str]:
    """The names, if each is a finding's; else `BadInput`."""
    names = frozenset(names)
    if unknown := sorted(names - {*ERRORS, *WARNINGS, *FORMER}):
        raise BadInput(f"--allow {unknown[0]}: no such finding; known: {', '.join((*ERRORS, *WARNINGS))}")
    return names


def _row(leaf: Leaf) -> dict[str, Any]:
    return {
        "parameter": leaf.path,
        "shape": list(leaf.parameter.shape),
        "bytes": leaf.parameter.bytes,
        "stored_shape": list(leaf.params.stored_shape),
        "spec": list(leaf.params.spec),
        "shard_shape": list(leaf.params.shard_shape),
        "shard_bytes": leaf.shard_bytes,
        "optimizer_spec": list(leaf.optimizer.spec),
        "optimizer_shard_bytes": leaf.optimizer_shard_bytes,
        "padding_bytes": math.ceil(leaf.padding_bytes),
    }
