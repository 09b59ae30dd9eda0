"""The one configuration of a run: frozen sections (`schema`), one strict loader (`load`), one writer (`write`)."""

from jaxdp.config.load import (
    SHIPPED,
    build,
    dotted,
    find,
    load,
    load_strategies,
    parse_override,
    read_toml,
    shipped_names,
    validate,
)
from jaxdp.config.schema import (
    Config,
    Count,
    DataConfig,
    ModelConfig,
    OptimConfig,
    Section,
    ServerConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from jaxdp.config.write import to_toml

__all__ = [
    "SHIPPED",
    "Config",
    "Count",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "Section",
    "ServerConfig",
    "StrategyConfig",
    "TaskConfig",
    "TrainConfig",
    "build",
    "dotted",
    "find",
    "load",
    "load_strategies",
    "parse_override",
    "read_toml",
    "shipped_names",
    "to_toml",
    "validate",
]
