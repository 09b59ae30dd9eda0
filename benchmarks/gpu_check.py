"""One call on a machine with NVIDIA GPUs, under eight minutes: python benchmarks/gpu_check.py [--budget-s 460]

1. correctness: losses of bfloat16 against float32 on a small model, and of every strategy against DDP;
2. that attention really is cuDNN's, by its calls in the compiled program;
3. MFU of `1b` at 2048 tokens in bfloat16 for each remat policy and batch a device (target: 60 % on an H200);
4. memory predicted against the device's peak;
5. on several GPUs, the share of a step in which communication is exposed, against the same step on one GPU.
Cases are tried in order of promise and the rest is named as left out when time runs short. Writes
benchmarks/results/gpu_check-DEVICE.json with the date. `--rehearse` runs it all on a CPU with nano.
"""

import argparse
import gc
import json
import re
import time
from pathlib import Path
from typing import Any

import jax

from jaxdp.config import Config, load
from jaxdp.data.pipeline import open_data
from jaxdp.mesh.devices import claim, use_gpu_flags
from jaxdp.predict.memory import memory
from jaxdp.records import step_time
from jaxdp.run import facts
from jaxdp.run.mesh_run import MeshRun
from jaxdp.strategies.rows import mesh_strategies
from jaxdp.workload import units_per_batch

RESULTS = Path(__file__).parent / "results"
CASES = [("dots", 8), ("none", 4), ("block", 16), ("dots", 4), ("block", 8), ("none", 2), ("dots", 16), ("block", 32)]
TOLERANCE = 0.02  # of a loss in bfloat16 against float32
TARGET_MFU_PERCENT = 60.0


def ready(config: Config, devices: list[Any]) -> MeshRun:
    run = MeshRun(config, open_data(config), devices)
    run.compile()
    run.start()
    return run


def correctness(name: str, devices: list[Any]) -> dict[str, Any]:
    """Losses of five steps: every strategy in bfloat16 against DDP in float32."""
    losses = {}
    for strategy, dtype in [("ddp", "float32"), *((strategy, "bfloat16") for strategy in mesh_strategies())]:
        batch = 8 * len(devices)
        keys = [f"train.compute_dtype={dtype}", f"train.global_batch={batch}", "strategy.min_shard_bytes=0"]
        run = ready(load([name], keys, {"strategy.name": strategy}), devices)
        losses[f"{strategy} {dtype}"] = [record.loss for record in run.window(5).records]
        run.close()
    exact = losses["ddp float32"]
    worst = max(abs(a / b - 1) for found in losses.values() for a, b in zip(found, exact, strict=True))
    return {"losses": losses, "largest_relative_difference": worst, "ok": worst < TOLERANCE}


def cudnn_calls(run: MeshRun) -> list[str]:
    return sorted(set(re.findall(r'custom_call_target="(__cudnn\$fmha[^"]*)"', run.compiled.as_text())))


def speed(name: str, remat: str, rows: int, devices: list[Any], strategy: str = "ddp") -> dict[str, Any]:
    """One case; running out of memory is a result too."""
    keys = [f"train.remat={remat}", f"train.global_batch={rows * len(devices)}"]
    config = load([name], keys, {"strategy.name": strategy})
    case = {"strategy": strategy, "remat": remat, "sequences_a_device": rows, "devices": len(devices)}
    predicted = memory(config, len(devices)).total
    try:
        run = ready(config, devices)
        run.window(3)
        windows = [run.window(3) for _ in range(5)]
    except jax.errors.JaxRuntimeError as error:
        return {**case, "predicted_bytes": predicted, "failed": str(error).splitlines()[0][:200]}
    seconds = step_time([window.seconds / window.steps for window in windows])
    tokens = units_per_batch(config)
    use = facts.utilisation(run, tokens / seconds.median)
    held = facts.memory_of(run, alone=True)
    found = {
        **case,
        "step_time_s": seconds.median,
        "tokens_per_second_per_device": tokens / seconds.median / len(devices),
        "mfu_percent": use.mfu_percent,
        "mfu_causal_percent": use.mfu_causal_percent,
        "hfu_percent": use.hfu_percent,
        "predicted_bytes": predicted,
        "compiled_bytes": held.compiled_bytes_per_device,
        "peak_bytes_so_far": held.device_peak_bytes,
        "compile_s": run.compile_s,
        "cudnn": cudnn_calls(run),
    }
    run.close()
    del run
    gc.collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=460.0)
    parser.add_argument("--rehearse", action="store_true")
    arguments = parser.parse_args()
    started = time.monotonic()
    flags = use_gpu_flags(not arguments.rehearse)
    devices = claim(2 if arguments.rehearse else None)
    if devices[0].platform != "gpu" and not arguments.rehearse:
        raise SystemExit("no GPU here; --rehearse tries the script on a CPU")
    name = "nano" if arguments.rehearse else "1b"
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "jax": jax.__version__,
        "xla_flags": flags,
        "correctness": correctness("nano", devices),
        "speed": [],
        "left_out": [],
    }
    slowest = 0.0
    cases = [(remat, rows, devices[:1], "ddp") for remat, rows in CASES]
    if len(devices) > 1:
        cases[1:1] = [("dots", 8, devices, "ddp"), ("dots", 8, devices, "fsdp")]
    for remat, rows, used, strategy in cases:
        left = arguments.budget_s - (time.monotonic() - started)
        if left < 1.3 * slowest:
            found["left_out"].append([remat, rows, len(used), strategy])
            continue
        begun = time.monotonic()
        found["speed"].append(speed(name, remat, rows, used, strategy))
        slowest = max(slowest, time.monotonic() - begun)
        print(json.dumps(found["speed"][-1]), flush=True)
    report(found, rehearsal=arguments.rehearse)


def report(found: dict[str, Any], rehearsal: bool) -> None:
    """The summary, printed last, and the file."""
    timed = [case for case in found["speed"] if "step_time_s" in case]
    alone = {(case["remat"], case["sequences_a_device"]): case["step_time_s"] for case in timed if case["devices"] == 1}
    for case in timed:
        same = alone.get((case["remat"], case["sequences_a_device"]))
        if case["devices"] > 1 and same:
            case["exposed_communication_share"] = 1 - same / case["step_time_s"]
    known = [case for case in timed if case["mfu_percent"] is not None]
    found["best"] = max(known, key=lambda case: case["mfu_percent"], default=None)
    found["cudnn_used"] = any(case["cudnn"] for case in timed)
    found["target_mfu_percent"] = TARGET_MFU_PERCENT
    if not rehearsal:
        RESULTS.mkdir(exist_ok=True)
        kind = re.sub(r"[^a-z0-9]+", "-", found["device"].lower()).strip("-")
        (RESULTS / f"gpu_check-{kind}.json").write_text(json.dumps(found, indent=2) + "\n")
    best = found["best"]
    print(f"correct: {found['correctness']['ok']}; cuDNN attention: {found['cudnn_used']}")
    print(f"left out: {found['left_out']}")
    print(f"best MFU: {best['mfu_percent']:.1f} % ({best['remat']}, {best['sequences_a_device']})" if best else "-")


if __name__ == "__main__":
    main()
