"""Fits the coefficients of `jaxdp.predict.calibrated` to published rows: robustly, and held to what physics expects.

Each fitted coefficient is prior * exp(spread * z), with z drawn to zero as if one more row of that weight said so. A
row's error counts in multiples of `NOISE`, linearly where it is large, so that outliers do not steer.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from published_rows import Published
from scipy.optimize import least_squares

from jaxdp.predict.calibrated.memory import with_remat
from jaxdp.predict.calibrated.rates import FILE, Coefficients, Entry, read, shipped
from jaxdp.predict.calibrated.runs import Run
from jaxdp.predict.calibrated.step import step_seconds

NOISE = 0.04
STEP = 1e-4  # of z, for the differences
Array = NDArray[np.float64]


class Prior(NamedTuple):
    """What is expected, how far (natural logarithm) it may stray, and why it is expected."""

    value: float
    spread: float
    why: str


GEMM = "0.9 of what products alone reach: {} (Machine Learning Engineering, Bekman)"
ALONE = {"a100": 0.87, "h100": 0.80, "b200": 0.78, "gb200": 0.78, "gb300": 0.78}
BANDWIDTH = "0.8 of the data sheet for streams"
FA2 = "arXiv 2307.08691"
FA3 = "arXiv 2407.08608"
OWN = "assumed"
STOPS = "checkpointing stops at the last value that is needed"
STACKS = ("torch-fsdp", "nanotron", "megatron", "maxtext")


def priors() -> dict[str, Prior]:
    """All that is fitted, by dotted name."""
    known = {
        "devices.default.narrow": Prior(0.75, 0.3, OWN),
        "devices.default.attention_context": Prior(500, 0.7, OWN),
        "devices.default.attention_width": Prior(0.4, 0.7, FA2),
        "devices.h100.flash2": Prior(0.36, 0.15, FA2),
        "devices.h100.fused": Prior(0.55, 0.15, FA3),
        "devices.a100-80g.flash2": Prior(0.55, 0.15, FA2),
        "stacks.default.recompute": Prior(0.85, 0.1, STOPS),
        "stacks.torch-fsdp.recompute": Prior(0.85, 0.1, STOPS),
        "stacks.default.cast": Prior(4.0, 0.5, OWN),
        "stacks.default.overlap_end": Prior(0.5, 0.5, OWN),
        "stacks.nanotron.overlap_end": Prior(0.5, 0.5, OWN),
        "stacks.megatron.overlap_end": Prior(0.5, 0.5, OWN),
        "networks.default.link": Prior(0.8, 0.15, "nccl-tests on NVLink"),
        "networks.default.nic": Prior(0.7, 0.3, OWN),
        "networks.default.step_s": Prior(20e-6, 0.7, "NCCL src/graph/tuning.cc: 14 us of the network alone"),
        "networks.default.congestion": Prior(0.1, 0.7, OWN),
    }
    for device, flash1 in (("a100-40g", 0.33), ("a100-80g", 0.33), ("h100", 0.2)):
        known[f"devices.{device}.products"] = _products(device.partition("-")[0], 0.04)
        known[f"devices.{device}.memory"] = Prior(0.8, 0.12, BANDWIDTH)
        known[f"devices.{device}.flash1"] = Prior(flash1, 0.2, FA2)
    known["devices.h200.products"] = Prior(0.66, 0.06, "as h100, the same chip")
    for device in ("b200", "gb200", "gb300"):
        known[f"devices.{device}.products"] = _products(device, 0.12)
    for device in ("tpu-v5e", "tpu-v6e"):
        known[f"devices.{device}.products"] = Prior(0.72, 0.12, OWN)
    for stack in STACKS:
        known[f"stacks.{stack}.passes"] = Prior(1.0, 0.4, "34 bytes a hidden value (arXiv 2205.05198)")
        if stack != "nanotron":
            known[f"stacks.{stack}.overlap"] = Prior(0.8, 0.3, OWN)
    for stack in STACKS[1:]:
        known[f"stacks.{stack}.products"] = Prior(1.0, 0.07, "as torch-fsdp")
    for stack in STACKS[:2]:
        known[f"stacks.{stack}.logit_passes"] = Prior(4.0, 0.3, OWN)
    for stack in (*STACKS[:2], "default"):
        known[f"stacks.{stack}.jitter"] = Prior(0.004, 0.7, OWN)
    return known


def _products(device: str, spread: float) -> Prior:
    return Prior(0.9 * ALONE[device], spread, GEMM.format(ALONE[device]))


LARGEST = {"overlap": 1.0, "overlap_end": 1.0}  # shares that priors alone would not bound


def fit(rows: Sequence[Published]) -> Coefficients:
    """The coefficients that predict `rows` best; what no row speaks of stays at its prior."""
    timed = [row for row in rows if row.tokens_per_second]
    known, base = priors(), shipped()
    names = list(known)
    start = Coefficients({**base.values, **{name: prior.value for name, prior in known.items()}}, base.measured)
    runs = [with_remat(row.run, start.stack(row.run.stack)) for row in timed]
    measured = np.array([row.seconds for row in timed])
    touched = [[i for i, run in enumerate(runs) if _touches(name, run, start.values)] for name in names]

    def build(z: Array) -> Coefficients:
        fitted = {name: coefficient(name, known[name], value) for name, value in zip(names, z, strict=True)}
        return Coefficients({**base.values, **fitted}, base.measured)

    def errors(z: Array, which: Sequence[int]) -> Array:
        at = build(z)
        return _robust(np.array([math.log(step_seconds(runs[i], at).total / measured[i]) for i in which]))

    def residuals(z: Array) -> Array:
        return np.concatenate([errors(z, range(len(runs))), z])

    def slopes(z: Array) -> Array:
        """Differences, each over the rows that the coefficient touches."""
        matrix = np.zeros((len(runs) + len(names), len(names)))
        matrix[len(runs) :] = np.eye(len(names))
        here = errors(z, range(len(runs)))
        for column, which in enumerate(touched):
            moved = z.copy()
            moved[column] += STEP
            matrix[which, column] = (errors(moved, which) - here[which]) / STEP
        return matrix

    found = least_squares(residuals, np.zeros(len(names)), jac=slopes, max_nfev=40)  # pyright: ignore
    return build(found.x)


def _robust(errors: Array) -> Array:
    """Residuals whose squares are the pseudo-Huber loss."""
    scaled = errors / NOISE
    return np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))


def coefficient(name: str, prior: Prior, z: float) -> float:
    return min(prior.value * math.exp(prior.spread * z), LARGEST.get(name.rpartition(".")[2], math.inf))


def _touches(name: str, run: Run, values: Mapping[str, float]) -> bool:
    """Whether the run reads the coefficient; a device's or stack's own takes the place of the default."""
    kind, group, entry = name.split(".")
    own = {"devices": run.device, "stacks": run.stack, "networks": run.network}[kind]
    return group == own or (group == "default" and f"{kind}.{own}.{entry}" not in values)


def write(fitted: Coefficients, rows: Sequence[Published], path: Path = FILE) -> None:
    """Replaces the fitted entries of the coefficients' file, and says on how many rows."""
    entries, _ = read(path)
    for name, prior in priors().items():
        count = sum(1 for row in rows if row.tokens_per_second and _touches(name, row.run, fitted.values))
        stray = f"{prior.value:g}, a factor {math.exp(prior.spread):.2g} either way ({prior.why})"
        source = f"fitted on {count} rows; expected: {stray}"
        entries[name] = (float(f"{fitted.values[name]:.4g}"), source)
    path.write_text(_replaced(path.read_text(encoding="utf-8"), entries), encoding="utf-8")


def _replaced(text: str, entries: Mapping[str, Entry]) -> str:
    lines, table = [], ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        name = f"{table}.{line.partition(' = ')[0]}"
        if name in entries:
            value, source = entries[name]
            line = f'{line.partition(" = ")[0]} = [{value:g}, "{source}"]'
        lines.append(line)
    return "\n".join(lines) + "\n"
