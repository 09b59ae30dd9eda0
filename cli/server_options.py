"""The parameter server's flags, shared by the commands that run or simulate one."""

from typing import Annotated, Any

import typer

from jaxdp.policies import SERVER_POLICIES, option_summary
from jaxdp.strategies.rows import worker_strategies

EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="threads|ray", help="Where the workers run.", rich_help_panel="Server")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Workers (default: one per device).", rich_help_panel="Server")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="|".join(SERVER_POLICIES), help="When pushes apply.", rich_help_panel="Server"),
]
BoundOption = Annotated[
    int | None,
    typer.Option("--bound", min=0, help=option_summary("bound"), rich_help_panel="Server"),
]
BackupsOption = Annotated[
    int | None, typer.Option("--backups", min=0, help=option_summary("backups"), rich_help_panel="Server")
]
GroupOption = Annotated[
    int | None, typer.Option("--group", min=1, help=option_summary("group"), rich_help_panel="Server")
]
CorrectionOption = Annotated[
    str | None,
    typer.Option(
        "--correction",
        metavar="none|lr_over_staleness|delay_compensation",
        help="What is done about stale gradients.",
        rich_help_panel="Server",
    ),
]
ShardsOption = Annotated[
    int | None, typer.Option("--server-shards", min=1, help="Parts the server is split in.", rich_help_panel="Server")
]
PipelineOption = Annotated[
    bool | None,
    typer.Option(
        "--pipeline/--no-pipeline",
        help="Pull ahead and push in the background: raises staleness by one.",
        rich_help_panel="Server",
    ),
]
WorkerStrategyOption = Annotated[
    str | None,
    typer.Option(
        "--worker-strategy", metavar="|".join(worker_strategies()), help="Inside a worker.", rich_help_panel="Server"
    ),
]
DevicesPerWorkerOption = Annotated[
    int | None, typer.Option("--devices-per-worker", min=1, help="Devices of a worker.", rich_help_panel="Server")
]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        "--placement", metavar="dedicated|colocated", help="ray: server shards' nodes.", rich_help_panel="Server"
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="ray: the cluster to join (default: a local one).", rich_help_panel="Server"),
]


def server_flags(**given: Any) -> dict[str, Any]:
    """The flags as config keys; a flag that was not given is None."""
    return {f"server.{key}": value for key, value in given.items()}
