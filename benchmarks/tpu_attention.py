"""What a TPU's compiler says of the forms of attention: estimated cycles and temporaries of a train step.

    python benchmarks/tpu_attention.py                 # prints and writes benchmarks/results/tpu_attention.txt
    python benchmarks/tpu_attention.py --topology v5e:2x4

Needs libtpu and no TPU; half a minute to two minutes for each form and context. The estimate is the compiler's own,
summed over the program's operations as often as each runs; collectives and gaps between operations are not in it.
A sequence has at most 16 blocks, so that at a context of 2048 those of 64 are of 128.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from jaxdp.config import build
from jaxdp.hlo.text import parse
from jaxdp.hlo.walk import walk

RESULTS = Path(__file__).parent / "results" / "tpu_attention.txt"
CONTEXTS = (1024, 2048)
BLOCKS = (64, 128, 256)
TOKENS = 16_384  # a device
DEVICES = 4
MODEL = {"layers": 4, "width": 1024, "heads": 8, "ffn": 4096, "vocab": 8192}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def estimated_cycles(text: str) -> int:
    """The sum over all operations of a compiled TPU program for which the compiler has an estimate."""
    sites = walk(parse(text), lambda one: _CYCLES.search(one.rest) is not None, lambda sites: float(len(sites)))
    return sum((site.count or 1) * int(_CYCLES.findall(site.instruction.rest)[0]) for site in sites)


def examine(form: Any, context: int, devices: Sequence[Any]) -> tuple[int, int]:
    """(estimated cycles, bytes of temporaries) of a step with this form of attention."""
    from jaxdp.mesh.compile import compile_step, compiled_bytes
    from jaxdp.models import attention

    train = {"global_batch": DEVICES * TOKENS // context, "remat": "block"}
    config = build({"model": MODEL | {"context": context}, "train": train, "strategy": {"name": "fsdp"}})
    with mock.patch.object(attention, "choose", lambda *_: form):
        compiled = compile_step(config, devices)
    found = compiled_bytes(compiled)
    if found is None:
        raise SystemExit("this compiler does not say how much memory a program needs")
    return estimated_cycles(compiled.as_text()), found.temporaries


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topology", metavar="NAME", default="v5p:2x2x2")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxdp.mesh.topology import topology_devices
    from jaxdp.models.attention import blocked_attention, xla_attention

    devices = topology_devices(given.topology)[:DEVICES]
    forms = {"whole scores": xla_attention} | {
        f"blocks of {block}": partial(blocked_attention, block=block) for block in BLOCKS
    }
    lines = [f"fsdp on {DEVICES} devices of {given.topology}, {TOKENS} tokens a device, {MODEL}"]
    print(lines[0])
    for context in CONTEXTS:
        for name, form in forms.items():
            cycles, temporaries = examine(form, context, devices)
            lines.append(
                f"context {context:5d}  {name:14s} {cycles / 1e6:7.1f} M cycles {temporaries / 2**20:7.0f} MiB"
            )
            print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
