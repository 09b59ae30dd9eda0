"""The command line: one file a command, no logic."""

import os
import signal


def run() -> None:
    """`jaxdp`: an interrupt while the program itself is being read ends it without a traceback."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
