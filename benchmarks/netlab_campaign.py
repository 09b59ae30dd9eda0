"""Every network probed, then predicted and measured: what the cost model is worth, and FSDP against DDP (F2)."""

import json
from pathlib import Path
from typing import Any

from netlab_hosts import Host, cluster, run_on_all
from netlab_settings import COMPUTE_BOUND, MODELS, Model, bench, jaxdp, moved_bytes, read, write

from jaxdp.predict.cost import mesh_cost
from jaxdp.predict.hardware import Hardware, read_group

LINKS = ((2, 50.0), (2, 100.0), (2, 200.0), (4, 50.0), (4, 100.0))
COMPUTE_BOUND_LINK = (2, 200.0)
STRATEGIES = ("ddp", "zero1", "fsdp")
STEPS = 6
PROBE_TIMEOUT_S, BENCH_TIMEOUT_S = 300, 400


def campaign(results: Path, work: Path, only: list[str] | None) -> int:
    """Measures what `results` lacks, network by network, and prints the table."""
    document = read(results)
    for hosts, mbit in LINKS:
        models = dict(MODELS) | ({"compute-bound": COMPUTE_BOUND} if (hosts, mbit) == COMPUTE_BOUND_LINK else {})
        link = f"{hosts}x{mbit:g}"
        done = document.setdefault("campaign", {}).setdefault(link, {"hosts": hosts, "mbit": mbit, "rows": {}})
        lacking = {name: model for name, model in models.items() if name not in done["rows"]}
        if not lacking or (only and link not in only):
            continue
        folder = work / link
        with cluster([mbit] * hosts) as lab:
            said = run_on_all(lab, jaxdp("probe"), folder, PROBE_TIMEOUT_S)
            tables = json.loads(said)["hosts"]
            for name, model in lacking.items():
                measured = _measure(lab, model, folder)
                done["rows"][name] = {"probe": tables, "strategies": _rows(model, hosts, tables, measured)}
                write(results, document)
                print(_line(link, name, done["rows"][name]), flush=True)
    print()
    print(table(document["campaign"]))
    return 0


def _measure(lab: list[Host], model: Model, folder: Path) -> list[dict[str, Any]]:
    command = bench(model, len(lab), ",".join(STRATEGIES), STEPS, folder)
    return json.loads(run_on_all(lab, command, folder, BENCH_TIMEOUT_S))


def _rows(
    model: Model, hosts: int, tables: list[dict[str, Any]], measured: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    hardware = Hardware(tuple(read_group(table, "probe") for table in tables))
    rows = {}
    for result in measured:
        strategy = result["strategy"]
        cost = mesh_cost(model.config(hosts, strategy), hardware)
        rows[strategy] = {
            "measured_step_s": result["step_time_s"],
            "predicted_step_s": cost.total_s,
            "predicted_compute_s": cost.compute_s,
            "predicted_communication_s": cost.exposed_communication_s,
            "error": cost.total_s / result["step_time_s"]["median"] - 1,
            "moved_bytes": moved_bytes(model, strategy, hosts),
        }
    return rows


def _line(link: str, name: str, row: dict[str, Any]) -> str:
    parts = [
        f"{strategy} {found['measured_step_s']['median'] * 1e3:.0f} ms ({found['error']:+.1%})"
        for strategy, found in row["strategies"].items()
    ]
    return f"{link} {name}: {', '.join(parts)}"


def table(links: dict[str, Any]) -> str:
    """All settings, the prediction's error counted over the middle size, and FSDP over DDP."""
    lines = [
        "hosts  Mbit/s  model          strategy  measured ms (p10-p90)     predicted  error   / DDP  its bytes / DDP's"
    ]
    for link in links.values():
        for name, row in link["rows"].items():
            for strategy, found in row["strategies"].items():
                lines.append(_table_line(link, name, strategy, found, row["strategies"]["ddp"]))
    lines += ["", *_verdicts(links)]
    return "\n".join(lines)


def _table_line(link: dict[str, Any], name: str, strategy: str, found: dict[str, Any], ddp: dict[str, Any]) -> str:
    spent = found["measured_step_s"]
    ms = f"{spent['median'] * 1e3:.0f} ({spent['p10'] * 1e3:.0f}-{spent['p90'] * 1e3:.0f})"
    ratio = spent["median"] / ddp["measured_step_s"]["median"]
    return (
        f"{link['hosts']:<5}  {link['mbit']:<6g}  {name:<13}  {strategy:<8}  {ms:<24}"
        f"  {found['predicted_step_s'] * 1e3:>9.0f}  {found['error']:>+6.1%}  {ratio:>5.2f}"
        f"  {found['moved_bytes'] / ddp['moved_bytes']:.2f}"
    )


def _verdicts(links: dict[str, Any]) -> list[str]:
    middle = [
        abs(link["rows"]["middle"]["strategies"][strategy]["error"])
        for link in links.values()
        if "middle" in link["rows"]
        for strategy in ("ddp", "fsdp")
    ]
    network = _fsdp_over_ddp(links, tuple(MODELS))
    computing = _fsdp_over_ddp(links, ("compute-bound",))
    return [
        f"middle size, DDP and FSDP: within 5 % in {sum(e <= 0.05 for e in middle)} of {len(middle)} settings,"
        f" within 10 % in {sum(e <= 0.1 for e in middle)}, at worst {max(middle, default=0):.1%} off",
        f"FSDP's step over DDP's: bound by the network {min(network, default=0):.2f} to {max(network, default=0):.2f},"
        f" by computing {max(computing, default=0):.2f}",
    ]


def _fsdp_over_ddp(links: dict[str, Any], names: tuple[str, ...]) -> list[float]:
    return [
        row["strategies"]["fsdp"]["measured_step_s"]["median"] / row["strategies"]["ddp"]["measured_step_s"]["median"]
        for link in links.values()
        for name, row in link["rows"].items()
        if name in names
    ]
