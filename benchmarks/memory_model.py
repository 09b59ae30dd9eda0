"""The memory model against the compiler's bytes.

    python benchmarks/memory_model.py                      # 32 configurations that were not fitted, compiled now
    python benchmarks/memory_model.py --topology v5e:2x4   # the same on a TPU slice that isn't there (needs libtpu)
    python benchmarks/memory_model.py --record 20          # compile 20 more and add them to the fitting data
    python benchmarks/memory_model.py --fit                # fit the coefficients of jaxdp/plan/memory_fit.py
    (both with --topology for a TPU's)

Compiling takes seconds to minutes each. State is what the compiled step is called with, the total adds its
temporaries. Held-out configurations come from another seed than recorded ones.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from jaxdp.config import Config, build
from jaxdp.plan.memory import Parts, local_sequences, memory, parts, temporaries
from jaxdp.plan.memory_fit import _BY_DEFINITION, Fit
from jaxdp.plan.sharding import shards

DATA = Path(__file__).parent / "data"
DEVICES = 8
HELD_OUT, TPU_HELD_OUT = 32, 10
HELD_OUT_SEED = "held out, third draw"
REMATS = ("none", "dots", "block")
FOLDS = 5
HELD_ONCE = ("block_gradients", "loss_gradients")
KINDS = 4  # of activations, see `memory.Parts`
PRIOR = 0.05  # the weight of staying near the coefficients by definition, in relative error a unit


@dataclass(frozen=True)
class Row:
    """A configuration and what the compiler said."""

    config: Config
    devices: int
    arguments: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries


def draw(chance: random.Random, tpu: bool = False) -> tuple[dict[str, Any], int]:
    """A random configuration and its devices; a TPU's are large enough to fill its tiles."""
    strategy = chance.choice(["ddp", "zero1", "fsdp", "hsdp"])
    devices = chance.choice([4, 8] if strategy == "hsdp" else [1, 2, 4, 8])
    heads, head = chance.choice([2, 4, 8]), chance.choice([64, 128] if tpu else [16, 32, 48])
    width, accumulation = heads * head, chance.choice([1, 1, 2])
    model = {
        "layers": chance.choice([2, 3, 4, 6]),
        "width": width,
        "heads": heads,
        "kv_heads": heads // 2 if chance.random() < 0.3 else heads,
        "ffn": chance.choice([2, 3, 4]) * width,
        "context": chance.choice([128, 256, 512] if tpu else [32, 64, 96, 128, 256]),
        "vocab": chance.choice([512, 1024, 8192] if tpu else [128, 256, 512, 1000, 2048]),
        "activation": chance.choice(["gelu", "swiglu"]),
        "tied": chance.random() < 0.6,
    }
    batch = devices * accumulation * chance.choice([1, 2, 4, 8])
    train = {"global_batch": batch, "accumulation": accumulation, "remat": chance.choice(REMATS)}
    if not tpu:
        train["compute_dtype"] = "float32"
    return {"model": model, "train": train, "strategy": {"name": strategy, "min_shard_bytes": 1024}}, devices


def measure(values: dict[str, Any], available: Sequence[Any], devices: int) -> Row:
    from jaxdp.mesh.compile import compile_step, compiled_bytes

    config = build(values)
    found = compiled_bytes(compile_step(config, available[:devices]))
    if found is None:
        raise SystemExit("this backend does not say how much memory a program needs")
    return Row(config, devices, found.arguments, found.temporaries)


def platform_of(topology: str | None) -> str:
    return "tpu" if topology else "cpu"


def recorded(topology: str | None) -> Path:
    return DATA / f"compiled-bytes-{platform_of(topology)}.jsonl"


def available_devices(topology: str | None) -> Sequence[Any]:
    from jaxdp.mesh.devices import claim
    from jaxdp.plan.compiled import topology_devices

    return topology_devices(topology) if topology else claim(DEVICES)


def held_out(topology: str | None) -> int:
    """Compiles configurations that were not fitted and prints the table; 1 if one is off by more than allowed."""
    platform, available = platform_of(topology), available_devices(topology)
    chance = random.Random(f"{HELD_OUT_SEED} {platform}")
    errors, dominated = [], 0
    print("strategy devices remat  layers width context vocab   state pred/compiled      total pred/compiled")
    for _ in range(TPU_HELD_OUT if topology else HELD_OUT):
        values, devices = draw(chance, tpu=bool(topology))
        row = measure(values, available, devices)
        found = memory(row.config, devices, platform=platform)
        errors.append((found.arguments / row.arguments - 1, found.total / row.total - 1))
        dominated += row.temporaries > row.arguments
        print(_line(row, found.arguments, found.total), flush=True)
    state, total = (np.abs([error[i] for error in errors]) for i in range(2))
    print(
        f"{len(errors)} configurations, {dominated} with temporaries larger than the state: state off by at most"
        f" {state.max():.2%}, total by {total.mean():.1%} on average and at most {total.max():.1%}"
    )
    return int(state.max() > 0.05 or total.max() > 0.10)


def _line(row: Row, arguments: int, total: int) -> str:
    model, strategy = row.config.model, row.config.strategy.name
    return (
        f"{strategy:8s} {row.devices:7d} {row.config.train.remat:5s}  {model.layers:6d} {model.width:5d}"
        f" {model.context:7d} {model.vocab:5d}"
        f"  {arguments:10d} {row.arguments:10d} {arguments / row.arguments - 1:+6.2%}"
        f"  {total:10d} {row.total:10d} {total / row.total - 1:+6.1%}"
    )


def record(count: int, topology: str | None) -> None:
    """Adds drawn configurations and their bytes to the fitting data."""
    path, available = recorded(topology), available_devices(topology)
    known = len(path.read_text().splitlines()) if path.is_file() else 0
    chance = random.Random(f"recorded from {known}")
    with path.open("a", encoding="utf-8") as file:
        for _ in range(count):
            values, devices = draw(chance, tpu=bool(topology))
            row = measure(values, available, devices)
            entry = {"config": values, "devices": devices, "arguments": row.arguments, "temporaries": row.temporaries}
            file.write(json.dumps(entry) + "\n")
            file.flush()


def read(topology: str | None) -> list[Row]:
    entries = [json.loads(line) for line in recorded(topology).read_text(encoding="utf-8").splitlines()]
    return [Row(build(e["config"]), e["devices"], e["arguments"], e["temporaries"]) for e in entries]


def flatten(fit: Fit) -> np.ndarray:
    return np.concatenate([np.atleast_1d(np.asarray(part, float)) for part in fit])


def unflatten(values: np.ndarray) -> Fit:
    saved, mlp, attention = (tuple(part.tolist()) for part in values[: 3 * KINDS].reshape(3, KINDS))
    return Fit(saved, mlp, attention, *values[3 * KINDS :].tolist())


def _names() -> list[str]:
    """The name of each value of a flattened fit."""
    return [name for name, part in zip(Fit._fields, _BY_DEFINITION["none"], strict=True) for _ in np.atleast_1d(part)]


def parts_of(row: Row, value_bytes: int) -> Parts:
    placed = shards(row.config, row.devices)
    return parts(row.config, placed, local_sequences(row.config, row.devices), value_bytes)


def fit(rows: Sequence[Row], remat: str, value_bytes: int) -> Fit:
    """Non-negative coefficients that fit the totals' logarithms, near those by definition where data say little."""
    placed = [parts_of(row, value_bytes) for row in rows]
    prior = flatten(_BY_DEFINITION[remat])

    def misses(values: np.ndarray) -> np.ndarray:
        guess = unflatten(values)
        errors = [
            np.log((row.arguments + temporaries(of, guess)) / row.total) for row, of in zip(rows, placed, strict=True)
        ]
        return np.concatenate([errors, PRIOR * (values - prior) / (1 + prior)])

    # Gradients are held once, whatever else the data suggest.
    most = np.array([1.0 if name in HELD_ONCE else np.inf for name in _names()])
    starts = [np.minimum(prior + shift, most - 1e-3) for shift in (0.0, 0.5, 1.0)]
    found = [least_squares(misses, start, bounds=(0, most), loss="soft_l1", f_scale=0.03) for start in starts]
    return unflatten(min(found, key=lambda each: each.cost).x.round(3))


def print_fits(rows: Sequence[Row], value_bytes: int) -> None:
    for remat in REMATS:
        chosen = [row for row in rows if row.config.train.remat == remat]
        errors = []
        for fold in range(FOLDS):
            part = fit([row for index, row in enumerate(chosen) if index % FOLDS != fold], remat, value_bytes)
            errors += [_error(row, part, value_bytes) for index, row in enumerate(chosen) if index % FOLDS == fold]
        print(f'    "{remat}": {fit(chosen, remat, value_bytes)},')
        print(f"    # {len(chosen)} rows, in five folds: total off by {np.mean(errors):.1%}, at most {max(errors):.1%}")


def _error(row: Row, fitted: Fit, value_bytes: int) -> float:
    return abs((row.arguments + temporaries(parts_of(row, value_bytes), fitted)) / row.total - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topology", metavar="NAME")
    parser.add_argument("--record", type=int, metavar="N")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if given.record:
        record(given.record, given.topology)
    elif given.fit:
        print_fits(read(given.topology), 2 if given.topology else 4)
    else:
        return held_out(given.topology)
    return 0


if __name__ == "__main__":
    sys.exit(main())
