"""What all processes of a run must have in common before its first step, or they would train different things (no JAX).

A difference does not fail by itself: the collectives match, and what comes out is nobody's run.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdp.errors import BadInput
from jaxdp.versions import code_sha256, versions

SHOWN = 4  # keys that are told with their values; the rest by name
# Environment variables that change what is computed. The others, such as paths, may differ from host to host.
VARIABLES = (
    *("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION"),
    *("JAX_DEFAULT_PRNG_IMPL", "JAX_ENABLE_CUSTOM_PRNG", "JAX_THREEFRY_PARTITIONABLE", "JAX_DEFAULT_DTYPE_BITS"),
    *("JAX_NUMPY_DTYPE_PROMOTION", "JAXDP_PLUGINS"),
)
OWN_FLAGS = re.compile(r"--?xla_dump\w*(=\S*)?")  # where a process puts its own files
ABSENT = "not set"


def code_facts(modules: Iterable[str] = ()) -> dict[str, Any]:
    """Versions and sources of this process, of the user's `modules` too, and its environment; a fact a key."""
    facts: dict[str, Any] = {f"version of {name}": value for name, value in versions().items()}
    facts["code of jaxdp"] = code_sha256()[:12]
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None)
        facts[f"code of {name}"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12] if path else None
    for name in VARIABLES:
        facts[name] = " ".join(OWN_FLAGS.sub("", os.environ.get(name, "")).split()) or None
    return facts


def refuse_differences(facts: Sequence[Mapping[str, Any]]) -> None:
    """Raises `BadInput` with every key in which the processes' facts differ, and who has which value."""
    keys = dict.fromkeys(key for own in facts for key in own)
    differing = [key for key in keys if any(own.get(key) != facts[0].get(key) for own in facts)]
    if not differing:
        return
    told = "; ".join(f"{key}: {_values(key, facts)}" for key in differing[:SHOWN])
    more = f"; and in {', '.join(differing[SHOWN:])}" if differing[SHOWN:] else ""
    raise BadInput(f"the processes differ in {told}{more}; start them all alike")


def _values(key: str, facts: Sequence[Mapping[str, Any]]) -> str:
    """Each value with the processes that have it: `0.001 (process 0, 2), 0.1 (process 1)`."""
    owners: dict[str, list[str]] = {}
    for index, own in enumerate(facts):
        value = own.get(key)
        owners.setdefault(ABSENT if value is None else str(value), []).append(str(index))
    return ", ".join(f"{value} (process {_shortened(who)})" for value, who in owners.items())


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:3])} and {len(names) - 3} more"
