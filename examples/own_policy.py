"""A server policy of your own: an update waits for a share of the workers, and what comes later is dropped.

Import this module as a plugin and the policy works wherever a built-in one does:

    jaxdp bench --set 'plugins=["examples.own_policy"]' --strategy ps --policy "majority(percent=75)" --devices 4
    JAXDP_PLUGINS=examples.own_policy jaxdp sim --strategy ps --policy "majority(percent=75)" --compute-s 1

Run as a script it shows in virtual time what the policy gains when workers stall, and what it throws away.
"""

from collections.abc import Mapping
from math import ceil

from jaxdp.policies import SERVER_POLICIES, Option, Policy, ServerPolicy


def make(options: Mapping[str, int]) -> Policy:
    """In lockstep: a push counts for one version only, so nothing stale is ever applied."""
    share = options["percent"] / 100
    return Policy(lockstep=True, needed=lambda workers: max(1, ceil(share * workers)))


MAJORITY = SERVER_POLICIES.register(
    ServerPolicy(
        name="majority",
        summary="an update is made of the first pushes of a version, from a share of the workers",
        make=make,
        options={"percent": Option(summary="share of the workers", least=1, most=lambda workers: 100)},
    )
)


def main() -> None:
    import jaxdp

    policies = ("sync", "majority(percent=75)", "majority(percent=50)", "async")
    simulation = jaxdp.simulate(
        workers=8,
        compute_s=1.0,
        stragglers="pause(seconds=3,probability=0.1)",
        strategies=["ddp", *({"name": "ps", "policy": policy} for policy in policies)],
    )
    for row in simulation.to_json()["results"]:
        gain, wasted = row["gain_over_ddp"], row["wasted_share"]
        print(f"{row['label']:16} {gain:.2f} times DDP's gradients, {wasted:.0%} computed for nothing")


if __name__ == "__main__":
    main()
