"""One of four links at a tenth of the others' speed: what is left of each strategy's throughput (F4)."""

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from netlab_hosts import Failed, Host, cluster, run_on_all
from netlab_settings import MODELS, bench, read, write

MBIT = 100.0
LINKS = {"even": [MBIT] * 4, "slow": [MBIT] * 3 + [MBIT / 10]}
MODEL = MODELS["middle"]
MESH_STEPS, SERVER_STEPS = 4, 12
RAY_PORT = 6379
TIMEOUT_S = 500
START_S = 120
KEPT = ("tokens_per_second", "step_time_s", "updates_per_second", "staleness", "idle_share", "server_busy_share")


def slow_link(results: Path, work: Path) -> int:
    """Measures DDP, FSDP and the asynchronous server with even links, then with a slow one; prints the comparison."""
    document = read(results)
    found = document.setdefault("slow_link", {"mbit": LINKS})
    for name, links in LINKS.items():
        rows = found.setdefault(name, {})
        if {"ddp", "fsdp"} - set(rows):
            with cluster(links) as hosts:
                rows |= _mesh(hosts, work / f"slow-link-{name}")
            write(results, document)
        if "ps" not in rows:
            with cluster(links) as hosts:
                rows["ps"] = _server(hosts, work / f"slow-link-{name}")
            write(results, document)
    print("tokens/s  even links  one slow  what is left")
    for strategy in ("ddp", "fsdp", "ps"):
        even, slow = (found[name][strategy]["tokens_per_second"] for name in LINKS)
        print(f"{strategy:<8}  {even:>10.1f}  {slow:>8.1f}  {slow / even:>12.0%}")
    return 0


def _mesh(hosts: list[Host], folder: Path) -> dict[str, Any]:
    command = bench(MODEL, len(hosts), "ddp,fsdp", MESH_STEPS, folder)
    return {result["strategy"]: _kept(result) for result in json.loads(run_on_all(hosts, command, folder, TIMEOUT_S))}


def _server(hosts: list[Host], folder: Path) -> dict[str, Any]:
    """The server on the first host, a worker on every host, as the nodes of one Ray cluster."""
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    # The driver's pre-flight counts its own devices for the workers'.
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(len(hosts))}
    ray = [str(Path(sys.executable).with_name("ray")), "start"]
    head = f"{hosts[0].address}:{RAY_PORT}"
    for number, host in enumerate(hosts):
        # The head has room for the server beside its worker.
        join = (
            ["--head", f"--port={RAY_PORT}", "--num-cpus=2"] if number == 0 else [f"--address={head}", "--num-cpus=1"]
        )
        node = [*ray, *join, f"--node-ip-address={host.address}", "--object-store-memory=200000000"]
        node += ["--include-dashboard=false"] if number == 0 else []
        _finish(host, node, folder / f"{host.name}-ray.out", environment, START_S)
    command = bench(MODEL, len(hosts), "ps", SERVER_STEPS, folder / "ps")
    command += ["--engine", "ray", "--address", head, "--workers", str(len(hosts)), "--policy", "async"]
    log = folder / f"{hosts[0].name}-ps.out"
    _finish(hosts[0], command, log, environment, TIMEOUT_S)
    (result,) = json.loads(log.read_text())
    # Over the whole time: windows of a few pushes hold the slow worker's or they don't.
    push = MODEL.rows * MODEL.context
    return _kept(result) | {"tokens_per_second": result["updates_per_second"] * push}


def _kept(result: dict[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in KEPT if key in result}


def _finish(host: Host, command: list[str], log: Path, environment: dict[str, str], timeout_s: float) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    process = host.start(command, log, environment)
    started = time.monotonic()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"{' '.join(command)}: not done after {time.monotonic() - started:.0f} s") from None
    if process.returncode:
        said = (log.with_suffix(".err").read_text() + log.read_text()).strip().splitlines()[-8:]
        raise Failed("\n".join([f"{' '.join(command)}: failed", *said]))
