"""The memory model against the compiler's bytes.

    python benchmarks/memory_model.py                      # 32 configurations that were not fitted, compiled now
    python benchmarks/memory_model.py --seed anew          # another 32
    python benchmarks/memory_model.py --topology v5p:2x2x2 # 10 on a TPU slice that isn't there (needs libtpu)
    python benchmarks/memory_model.py --record 20          # compile 20 more and add them to the fitting data
    python benchmarks/memory_model.py --fit                # fit the coefficients of jaxdp/predict/memory_fit.py
    (both with --topology for a TPU's)

Compiling takes seconds to minutes each. State is what the compiled step is called with, the total adds its
temporaries. Held-out configurations come from another seed than recorded ones. Those for a CPU are at least 64 wide:
programs of a mebibyte or two can be off by 14 %. Those for a TPU are GPTs (GELU, feed-forward 4 times the width, heads
of 128, tied embedding) of gibibytes; for other models ask the compiler itself (`jaxdp check --compile --topology`).
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
from scipy.optimize import least_squares, nnls

from jaxdp.config import Config, build
from jaxdp.predict.memory import Parts, local_sequences, memory, parts, temporaries
from jaxdp.predict.memory_fit import _BY_DEFINITION, SAVED, AdditiveFit, Fit
from jaxdp.predict.sharding import shards

DATA = Path(__file__).parent / "data"
DEVICES = 8
HELD_OUT, TPU_HELD_OUT = 32, 10
HELD_OUT_SEED = "held out"
TPU_MOST_BYTES = 48 * 2**30
REMATS = ("none", "dots", "block")
FOLDS = 5
SHARED = (
    "loss_width",
    "logits",
    "head_loss",
    "loss_gradients",
    "head_gathered",
    "accumulated",
    "update_gradients",
    "update_reduced",
)
HELD_ONCE = ("block_gradients", "loss_gradients", "update_gradients", "update_reduced")
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


def draw(chance: random.Random) -> tuple[dict[str, Any], int]:
    """A random configuration for a CPU, and its devices."""
    strategy = chance.choice(["ddp", "zero1", "fsdp", "hsdp"])
    devices = chance.choice([4, 8] if strategy == "hsdp" else [1, 2, 4, 8])
    heads, head = chance.choice([2, 4, 8]), chance.choice([32, 48, 64])
    width, accumulation = heads * head, chance.choice([1, 1, 2])
    model = {
        "layers": chance.choice([2, 3, 4, 6]),
        "width": width,
        "heads": heads,
        "kv_heads": heads // 2 if chance.random() < 0.3 else heads,
        "ffn": chance.choice([2, 3, 4]) * width,
        "context": chance.choice([32, 64, 96, 128, 256]),
        "vocab": chance.choice([128, 256, 512, 1000, 2048]),
        "activation": chance.choice(["gelu", "swiglu"]),
        "tied": chance.random() < 0.6,
    }
    batch = devices * accumulation * chance.choice([1, 2, 4, 8])
    remat = chance.choice(REMATS)
    train = {"global_batch": batch, "accumulation": accumulation, "remat": remat, "compute_dtype": "float32"}
    return {"model": model, "train": train, "strategy": {"name": strategy, "min_shard_bytes": 1024}}, devices


def draw_tpu(chance: random.Random) -> tuple[dict[str, Any], int]:
    """A random configuration for a TPU: a GPT with heads of 128, of gibibytes (less lives in its vector memory)."""
    while True:
        strategy = chance.choice(["ddp", "zero1", "fsdp", "hsdp"])
        devices = chance.choice([4, 8] if strategy == "hsdp" else [2, 4, 8])
        heads, layers = chance.choice([8, 16]), chance.choice([4, 8, 12, 16, 24])
        context, tokens = chance.choice([512, 1024, 2048]), chance.choice([8192, 16384, 32768])
        accumulation, remat = chance.choice([1, 1, 2]), chance.choice(REMATS)
        width = heads * 128
        if layers * tokens * width * 80 <= TPU_MOST_BYTES:  # about what "none" saves
            break
    model = {"layers": layers, "width": width, "heads": heads, "ffn": 4 * width, "context": context}
    model |= {"vocab": chance.choice([8192, 32768]), "activation": "gelu", "tied": True}
    batch = devices * accumulation * tokens // context
    train = {"global_batch": batch, "accumulation": accumulation, "remat": remat}
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
    from jaxdp.mesh.topology import topology_devices

    return topology_devices(topology) if topology else claim(DEVICES)


def held_out(topology: str | None, seed: str) -> int:
    """Compiles configurations that were not fitted and prints the table; 1 if one is off by more than allowed."""
    platform, available = platform_of(topology), available_devices(topology)
    chance = random.Random(f"{seed} {platform}")
    errors, dominated = [], 0
    print("strategy devices remat  layers width context vocab   state pred/compiled      total pred/compiled")
    for _ in range(TPU_HELD_OUT if topology else HELD_OUT):
        values, devices = (draw_tpu if topology else draw)(chance)
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
            values, devices = (draw_tpu if topology else draw)(chance)
            row = measure(values, available, devices)
            entry = {"config": values, "devices": devices, "arguments": row.arguments, "temporaries": row.temporaries}
            file.write(json.dumps(entry) + "\n")
            file.flush()


def read(file: Path) -> list[Row]:
    entries = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [Row(build(e["config"]), e["devices"], e["arguments"], e["temporaries"]) for e in entries]


def parts_of(row: Row, platform: str) -> Parts:
    placed = shards(row.config, row.devices)
    value_bytes = 2 if platform == "tpu" else 4
    return parts(row.config, placed, local_sequences(row.config, row.devices), value_bytes, platform)


def slots() -> list[tuple[str, str, int]]:
    """(policy or "all", field, place in it) of each fitted number: what does not depend on the policy is shared."""
    found = []
    for field in Fit._fields:
        for remat in ("all",) if field in SHARED else REMATS:
            size = np.size(getattr(_BY_DEFINITION["none"], field))
            found += [(remat, field, place) for place in range(size)]
    return found


def to_values(fits: dict[str, Fit]) -> np.ndarray:
    return np.array(
        [np.atleast_1d(getattr(fits[REMATS[0] if remat == "all" else remat], field))[i] for remat, field, i in slots()],
        float,
    )


def to_fits(values: np.ndarray) -> dict[str, Fit]:
    numbers: dict[tuple[str, str], list[float]] = {}
    for (owner, field, _), value in zip(slots(), values.tolist(), strict=True):
        for remat in REMATS if owner == "all" else (owner,):
            numbers.setdefault((remat, field), []).append(value)

    def field_of(remat: str, field: str) -> Any:
        found = numbers[remat, field]
        return tuple(found) if isinstance(getattr(_BY_DEFINITION[remat], field), tuple) else found[0]

    return {remat: Fit(*(field_of(remat, field) for field in Fit._fields)) for remat in REMATS}


def fit(rows: Sequence[Row], platform: str) -> dict[str, Fit] | dict[str, AdditiveFit]:
    return fit_sums(rows) if platform == "tpu" else fit_moments(rows)


def fit_sums(rows: Sequence[Row]) -> dict[str, AdditiveFit]:
    """Non-negative coefficients of a sum, each policy's by itself: on GPTs, and then untied logits on other models."""
    others = read(DATA / "compiled-bytes-tpu-others.jsonl")
    fields = [field for field in AdditiveFit._fields[1:] if field != "logits_untied"]
    found = {}
    for remat in REMATS:
        fitted = AdditiveFit(SAVED[remat], *[0.0] * len(AdditiveFit._fields[1:]))
        fitted = _add(fitted, fields, [row for row in rows if row.config.train.remat == remat])
        untied = [row for row in others if row.config.train.remat == remat and not row.config.model.tied]
        found[remat] = _add(fitted, ["logits_untied"], untied)
    return found


def _add(fitted: AdditiveFit, fields: Sequence[str], rows: Sequence[Row]) -> AdditiveFit:
    """With values for the fields, 0 so far, that leave the least relative errors of the totals."""
    placed = [parts_of(row, "tpu") for row in rows]
    known = np.array([temporaries(of, fitted) for of in placed])
    more = [fitted._replace(**{field: 1.0}) for field in fields]
    sizes = np.array([[temporaries(of, one) for one in more] for of in placed]) - known[:, None]
    totals = np.array([row.total for row in rows], float)
    rest = np.array([row.temporaries for row in rows]) - known
    values = nnls(sizes / totals[:, None], np.maximum(rest, 0) / totals)[0].round(3)
    return fitted._replace(**dict(zip(fields, values.tolist(), strict=True)))


def fit_moments(rows: Sequence[Row]) -> dict[str, Fit]:
    """Non-negative coefficients that fit the totals' logarithms, near those by definition where data say little.

    Gradients are held once, whatever else the data suggest.
    """
    placed = [parts_of(row, "cpu") for row in rows]
    prior = to_values(_BY_DEFINITION)

    def misses(values: np.ndarray) -> np.ndarray:
        fits = to_fits(values)
        errors = [
            np.log((row.arguments + temporaries(of, fits[row.config.train.remat])) / row.total)
            for row, of in zip(rows, placed, strict=True)
        ]
        return np.concatenate([errors, PRIOR * (values - prior) / (1 + prior)])

    most = np.array([1.0 if field in HELD_ONCE else np.inf for _, field, _ in slots()])
    starts = [np.minimum(prior + shift, most - 1e-3) for shift in (0.0, 0.5)]
    found = [least_squares(misses, start, bounds=(0, most), loss="soft_l1", f_scale=0.03) for start in starts]
    return to_fits(min(found, key=lambda each: each.cost).x.round(3))


def print_fits(rows: Sequence[Row], platform: str) -> None:
    errors: dict[str, list[float]] = {remat: [] for remat in REMATS}
    for fold in range(FOLDS):
        part = fit([row for index, row in enumerate(rows) if index % FOLDS != fold], platform)
        for row in rows[fold::FOLDS]:
            errors[row.config.train.remat].append(_error(row, part, platform))
    for remat, fitted in fit(rows, platform).items():
        mean, most = np.mean(errors[remat]), max(errors[remat])
        print(f'    "{remat}": {fitted},')
        print(f"    # {len(errors[remat])} rows, in five folds: total off by {mean:.1%}, at most {most:.1%}")


def _error(row: Row, fits: dict[str, Fit] | dict[str, AdditiveFit], platform: str) -> float:
    predicted = row.arguments + temporaries(parts_of(row, platform), fits[row.config.train.remat])
    return abs(predicted / row.total - 1)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topology", metavar="NAME")
    parser.add_argument("--record", type=int, metavar="N")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--seed", metavar="TEXT", default=HELD_OUT_SEED, help="another draw of held-out configurations")
    given = parser.parse_args(arguments)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if given.record:
        record(given.record, given.topology)
    elif given.fit:
        print_fits(read(recorded(given.topology)), platform_of(given.topology))
    else:
        return held_out(given.topology, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
