"""When a parameter server applies pushes and whom it lets go on: five policies, three corrections (no JAX).

| policy | an update is made of | a worker may start its next step |
|---|---|---|
| `sync` | the pushes of all workers present | when the version it pushed to is complete |
| `backup(b)` | the first n-b pushes of a version; later ones are dropped | likewise |
| `softsync(k)` | k pushes, whoever sent them | at once |
| `async` | one push | at once |
| `ssp(bound)` | one push | while it is at most `bound` steps ahead of the slowest worker present |

`ssp(0)` is `sync`, and `backup(0)` is `sync`. n counts the workers present, so a death lowers it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxdp.errors import BadInput

if TYPE_CHECKING:
    from jaxdp.config import ServerConfig

PolicyName = Literal["async", "ssp", "sync", "backup", "softsync"]
Correction = Literal["none", "lr_over_staleness", "delay_compensation"]
CORRECTIONS: tuple[Correction, ...] = ("none", "lr_over_staleness", "delay_compensation")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A policy reduced to what the state machine asks of it.

    `lockstep`: a push counts for one version only, and a worker computes each version at most once.
    `bound`: how many steps ahead of the slowest worker a step may start; None is no limit.
    `backups`: pushes of a version that are not waited for. `group`: pushes in an update without lockstep.
    """

    name: str
    lockstep: bool = False
    bound: int | None = None
    backups: int = 0
    group: int = 1

    def needed(self, workers: int) -> int:
        """Pushes in one update when `workers` are present."""
        return max(1, workers - self.backups) if self.lockstep else self.group


def make_policy(name: str, *, bound: int = 1, backups: int = 1, group: int = 1) -> Policy:
    """The policy of a name; each option is read by its own policy only. Raises `BadInput`."""
    options = {"ssp": ("bound", bound, 0), "backup": ("backups", backups, 0), "softsync": ("group", group, 1)}
    if name in options:
        option, value, least = options[name]
        if value < least:
            raise BadInput(f"{option}: {value} is below {least}")
    if name == "sync" or (name == "ssp" and bound == 0):
        return Policy(name=name, lockstep=True)
    if name == "backup":
        return Policy(name=name, lockstep=True, backups=backups)
    if name == "ssp":
        return Policy(name=name, bound=bound)
    if name == "softsync":
        return Policy(name=name, group=group)
    if name == "async":
        return Policy(name=name)
    raise BadInput(f"policy: {name!r} is none of async, ssp, sync, backup, softsync")


def policy_of(config: "ServerConfig") -> Policy:
    """The configured policy."""
    given = {key: getattr(config, key) for key in ("bound", "backups", "group")}
    return make_policy(config.policy, **{key: value for key, value in given.items() if value is not None})


def learning_rate_scale(correction: Correction, staleness: float) -> float:
    """The factor on the learning rate of an update of this mean staleness.

    `lr_over_staleness` divides by the mean staleness once it exceeds one (Zhang et al., arXiv 1511.05950).
    """
    return 1.0 / staleness if correction == "lr_over_staleness" and staleness > 1 else 1.0
