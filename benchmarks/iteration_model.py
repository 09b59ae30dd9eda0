"""The cost model against measured iterations: calibrated on some rows, its error reported on others.

    python benchmarks/iteration_model.py                   # five folds of the shipped A100 data
    python benchmarks/iteration_model.py --data NEW.csv --calibrate-on OLD.csv --json

Columns as in VIA-Research/vTrain: GPUs, global batch, micro batch, hidden size, heads, layers, sequence length,
tensor / data / pipeline parallelism, milliseconds. Rows with tensor or pipeline parallelism are not of this
model's kind: they are counted as skipped. Without `--calibrate-on` every row is predicted by a model calibrated
on the other four fifths.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from jaxdp.config import ModelConfig
from jaxdp.errors import BadInput, JaxdpError
from jaxdp.models import shapes
from jaxdp.predict.compute import Rates, block_seconds, block_work, head_work, update_bytes
from jaxdp.predict.hardware import preset
from jaxdp.predict.network import Link, two_level_all_reduce

SHIPPED = Path(__file__).parent / "data" / "a100-single-node-data-parallel.csv"
COLUMNS = 11
FOLDS = 5
VOCAB = 51_200  # Megatron's GPT vocabulary, padded
VALUE_BYTES = 2  # float16
DEVICE = preset("a100-80gx8")
# Calibrated factors of the preset's numbers: start values, and how far (natural log) they may stray when few
# rows speak against it.
START = {"matmul": 0.87, "passes": 4.0, "floor_s": 1e-3, "memory": 0.8, "network": 0.8}
STRAY = {"matmul": 0.1, "passes": 0.7, "floor_s": 2.0, "memory": 0.3, "network": 0.3}
PRIOR_ROWS = 0.03  # the weight of staying near the start, in squared relative errors


@dataclass(frozen=True)
class Iteration:
    """One measured row."""

    devices: int
    global_batch: int
    micro_batch: int
    model: ModelConfig
    seconds: float

    @property
    def microbatches(self) -> int:
        return self.global_batch // (self.micro_batch * self.devices)


def read(path: Path) -> tuple[list[Iteration], int]:
    """The rows of pure data parallelism, and how many others were skipped."""
    try:
        lines = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None
    rows, skipped = [], 0
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        values = _numbers(line, f"{path}:{number}")
        if values[7] == values[9] == 1:
            rows.append(_iteration(values, f"{path}:{number}"))
        else:
            skipped += 1
    if not rows:
        raise BadInput(f"{path}: no row of pure data parallelism")
    return rows, skipped


def _numbers(line: Sequence[str], where: str) -> list[float]:
    try:
        values = [float(text) for text in line]
    except ValueError:
        raise BadInput(f"{where}: expected {COLUMNS} numbers") from None
    if len(values) != COLUMNS or not all(value > 0 and math.isfinite(value) for value in values):
        raise BadInput(f"{where}: expected {COLUMNS} positive numbers")
    return values


def _iteration(values: Sequence[float], where: str) -> Iteration:
    devices, batch, micro, width, heads, layers, context = (int(value) for value in values[:7])
    if batch % (micro * devices):
        raise BadInput(f"{where}: micro batch {micro} x {devices} GPUs does not divide global batch {batch}")
    model = ModelConfig(layers=layers, width=width, heads=heads, ffn=4 * width, context=context, vocab=VOCAB, tied=True)
    return Iteration(devices, batch, micro, model, values[10] / 1e3)


def predict(row: Iteration, factor: dict[str, float]) -> float:
    """Seconds of an iteration: microbatches of blocks and head, one all-reduce of the gradients, one update."""
    device = Rates(
        DEVICE.flops * factor["matmul"],
        DEVICE.memory_bandwidth * factor["memory"],
        factor["floor_s"],
        factor["passes"],
    )
    model, tokens = row.model, row.micro_batch * row.model.context
    forward, backward = block_work(model, tokens, "none", VALUE_BYTES, device.activation_passes, scores=True)
    block = block_seconds(forward, device, 1 / 3) + block_seconds(backward, device, 2 / 3)
    head = head_work(model, tokens, VALUE_BYTES, device.activation_passes).seconds(device)
    count = shapes.count(model)
    inside = min(row.devices, DEVICE.devices)
    reduced = two_level_all_reduce(
        count * VALUE_BYTES,
        inside,
        math.ceil(row.devices / inside),
        Link(DEVICE.intra_bandwidth * factor["network"], DEVICE.intra_latency_s),
        Link(DEVICE.nic_bandwidth * factor["network"], DEVICE.nic_latency_s),
    )
    update = update_bytes(count, 2) / (DEVICE.memory_bandwidth * factor["memory"])
    return row.microbatches * (model.layers * block + head) + reduced + update


def calibrate(rows: Sequence[Iteration]) -> dict[str, float]:
    """The factors that fit the rows' logarithms best, kept near their start where the rows say little."""
    names = list(START)
    start = np.log([START[name] for name in names])
    stray = np.array([STRAY[name] for name in names])

    def misses(logs: np.ndarray) -> np.ndarray:
        factor = dict(zip(names, np.exp(logs), strict=True))
        errors = [math.log(predict(row, factor) / row.seconds) for row in rows]
        return np.concatenate([errors, PRIOR_ROWS * (logs - start) / stray])

    found = least_squares(misses, start, loss="soft_l1", f_scale=0.05, xtol=1e-4, ftol=1e-4)
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def held_out(rows: Sequence[Iteration]) -> list[float]:
    """Every row predicted by a model that was calibrated on the other folds."""
    predictions = [0.0] * len(rows)
    order = np.random.default_rng(0).permutation(len(rows))
    for fold in range(FOLDS):
        held = {int(index) for index in order[fold::FOLDS]}
        factor = calibrate([row for index, row in enumerate(rows) if index not in held])
        for index in held:
            predictions[index] = predict(rows[index], factor)
    return predictions


def evaluate(data: Path, calibrate_on: Path | None) -> dict[str, Any]:
    """The document that `--json` prints."""
    rows, skipped = read(data)
    if calibrate_on is None:
        if len(rows) < 2 * FOLDS:
            raise BadInput(f"{data}: {len(rows)} rows are too few for {FOLDS} folds; give --calibrate-on FILE")
        factor, predictions = calibrate(rows), held_out(rows)
    else:
        factor = calibrate(read(calibrate_on)[0])
        predictions = [predict(row, factor) for row in rows]
    errors = [abs(found / row.seconds - 1) for found, row in zip(predictions, rows, strict=True)]
    return {
        "mape_percent": 100 * sum(errors) / len(errors),
        "worst_percent": 100 * max(errors),
        "rows": len(rows),
        "skipped": skipped,
        "held_out": f"{FOLDS} folds" if calibrate_on is None else "calibrated on another file",
        "factors": factor,
        "predictions": [
            {
                "devices": row.devices,
                "global_batch": row.global_batch,
                "micro_batch": row.micro_batch,
                "width": row.model.width,
                "layers": row.model.layers,
                "measured_s": row.seconds,
                "predicted_s": found,
            }
            for row, found in zip(rows, predictions, strict=True)
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SHIPPED)
    parser.add_argument("--calibrate-on", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        found = evaluate(given.data, given.calibrate_on)
    except JaxdpError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if given.json:
        print(json.dumps(found, indent=2, allow_nan=False))
        return 0
    for row in found["predictions"]:
        error = row["predicted_s"] / row["measured_s"] - 1
        print(
            f"{row['devices']} GPUs  batch {row['global_batch']:4d}/{row['micro_batch']}  width {row['width']}"
            f"  layers {row['layers']:2d}  measured {row['measured_s']:.4f} s  predicted {row['predicted_s']:.4f} s"
            f"  {error:+.1%}"
        )
    print(
        f"{found['rows']} rows ({found['skipped']} skipped), held out by {found['held_out']}:"
        f" mean absolute error {found['mape_percent']:.2f} %, worst {found['worst_percent']:.1f} %"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
