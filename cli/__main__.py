"""`python -m cli` is `jaxdp`."""

from cli import main

main()
