"""Bytes that a step takes on GPUs that aren't here, as XLA lays them out, against the memory model's:

    JAX_PLATFORMS=cpu python benchmarks/gpu_memory.py          # compiles (needs the extra gpu-topology), 3 minutes
    python benchmarks/gpu_memory.py --from-data                # the recorded programs against the model of today

Recorded in data/compiled-bytes-gpu.jsonl, which a test holds the model against; nothing is fitted to them but that
reductions are counted as done in place.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from jaxdp.config import load
from jaxdp.predict.memory import memory

DATA = Path(__file__).parent / "data" / "compiled-bytes-gpu.jsonl"
GPUS = 8
PROGRAMS = (  # model, strategy, sequences a device, recomputation
    ("llama3-8b", "fsdp", 2, "block"),
    ("llama3-8b", "zero1", 1, "block"),
    ("1b", "fsdp", 4, "block"),
    ("1b", "fsdp", 4, "dots"),
    ("1b", "fsdp", 4, "none"),
    ("1b", "ddp", 4, "block"),
    ("1b", "ddp", 8, "dots"),
    ("1b", "zero1", 4, "block"),
    ("1b", "hsdp", 4, "block"),
    ("gpt2-xl", "fsdp", 8, "block"),
    ("gpt2-xl", "ddp", 8, "block"),
    ("gpt2-xl", "zero1", 4, "block"),
    ("350m", "fsdp", 8, "block"),
    ("350m", "ddp", 8, "block"),
    ("350m", "zero1", 8, "block"),
    ("small", "fsdp", 16, "block"),
    ("small", "ddp", 16, "block"),
)


def config_of(row: dict[str, Any]) -> Any:
    keys = [f"train.global_batch={GPUS * row['sequences']}", "train.accumulation=1", f"train.remat={row['remat']}"]
    return load([row["model"]], keys, {"strategy.name": row["strategy"]})


def compiled(row: dict[str, Any]) -> int:
    from jaxdp.mesh.compile import compile_step, compiled_bytes
    from jaxdp.mesh.topology import topology_devices
    from jaxdp.predict.compiled import DEVICELESS

    found = compiled_bytes(compile_step(config_of(row), topology_devices(f"h100x{GPUS}", 1), 1, options=DEVICELESS))
    assert found is not None
    return found.total


def error(row: dict[str, Any]) -> float:
    """Of the model's bytes over the compiler's, less one."""
    return memory(config_of(row), GPUS, platform="gpu").total / row["bytes"] - 1


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from-data", action="store_true", help="compile nothing")
    if not parser.parse_args().from_data:
        rows: list[dict[str, Any]] = [
            {"model": model, "strategy": strategy, "sequences": sequences, "remat": remat}
            for model, strategy, sequences, remat in PROGRAMS
        ]
        lines = [json.dumps({**row, "device": "h100", "devices": GPUS, "bytes": compiled(row)}) for row in rows]
        DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")
    errors = []
    for row in recorded():
        errors.append(error(row))
        print(f"{row['model']:10} {row['strategy']:6} {row['sequences']:3} sequences a device, remat {row['remat']:6}")
        print(f"{'':18} {row['bytes'] / 1e9:8.2f} GB compiled, {100 * errors[-1]:+5.1f} %")
    mean, bias = sum(map(abs, errors)) / len(errors), sum(errors) / len(errors)
    print(f"mean error {100 * mean:.1f} %, bias {100 * bias:+.1f} %, worst {100 * max(map(abs, errors)):.1f} %")


if __name__ == "__main__":
    main()
