"""GPU programs of GPUs that are not there: compiled under every set of options, and their schedules played.

    python benchmarks/gpu_programs.py --strategies ddp,hsdp --set strategy.reduce=block --options none,pipelined \
        --out benchmarks/results/gpu_programs_by_block.json
    python benchmarks/gpu_programs.py [--strategies ddp,fsdp] [--models 1b] [--hosts 1,4] [--options none,pipelined]

Needs jax[cuda12] (no GPU, no driver). Compiles for hosts of 8 H100, reads the scheduled program and plays it at the bus
bandwidths that the authors of the Ultra-Scale Playbook measured on their cluster (benchmarks/data/network.csv). Compute
times are a roofline's and rough: compare exposed with exposed. Writes benchmarks/results/gpu_programs.json and .txt.
"""

import argparse
import csv
import json
import math
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxdp.config import Config, load
from jaxdp.hlo.collectives import Collective
from jaxdp.hlo.schedule import kernels, schedule
from jaxdp.mesh.compile import compile_step, compiled_bytes
from jaxdp.mesh.topology import topology_devices
from jaxdp.mesh.xla_options import DEVICELESS, OPTION_SETS, compile_known
from jaxdp.predict.played import KernelRates, Played, play
from jaxdp.strategies.collectives import moved_bytes

HERE = Path(__file__).parent
GPUS_PER_HOST = 8
LATENCY_IN_HOST_S, LATENCY_BETWEEN_HOSTS_S = 10e-6, 30e-6  # of a collective; assumed
# An H100's reach in this play: products and attention as large ones get, traffic as copies get.
H100 = KernelRates(product_flops=0.7 * 989e12, attention_flops=0.45 * 989e12, memory_bandwidth=2.8e12, launch_s=2e-6)
COLUMN = {"all-reduce": "allreduce_gbps", "all-gather": "allgather_gbps", "reduce-scatter": "reducescatter_gbps"}


def bus_bandwidths() -> dict[int, dict[str, float]]:
    """Bytes/s by number of hosts and kind of collective."""
    with (HERE / "data" / "network.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return {int(row["nodes"]): {kind: float(row[column]) * 1e9 for kind, column in COLUMN.items()} for row in rows}


def collective_seconds(measured: dict[int, dict[str, float]]) -> Callable[[Collective], float]:
    """Seconds of one run of a collective: what it sends at the measured bus bandwidth of as many hosts."""

    def seconds(one: Collective) -> float:
        hosts = len({device // GPUS_PER_HOST for device in one.groups[0]}) if one.groups else 1
        nearest = min(measured, key=lambda count: abs(math.log(count / hosts)))
        bandwidth = measured[nearest].get(one.kind, measured[nearest]["all-gather"])
        latency_s = LATENCY_IN_HOST_S if hosts == 1 else LATENCY_BETWEEN_HOSTS_S
        return latency_s + moved_bytes(one) / bandwidth

    return seconds


def play_config(config: Config, hosts: int, options: dict[str, Any]) -> dict[str, Any]:
    """One program: its bytes, kernels, and what shows of its communication."""
    devices = topology_devices(f"h100x{GPUS_PER_HOST}", hosts)

    def compile_with(chosen: dict[str, Any]) -> Any:
        return compile_step(config, devices, hosts, options={**DEVICELESS, **chosen})

    compiled, unknown = compile_known(compile_with, options)
    operations = schedule(compiled.as_text())
    played = play(operations, H100.seconds, collective_seconds(bus_bandwidths()))
    size = compiled_bytes(compiled)
    return {
        "bytes_per_device": size and size.total,
        "kernels": sum(count for _, count in kernels(operations)),
        "compute_s": played.compute_s,
        "step_s": played.step_s,
        "sent_s": sum(overlap.seconds for overlap in played.overlaps),
        "exposed_s": played.exposed_s,
        "unknown_options": list(unknown),
        "collectives": _collectives(played),
    }


def _collectives(played: Played) -> list[dict[str, Any]]:
    return [
        {
            "kind": overlap.collective.kind,
            "where": overlap.collective.where,
            "count": overlap.count,
            "bytes": overlap.collective.bytes,
            "products_between": overlap.products_between / overlap.count,
            "seconds": overlap.seconds,
            "exposed_s": overlap.exposed_s,
        }
        for overlap in sorted(played.overlaps, key=lambda overlap: -overlap.exposed_s)
    ]


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["model       strategy  hosts  options            GiB  kernels  compute ms  sent ms  exposed ms"]
    for row in rows:
        gib = (row["bytes_per_device"] or math.nan) / 2**30
        lines.append(
            f"{row['model']:11} {row['strategy']:9} {row['hosts']:5}  {row['options']:16}"
            f" {gib:6.2f}  {row['kernels']:7}"
            f"  {row['compute_s'] * 1e3:10.1f}  {row['sent_s'] * 1e3:7.1f}  {row['exposed_s'] * 1e3:10.1f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategies", default="ddp,zero1,fsdp,hsdp")
    parser.add_argument("--models", default="1b")
    parser.add_argument("--hosts", default="1,4")
    parser.add_argument("--options", default=",".join(OPTION_SETS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu_programs.json")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    chosen = parser.parse_args()
    rows = []
    for model in chosen.models.split(","):
        for hosts in map(int, chosen.hosts.split(",")):
            for strategy in chosen.strategies.split(","):
                config = load([model], chosen.overrides, {"strategy.name": strategy})
                train = config.train
                whole = GPUS_PER_HOST * hosts * train.accumulation
                if train.global_batch % whole:
                    batch = whole * max(1, round(train.global_batch / whole))
                    config = load(
                        [model], [*chosen.overrides, f"train.global_batch={batch}"], {"strategy.name": strategy}
                    )
                for name in chosen.options.split(","):
                    found = play_config(config, hosts, dict(OPTION_SETS[name]))
                    where = {"model": model, "strategy": strategy, "hosts": hosts, "options": name}
                    rows.append(where | {"global_batch": config.train.global_batch} | found)
                    print(table(rows[-1:]).splitlines()[1], flush=True)
    versions = {name: metadata.version(name) for name in ("jax", "jax-cuda12-plugin")}
    chosen.out.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n")
    chosen.out.with_suffix(".txt").write_text(f"{versions}\n{table(rows)}")


if __name__ == "__main__":
    main()
