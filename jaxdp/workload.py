"""What a config trains, by name: the built-in transformer, whose facts need no JAX, or a user's task."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from jaxdp.config import Config
from jaxdp.errors import BadInput
from jaxdp.models import shapes
from jaxdp.parameter import Parameter
from jaxdp.registry import import_outside
from jaxdp.strict_json import from_json, to_json
from jaxdp.suggest import suggest

if TYPE_CHECKING:
    from jaxdp.task import Batch, DataSource, Task


def task_of(config: Config, platform: str) -> "Task":
    """The task of a config; raises `BadInput` for a module, function or argument that there is not."""
    if config.task is not None:
        return _load(config.task.function, to_json(config.task.arguments))
    from jaxdp.models.language import language_task

    return language_task(config, platform)


def user_task(config: Config) -> "Task | None":
    """The user's task; None for the built-in transformer."""
    return None if config.task is None else task_of(config, "cpu")


def refuse_prediction(config: Config, asked: str) -> None:
    """The cost model knows the built-in transformer alone; `asked` begins the error's line."""
    if config.task is not None:
        raise BadInput(
            f"{asked}: the cost model knows the built-in transformer only, not {config.task.function}; "
            "measure it with jaxdp bench --task, or compile it with jaxdp check --task --compile"
        )


def parameters(config: Config) -> tuple[Parameter, ...]:
    """All parameters; the built-in transformer's need no JAX."""
    task = user_task(config)
    return task.parameters if task else shapes.parameters(config.model)


def reduces_by_block(config: Config) -> bool:
    """Gradients are summed in the backward pass; of several microbatches they must be added before, so at the end."""
    able = "reduce" in config.strategy.row.options and config.train.accumulation == 1
    return able and config.strategy.reduce == "block"


def open_data(config: Config) -> "DataSource":
    """The task's data; raises `BadInput` with the file's or the key's name for what cannot be trained on."""
    if task := user_task(config):
        return task.open_data(config.train.global_batch, config.train.seed)
    from jaxdp.data import pipeline

    return pipeline.open_data(config)


def example_batch(config: Config) -> "Batch":
    """A batch of one row; the built-in transformer's needs no data."""
    if user_task(config):
        return open_data(config).rows(0, 0, 1)
    from jaxdp.data.batch import blank_batch

    return blank_batch(1, config.model.context)


def unit(config: Config) -> str:
    task = user_task(config)
    return task.unit if task else "tokens"


def units_per_batch(config: Config) -> int:
    """Tokens of a global batch, or what else the task counts, padding included."""
    task = user_task(config)
    return config.train.global_batch * (task.units_per_example if task else config.model.context)


@cache
def _load(function: str, arguments_json: str) -> "Task":
    from jaxdp.task import Task

    module_name, _, name = function.partition(":")
    make = getattr(import_outside(module_name, "task"), name, None)
    if not callable(make):
        known = [key for key, value in vars(import_outside(module_name, "task")).items() if inspect.isfunction(value)]
        raise BadInput(f"task: no function {name} in module {module_name}{suggest(name, known)}")
    arguments = from_json(arguments_json)
    _refuse_arguments(make, arguments, function)
    try:
        task = make(**arguments)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"task: {function} fails: {type(error).__name__}: {error}") from error
    if not isinstance(task, Task):
        raise BadInput(f"task: {function} returns {type(task).__name__}, not a jaxdp.task.Task")
    return task


def _refuse_arguments(make: Callable[..., Any], arguments: dict[str, Any], function: str) -> None:
    signature = inspect.signature(make)
    known = list(signature.parameters)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
    for key in arguments:
        if key not in known and not open_ended:
            raise BadInput(f"task.{key}: {function} takes no such argument{suggest(key, known)}")
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise BadInput(f"task: {function}: {error}; set it with --set task.NAME=VALUE") from None
