"""Where compute times can come from besides a number: the cost model on given hardware, or a measured run."""

import json
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.config import Config, load
from jaxdp.errors import BadInput
from jaxdp.predict.cost import barrier_seconds, communication, device_seconds
from jaxdp.predict.evaluate import as_run
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.server_cost import server, worker_seconds
from jaxdp.stragglers.delays import Delays
from jaxdp.workload import refuse_prediction, units_per_batch


@dataclass(frozen=True)
class Predicted:
    """What the cost model says of a config's training on hardware: the same functions that `jaxdp advise` asks.

    A worker is a device. `values` are those of a `Scenario` that follow from it, `stated` what its author said.
    """

    config: Config
    hardware: Hardware
    values: dict[str, Any] = field(compare=False)
    stated: dict[str, Any] = field(compare=False)

    def compute_s(self, strategy: str) -> np.ndarray:
        """Each worker's seconds of computing in a step, unless stated otherwise."""
        if "compute_s" in self.stated:
            return np.broadcast_to(np.asarray(self.stated["compute_s"], np.float64), self.hardware.devices)
        config, _ = as_run(self.config, self.hardware, strategy)
        return np.array((worker_seconds if strategy == "ps" else device_seconds)(config, self.hardware))

    def exposed_s(self, strategy: str, base_s: np.ndarray, delays: Delays) -> float:
        """Seconds of a mesh strategy's communication that no computing hides, for workers that compute `base_s`."""
        config, _ = as_run(self.config, self.hardware, strategy)
        _, slowest_s = barrier_seconds(base_s.tolist(), delays)
        comm = communication(config, self.hardware, slowest_s, delays)
        return comm.exposed_s + comm.waiting_s


def from_hardware(stated: dict[str, Any]) -> Predicted:
    """The prediction for a scenario's `hardware`, `hosts`, `train`, `nic_gbps` and `latency_s`; raises `BadInput`."""
    config = load([str(stated.get("train", "nano"))])
    refuse_prediction(config, "sim: hardware")
    machines = load_hardware(str(stated["hardware"]), stated.get("hosts"), stated.get("nic_gbps"))
    if (latency_s := stated.get("latency_s")) is not None:
        groups = [replace(group, intra_latency_s=latency_s, nic_latency_s=latency_s) for group in machines.groups]
        machines = replace(machines, groups=tuple(groups))
    if config.server.devices_per_worker > 1 or config.server.workers not in (None, machines.devices):
        raise BadInput("hardware: a simulated worker is a device; leave server.workers and devices_per_worker out")
    shared = server(config, machines)
    values = {
        "workers": machines.devices,
        "compute_s": tuple(device_seconds(as_run(config, machines, "ddp")[0], machines)),
        "message_bytes": shared.message_bytes,
        "nic_gbps": shared.worker.bandwidth * 8 / 1e9,
        "server_nic_gbps": shared.bandwidth * 8 / 1e9,
        "latency_s": shared.worker.latency_s,
        "apply_s": shared.apply_s,
        "tokens_per_step": units_per_batch(as_run(config, machines, "ddp")[0]),
    }
    for key, what in (("workers", "devices"), ("message_bytes", "bytes of parameters to send")):
        if stated.get(key, values[key]) != values[key]:
            raise BadInput(f"{key}: {stated['hardware']} has {values[key]} {what}, not {stated[key]}; leave it out")
    own = {key: stated[key] for key in ("compute_s", "server_nic_gbps", "apply_s", "tokens_per_step") if key in stated}
    return Predicted(config, machines, values | own, stated)


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
