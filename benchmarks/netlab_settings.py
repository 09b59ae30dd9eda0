"""The models of the network laboratory, and the commands that run them."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxdp.config import Config, load
from jaxdp.models.shapes import block_count, count
from jaxdp.strategies.volume import Step
from jaxdp.strict_json import to_json, write_atomically


@dataclass(frozen=True)
class Model:
    """Four blocks of byte tokens; `rows` sequences a host. Few of them: the network, not the CPU, is the limit."""

    width: int
    rows: int = 2
    context: int = 32
    layers: int = 4
    vocab: int = 256

    def config(self, hosts: int, strategy: str) -> Config:
        return load((), _settings(self, hosts), {"strategy.name": strategy})


MODELS = {"small": Model(width=64), "middle": Model(width=160), "large": Model(width=224)}
# Long sequences, many of them: computing takes far longer than sending.
COMPUTE_BOUND = Model(width=64, rows=384, context=128)


def _settings(model: Model, hosts: int) -> list[str]:
    keys: dict[str, Any] = {
        "model.layers": model.layers,
        "model.width": model.width,
        "model.heads": 4,
        "model.ffn": 4 * model.width,
        "model.context": model.context,
        "model.vocab": model.vocab,
        "model.tied": "true",
        "train.global_batch": model.rows * hosts,
        "train.compute_dtype": "float32",
    }
    return [f"{key}={value}" for key, value in keys.items()]


def overrides(model: Model, hosts: int) -> list[str]:
    """The model as flags of a command."""
    return [part for setting in _settings(model, hosts) for part in ("--set", setting)]


def jaxdp(command: str, *arguments: str) -> list[str]:
    """A command that prints one JSON document."""
    return [sys.executable, "-m", "cli", command, *arguments, "--json", "--quiet"]


def bench(model: Model, hosts: int, strategies: str, steps: int, folder: Path) -> list[str]:
    measured = ["--strategy", strategies, "--steps", str(steps), "--warmup", "2", *overrides(model, hosts)]
    return jaxdp("bench", *measured, "--run-dir", str(folder / "run"), "--overwrite")


def moved_bytes(model: Model, strategy: str, hosts: int) -> float:
    """What a device must send in a step, by the strategy's formula."""
    config = model.config(hosts, strategy)
    blocks = block_count(config.model)
    step = Step(block_parameters=blocks, root_parameters=count(config.model) - blocks, axis_sizes={"data": hosts})
    return config.strategy.row.least_bytes(step)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (to_json(document, indent=1) + "\n").encode())
