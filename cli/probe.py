"""`jaxdp probe`: measure this machine, for `jaxdp advise --hardware FILE`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.common import DebugOption, DevicesOption, JsonOption, QuietOption, print_json, say


def probe(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write a hardware.toml.")] = None,
    devices: DevicesOption = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure matrix products, memory, unevenness and collectives of the devices here.

    Example: jaxdp probe --out hardware.toml
    """
    from jaxdp.mesh.devices import claim
    from jaxdp.plan.probe import probe as measure
    from jaxdp.plan.probe import to_toml

    claimed = claim(devices)
    import jax

    profile = measure(claimed)
    if jax.process_index() != 0:
        return
    if out is not None:
        from jaxdp.strict_json import write_atomically

        write_atomically(out, to_toml(profile).encode())
        if not quiet:
            say(f"written: {out}")
    if json_:
        print_json(profile)
    elif out is None:
        sys.stdout.write(to_toml(profile))
