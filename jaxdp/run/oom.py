"""Running out of a device's memory, told so that one knows what to change."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from jaxdp.config import Config
from jaxdp.errors import JaxdpError
from jaxdp.predict.preflight import Report
from jaxdp.units import bytes_text
from jaxdp.workload import unit, units_per_batch


class OutOfMemory(JaxdpError):
    """A device's memory did not suffice; a sweep records it and goes on."""


@contextmanager
def named(phase: str, config: Config, report: Report) -> Iterator[None]:
    """Turns the backend's out-of-memory error into one line with the phase, the batch and the estimate."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        rows = config.train.global_batch // (report.devices * config.train.accumulation) or 1
        units_per_example = units_per_batch(config) // config.train.global_batch
        raise OutOfMemory(
            f"{config.strategy.name} ran out of memory while {phase}: a batch of {rows} per device and microbatch "
            f"({rows * units_per_example:,} {unit(config)}) was estimated at {bytes_text(report.memory_bytes)}; raise "
            "train.accumulation, set train.remat=block, use more devices, or --strategy fsdp"
        ) from error
