"""A delay model of your own: a worker's first steps take longer, as with cold caches, and by and by it catches up.

Import this module as a plugin and the model works in every SPEC, in a simulation and in real time:

    jaxdp bench --set 'plugins=["examples.own_delay"]' --strategy ddp,ps --stragglers "cold_start(extra_s=1,steps=5)"
    JAXDP_PLUGINS=examples.own_delay jaxdp sim --compute-s 1 --stragglers "cold_start(extra_s=9,steps=50,worker=0)"

Run as a script it shows how much of that DDP and the parameter server each pay.
"""

import numpy as np

from jaxdp.stragglers.draws import Draws
from jaxdp.stragglers.models import DELAY_MODELS, SECONDS, Adds, DelayModel, Effect, Number, Values


def effect(values: Values) -> Effect:
    """Adds `extra_s` to the first step, and less with each, until nothing after `steps`."""

    def extra_s(draws: Draws, workers: np.ndarray, steps: np.ndarray) -> np.ndarray:
        left = np.maximum(0.0, 1.0 - steps / values["steps"])
        return np.broadcast_to(values["extra_s"] * left[:, None], (len(steps), len(workers)))

    return Adds(extra_s)


COLD_START = DELAY_MODELS.register(
    DelayModel(
        name="cold_start",
        summary="the first steps take longer, and each less so than the one before",
        keys={"extra_s": SECONDS, "steps": Number(least=1)},
        effect=effect,
    )
)


def main() -> None:
    import jaxdp

    for workers in ("worker 0", "all workers"):
        which = ",worker=0" if workers == "worker 0" else ""
        simulation = jaxdp.simulate(
            workers=8,
            steps=200,
            compute_s=1.0,
            stragglers=f"cold_start(extra_s=9,steps=50{which})",
            strategies=["ddp", "ps"],
        )
        for row in simulation.to_json()["results"]:
            print(f"{workers} cold, {row['label']}: {row['virtual_time_s']:.0f} s for what takes 200 s warm")


if __name__ == "__main__":
    main()
