"""`python -m cli` is `jaxdp`."""

from cli.main import main

main()
