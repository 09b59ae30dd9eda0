"""How much of a GPU's memory a run takes: the run sets it, and predictions count the same (no JAX)."""

import os

from jaxdp.errors import BadInput

# JAX's own default is three quarters; a run that trains needs no more than a tenth for libraries beside it.
SHARE = 0.9
VARIABLES = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")


def memory_share() -> float:
    """The share of a GPU's memory that JAX takes in a run: as the environment says, else `SHARE`; raises `BadInput`.

    Source: JAX's documentation, GPU memory allocation.
    """
    name, text = next(((name, os.environ[name]) for name in VARIABLES if os.environ.get(name)), ("", str(SHARE)))
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise BadInput(f"{name}={text}: expected a share above 0, at most 1")
    return share


def take_memory_share() -> None:
    """Has JAX take that share; call before any device is used."""
    os.environ[VARIABLES[0]] = f"{memory_share():g}"
