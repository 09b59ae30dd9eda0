"""jaxdp: measure, predict, simulate, check and choose between ways of data-parallel training.

    import jaxdp

    config = jaxdp.load("nano", ["strategy.name=fsdp"])
    print(jaxdp.advise(config, "h100x8", hosts=4).recommendation)

Each name is imported at its first use, so that what must answer at once waits for neither JAX nor the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdp.api import advise, bench, check, train
    from jaxdp.config import Config, load
    from jaxdp.task import Task
    from sims.run import simulate

# `simulate` stands above this package, as this facade does.
_HOMES = {
    "Config": "jaxdp.config",
    "load": "jaxdp.config",
    "Task": "jaxdp.task",
    "bench": "jaxdp.api",
    "train": "jaxdp.api",
    "check": "jaxdp.api",
    "advise": "jaxdp.api",
    "simulate": "sims.run",
}

__all__ = ["Config", "Task", "advise", "bench", "check", "load", "simulate", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
