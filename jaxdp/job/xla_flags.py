"""`XLA_FLAGS` as the user set it, tried before JAX starts (no JAX): what XLA can't read makes it abort the process."""

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from functools import cache

from jaxdp.errors import BadInput

# XLA reads its flags when it first makes options; a tenth of a second in a process of its own.
READ_FLAGS = "from jaxlib import _jax; _jax.CompileOptions().executable_build_options.debug_options"
TIMEOUT_S = 60.0
COMPLAINTS = (
    (re.compile(r"Unknown flags? in XLA_FLAGS: (.*)"), "this version of XLA knows no {}"),
    (re.compile(r"Couldn't interpret value (.*) for flag (\w+)"), "{} is no value of {}"),
    (re.compile(r'Could not open file "(.*?)" to read flags'), "{} does not begin with --, and there is no such file"),
)
LAST_WORDS = re.compile(r"^F\d+ .*?\] (.*)", re.MULTILINE)


def refuse_bad_flags() -> None:
    """Raises `BadInput` if XLA would abort over `XLA_FLAGS`, or pass over a part; does nothing where it is not set."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flags.strip() and (complaint := _tried(flags)):
        raise BadInput(f"XLA_FLAGS: {complaint}{_dash(flags)}; correct it, or unset XLA_FLAGS")


@cache
def _tried(flags: str) -> str | None:
    with suppress(ValueError):  # a quotation without end is XLA's to judge
        words = shlex.split(flags)
        if words[0].startswith("--") and (stray := next((w for w in words if not w.startswith("--")), None)):
            return f"{stray} does not begin with --"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", READ_FLAGS],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # the run itself will show
    return _complaint(done.stderr) if done.returncode else None


def _complaint(text: str) -> str | None:
    """XLA's last words as one sentence; None where something else failed."""
    for pattern, sentence in COMPLAINTS:
        if match := pattern.search(text):
            return sentence.format(*(part.strip() for part in match.groups()))
    match = LAST_WORDS.search(text)
    return match[1] if match else None


def _dash(flags: str) -> str:
    """Word processors turn two hyphens into a dash."""
    dash = next((character for character in flags if character in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), None)
    return f" (flags begin with two hyphens, not with {dash!r})" if dash else ""
