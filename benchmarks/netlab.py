"""Training over a real network on one Linux machine: hosts in namespaces, links of 50 to 200 Mbit/s (root, iproute2).

    python benchmarks/netlab.py smoke         # two hosts, DDP, a few steps
    python benchmarks/netlab.py campaign      # probe, predict, measure: 5 networks, 3 model sizes, 3 strategies
    python benchmarks/netlab.py slow-link     # one of 4 links at a tenth: DDP, FSDP, the parameter server on Ray
    python benchmarks/netlab.py --clean       # remove what a killed lab left behind

The hosts share this machine's cores, memory and load: only what the network bounds is like a cluster's. Leave the
machine alone meanwhile. Results go to benchmarks/results/netlab.json setting by setting; what is there is not
measured again.
"""

import argparse
import json
import sys
from pathlib import Path

import netlab_campaign
import netlab_hosts
import netlab_slow_link
from netlab_settings import MODELS, bench, moved_bytes

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "netlab.json"
WORK = ROOT / "build" / "netlab"
SMOKE_MBIT = 100.0


def smoke() -> int:
    """DDP on two hosts: the collectives cross the link, which must make the step at least as long as it takes."""
    with netlab_hosts.cluster([SMOKE_MBIT] * 2) as hosts:
        folder, model = WORK / "smoke", MODELS["small"]
        command = bench(model, len(hosts), "ddp", steps=3, folder=folder)
        (result,) = json.loads(netlab_hosts.run_on_all(hosts, command, folder, timeout_s=180))
    step_s = result["step_time_s"]["median"]
    least_s = moved_bytes(model, "ddp", hosts=2) / (SMOKE_MBIT * 1e6 / 8)
    print(
        f"2 hosts at {SMOKE_MBIT:g} Mbit/s, DDP: {step_s * 1e3:.0f} ms a step; its bytes alone take {least_s * 1e3:.0f}"
    )
    if result["devices"] != 2 or step_s < 0.9 * least_s:
        print("wrong: the step is shorter than its bytes take on the link", file=sys.stderr)
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("smoke", "campaign", "slow-link"))
    parser.add_argument("--clean", action="store_true", help="remove the lab's namespaces, processes and files")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the JSON file of results")
    parser.add_argument("--only", action="append", metavar="NxM", help="campaign: only N hosts at M Mbit/s; repeat")
    arguments = parser.parse_args()
    if arguments.clean:
        netlab_hosts.clean()
        return 0
    if arguments.command is None:
        parser.error("a command, or --clean")
    if reason := netlab_hosts.refusal():
        print(f"skipped: {reason}")
        return 0
    try:
        if arguments.command == "smoke":
            return smoke()
        if arguments.command == "campaign":
            return netlab_campaign.campaign(arguments.results, WORK, arguments.only)
        return netlab_slow_link.slow_link(arguments.results, WORK)
    except netlab_hosts.Failed as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
