"""Where findings are measured: the devices of this process, a folder for the records, and how long it may take."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.run.folder import RunFolder

if TYPE_CHECKING:
    import jax

    from jaxdp.records import BenchResult

HOST_DEVICES = 8  # made on a CPU unless told otherwise
# Machine code that is not optimised takes half the time to compile; programs, bytes and rounds are the same.
QUICK_XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@dataclass(frozen=True)
class Lab:
    """`asked` devices at most (None: all; 8 host devices on a CPU). JAX starts with the first look at them."""

    folder: RunFolder
    quick: bool = False
    asked: int | None = None
    say: Callable[[str], None] = lambda line: None

    @cached_property
    def devices(self) -> "list[jax.Device]":
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(self.asked or HOST_DEVICES))
        if self.quick:
            os.environ.setdefault("XLA_FLAGS", QUICK_XLA_FLAGS)
        import jax

        from jaxdp.mesh.devices import claim

        return claim(self.asked or jax.device_count())

    @property
    def on_host(self) -> bool:
        """Whether the devices share this machine's cores, so that their throughput is no evidence of a cluster's."""
        return self.devices[0].platform == "cpu"

    def need(self, count: int) -> "list[jax.Device]":
        """The first `count` devices; raises `BadInput` where there are fewer."""
        if len(self.devices) < count:
            raise BadInput(f"needs {count} devices and has {len(self.devices)}; raise --devices, or JAX_PLATFORMS=cpu")
        return self.devices[:count]

    def bench(
        self,
        name: str,
        configs: Sequence[Config],
        devices: int,
        *,
        steps: int,
        allow: Sequence[str] = (),
        until_loss: float | None = None,
    ) -> "list[BenchResult]":
        """Benches the configs' strategies side by side on the first devices; records go to the folder's `runs/`."""
        self.need(devices)
        from jaxdp.run.bench import bench
        from jaxdp.run.prepare import prepare

        self.say(f"  {name}")
        where = str(self.folder.file(f"runs/{name}"))
        prepared = prepare(configs, devices, name=name, run_dir=where, allow=allow)
        with prepared.folder:
            return bench(prepared, steps=steps, warm_up=1, until_loss=until_loss, observe=lambda *_: None)
