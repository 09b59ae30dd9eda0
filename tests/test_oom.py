"""Out of memory is one line with the phase, the batch and the estimate; other errors pass unchanged."""

import jax
import pytest

from jaxdp.predict.preflight import preflight
from jaxdp.run.oom import OutOfMemory, named
from tests.mesh_cases import config


def test_out_of_memory_is_named() -> None:
    case = config("ddp", accumulation=2)
    report = preflight(case, 4)
    told = r"ddp ran out of memory while training: a batch of 4 per device and microbatch \(64 tokens\) .* MiB; raise"
    with pytest.raises(OutOfMemory, match=told), named("training", case, report):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), named("training", case, report):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
