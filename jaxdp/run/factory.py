"""The run of any strategy: what the measuring and the training loop drive.

Both kinds are made, then `compile`d and `start`ed, run `window` after `window`, and are `close`d. Steps count
global batches: of a parameter server, the tokens of n pushes.
"""

from collections.abc import Sequence

import jax

from jaxdp.config import Config
from jaxdp.run.mesh_run import MeshRun
from jaxdp.server.run import ServerRun
from jaxdp.task import DataSource

Run = MeshRun | ServerRun


def make_run(
    config: Config,
    data: DataSource,
    devices: Sequence[jax.Device],
    *,
    hosts: int = 1,
    spans: bool = False,
    arrivals: bool = False,
) -> Run:
    """The run of the config's strategy; `spans` keeps those of a timeline, `arrivals` when each process was ready."""
    if config.strategy.name != "ps":
        return MeshRun(config, data, devices, hosts, spans=spans, arrivals=arrivals)
    return ServerRun(config, data, devices, spans=spans)
