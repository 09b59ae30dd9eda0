"""The errors a user meets: each is one line that says what, where and the remedy, and knows its exit code."""


class JaxdpError(Exception):
    """A run failed (exit code 1)."""

    exit_code = 1


class BadInput(JaxdpError):
    """A flag, config key or file is wrong; raised before any work is done (exit code 2)."""

    exit_code = 2


class Refused(JaxdpError):
    """A check refused the run (exit code 3)."""

    exit_code = 3
