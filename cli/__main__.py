"""`python -m cli` is `jaxdp`."""

from cli import run

run()
