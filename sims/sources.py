"""Where compute times can come from besides a number: the cost model on given hardware, or a measured run."""

import json
import statistics
from pathlib import Path
from typing import Any

from jaxdp.config import load
from jaxdp.errors import BadInput
from jaxdp.predict.cost import device_seconds
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.server_cost import server
from jaxdp.workload import units_per_batch


def from_hardware(hardware: str, hosts: int | None, train: str) -> dict[str, Any]:
    """Workers, their compute times, message and links of training the config `train`, by the cost model.

    A worker is a device. Between hosts it sends over its share of the host's network, inside one host over
    the devices' own links. Keys are those of a `Scenario`; raises `BadInput`.
    """
    config, machines = load([train]), load_hardware(hardware, hosts)
    shared = server(config, machines)
    first = machines.groups[0]
    if machines.hosts > 1:
        link, latency_s = min(group.nic_bandwidth for group in machines.groups), shared.worker.latency_s
    else:
        link, latency_s = first.intra_bandwidth, first.intra_latency_s
    return {
        "workers": machines.devices,
        "compute_s": device_seconds(config, machines),
        "message_bytes": shared.message_bytes,
        "nic_gbps": link * 8 / 1e9,
        "server_nic_gbps": shared.bandwidth * 8 / 1e9,
        "latency_s": latency_s,
        "apply_s": shared.apply_s,
        "tokens_per_step": units_per_batch(config),
    }


def from_run(folder: str) -> dict[str, Any]:
    """The median step time of a measured run's folder, or of one of its `steps.jsonl`; raises `BadInput`."""
    path = Path(folder)
    files = [path] if path.is_file() else sorted(path.glob("*steps.jsonl"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise BadInput(f"run {folder}: needs one steps.jsonl, found {found}; give a run's folder or one of these files")
    try:
        rows = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
        seconds = [float(row["step_time_s"]) for row in rows]
        return {"compute_s": statistics.median(seconds)}
    except (OSError, ValueError, KeyError, TypeError):  # StatisticsError is a ValueError
        raise BadInput(f"{files[0]}: not the steps.jsonl of a run, whose lines have step_time_s") from None
