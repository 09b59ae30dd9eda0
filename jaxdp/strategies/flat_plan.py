"""What the flat unit moves (no JAX): the counterpart of `collectives.plan` for its blocks."""

from jaxdp.parameter import GRADIENT_BYTES
from jaxdp.strategies.collectives import Planned
from jaxdp.strategies.flat_layout import FlatLayout
from jaxdp.strategies.rules import DATA_AXIS

FETCH = "broadcast of a part"  # the purposes of the flat unit's collectives
RETURN = "return of a part's gradient"


def plan_flat(flat: FlatLayout, accumulation: int, compute_dtype_bytes: int) -> list[Planned]:
    """The collectives of the blocks under the flat unit: a masked sum a part and pass, one after the other.

    A part is fetched forward and again backward in the compute dtype; its gradient goes back in float32.
    """
    everyone = (tuple(range(flat.devices)),)
    if flat.devices == 1:
        return []
    return [
        Planned(
            kind="all-reduce",
            purpose=purpose,
            leaves=("blocks",),
            axes=(DATA_AXIS,),
            groups=everyone,
            dtype_bytes=width,
            bytes=(part.stop - part.start) * width,
            count=passes * accumulation,
        )
        for layer in range(flat.layers)
        for part in flat.parts(layer)
        for purpose, width, passes in ((FETCH, compute_dtype_bytes, 2), (RETURN, GRADIENT_BYTES, 1))
    ]
