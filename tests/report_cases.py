"""Runs and sweeps made up for the report's tests: the records that jaxdp writes, with numbers that one can check."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxdp.records import BenchResult, Memory, StepTime, SweepRow
from jaxdp.strict_json import to_json, write_json

CONTEXT = 64
NO_AXES: Mapping[str, Any] = {}


def result(strategy: str, devices: int, rate: float, *, batch: int = 16, **changes: Any) -> dict[str, Any]:
    """A bench's document at `rate` tokens/s, whose windows lie 5 % to either side."""
    step_s = batch * CONTEXT / rate
    shards = devices if strategy == "fsdp" else 1
    document = BenchResult(
        strategy=strategy,
        devices=devices,
        platform="cpu",
        device_kind="cpu",
        unit="tokens",
        tokens_per_step=batch * CONTEXT,
        tokens_per_second=rate,
        tokens_per_second_per_device=rate / devices,
        step_time_s=StepTime(step_s, step_s * 0.95, step_s * 1.05, 10),
        compile_s=1.0,
        data_wait_share=0.01,
        mfu_percent=None,
        mfu_causal_percent=None,
        hfu_percent=None,
        mfu_formula="",
        memory=Memory(4 * 2**20 // shards, 2**20 // shards, 2**20 // shards, 2**21 // shards, None, None, 2**30),
        collectives=[],
        collective_bytes_per_device=2**20,
        collective_bytes_minimum=2**20,
        diverged=False,
        loss={"first": 5.0, "last": 3.0},
        settings={},
        run_dir=None,
        how={"tokens_per_second": "measured"},
    ).to_json()
    return document | changes


def record(strategy: str, devices: int, *, batch: int = 16, seed: int = 0, findings: Sequence[Any] = (), **config: Any):
    """A `run.json`; `config` overrides whole sections."""
    sections = {
        "model": {"layers": 4, "width": 64, "context": CONTEXT},
        "train": {"global_batch": batch, "seed": seed},
        "strategy": {"name": strategy, "unit": "block"},
        "server": {"policy": "async"},
        "stragglers": "",
    }
    return {
        "started": "2026-01-02T03:04:05Z",
        "config": sections | config,
        "devices": [{"id": place, "kind": "cpu", "platform": "cpu"} for place in range(devices)],
        "processes": 1,
        "data": {"sha256": "ab" * 32},
        "preflight": {"ok": not findings, "findings": list(findings), "memory_bytes": 2**22,
                      "how": {"memory_bytes": "predicted"}},
        "xla_flags": [],
        "versions": {"python": "3.11.7", "jax": "0.10.2"},
        "machine": {"system": "Linux", "machine": "x86_64", "host": "here"},
        "commit": "0" * 40,
    }  # fmt: skip


def mesh_steps(losses: Sequence[float], step_s: float, batch: int = 16) -> list[dict[str, Any]]:
    tokens = batch * CONTEXT
    return [
        {"step": step, "tokens": (step + 1) * tokens, "loss": loss, "grad_norm": 1.0, "step_time_s": step_s,
         "data_wait_s": 0.0, "learning_rate": 1e-3}
        for step, loss in enumerate(losses)
    ]  # fmt: skip


def write_run(
    folder: Path, strategy: str, devices: int, rate: float, *, losses: Sequence[float] | None = None, **changes: Any
) -> Path:
    """A bench's folder of one strategy. `changes` go to `record`, of which `result=` updates the document."""
    found = result(strategy, devices, rate, batch=changes.get("batch", 16), **changes.pop("result", {}))
    write_json(folder / "run.json", record(strategy, devices, **changes))
    write_json(folder / "summary.json", found)
    losses = losses or [5.0 - 0.1 * step for step in range(20)]
    lines = mesh_steps(losses, found["step_time_s"]["median"], changes.get("batch", 16))
    (folder / "steps.jsonl").write_text("".join(to_json(line) + "\n" for line in lines))
    return folder


def finding(name: str, message: str = "a cut falls inside a block") -> dict[str, Any]:
    found = {"name": name, "severity": "error", "parameter": None, "block": 2}
    return found | {"message": message, "remedy": "cut elsewhere"}


def row(
    strategy: str,
    devices: int,
    rate: float | None,
    repeat: int = 0,
    *,
    axes: Mapping[str, Any] = NO_AXES,
    **changes: Any,
) -> SweepRow:
    """A row of a sweep; without a rate one that gave no result."""
    batch = changes.pop("batch", 16)
    cell = {**axes, "devices": devices, "strategy": strategy}
    values: dict[str, Any] = {
        "key": f"{'-'.join(map(str, cell.values()))}-{batch}.{repeat}",
        "cell": cell,
        "repeat": repeat,
        "scaling": "strong",
        "global_batch": batch,
        "status": "ok" if rate else "error",
        "result": result(strategy, devices, rate, batch=batch) if rate else None,
    }
    return SweepRow(**(values | changes))


def write_sweep(folder: Path, rows: Sequence[SweepRow]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.jsonl").write_text("".join(to_json(asdict(each)) + "\n" for each in rows))
    return folder


# The dip of the study: six blocks in flat pieces, where 4 and 5 devices split blocks and 1, 2, 3 and 6 do not.
DIP = {1: 1000.0, 2: 1900.0, 3: 2700.0, 4: 2400.0, 5: 3000.0, 6: 4800.0}
SPLIT = (4, 5)


def dip_rows(repeats: int = 3) -> list[SweepRow]:
    rows = []
    for repeat in range(repeats):
        for devices, rate in DIP.items():
            found = [finding("block_split")] if devices in SPLIT else []
            rows.append(row("fsdp", devices, rate * (1 + 0.01 * repeat), repeat, findings=found))
            rows.append(row("ddp", devices, 1000.0 * devices**0.9 * (1 + 0.01 * repeat), repeat))
    return rows
