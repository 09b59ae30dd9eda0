"""A sweep's TOML file: which cells there are, and how each is started (no JAX).

    name = "scaling"              # also of its folder, runs/sweep-NAME
    config = ["nano"]             # as --config; later ones win
    strategies = ["ddp", "fsdp", "ps"]
    devices = [1, 2, 4]
    scaling = "weak"              # the global batch grows with the devices, from train.global_batch at the fewest;
                                  # "strong": it stays
    steps = 10                    # timed, after `warmup` ones
    warmup = 3
    repeats = 2                   # of every cell, each a process of its own
    timeout_s = 600               # of a cell
    allow = ["block_split"]       # findings that may pass
    hardware = "hardware.toml"    # or a preset: adds the cost model's prediction, and checks memory

    [set]                         # config keys fixed for all cells
    "optim.name" = "sgd"

    [axes]                        # every combination is a cell
    "model.width" = [64, 128]
    stragglers = ["", "persistent(worker=0,factor=3)"]

    [[axes.size]]                 # keys that change together: one value of the axis `size` a table
    name = "small"
    "model.layers" = 2
    "model.ffn" = 128

    [launch]                      # a cell of many processes; without it a cell is one
    command = "srun -N {hosts} -n {processes}"
    devices_per_process = 1
    processes_per_host = 8        # without it all are on one host

`launch.command` goes before the cell's own command. Its placeholders are {devices}, {devices_per_process},
{processes} (the first over the second) and {hosts} (processes / processes_per_host, rounded up). Other commands that
fit: "mpirun -n {processes}", "jaxdp launch -n {processes} --devices-per-process {devices_per_process} --".
"""

import shlex
from collections.abc import Iterable
from string import Formatter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from jaxdp.config import SHIPPED, Count, Section, dotted, find, read_toml, validate
from jaxdp.errors import BadInput
from jaxdp.run.folder import NAME

SHIPPED_SWEEPS = SHIPPED / "sweeps"
PLACEHOLDERS = ("devices", "processes", "hosts", "devices_per_process")


class LaunchSection(Section):
    """How a cell of several processes is started; an empty command starts one process."""

    command: str = ""
    devices_per_process: Count = 1
    processes_per_host: Count | None = None

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        try:
            names = [name for _, name, _, _ in Formatter().parse(self.command) if name is not None]
            shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command: {error}") from None
        if unknown := [name for name in names if name not in PLACEHOLDERS]:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"command: no placeholder {{{unknown[0]}}}; known: {known}")
        return self

    def hosts(self, devices: int) -> int:
        processes = devices // self.devices_per_process
        return -(-processes // self.processes_per_host) if self.command and self.processes_per_host else 1

    def words(self, devices: int) -> list[str]:
        """The command for so many devices, in words."""
        values = {
            "devices": devices,
            "processes": devices // self.devices_per_process,
            "hosts": self.hosts(devices),
            "devices_per_process": self.devices_per_process,
        }
        return [word.format(**values) for word in shlex.split(self.command)]


class SweepSpec(Section):
    """The file as it is; `axes` and `set` still hold whatever they were given."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$", max_length=60)]
    config: tuple[str, ...] = ("nano",)
    strategies: Annotated[tuple[str, ...], Field(min_length=1)]
    devices: Annotated[tuple[Count, ...], Field(min_length=1)]
    scaling: Literal["weak", "strong"]
    steps: Count = 20
    warmup: Count = 3
    repeats: Annotated[int, Field(ge=1, le=1000, strict=True)] = 1
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    allow: tuple[str, ...] = ()
    hardware: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)
    launch: LaunchSection = Field(default_factory=LaunchSection)

    @model_validator(mode="after")
    def _processes_share_the_devices(self) -> Self:
        for devices in self.devices if self.launch.command else ():
            if devices % self.launch.devices_per_process:
                raise ValueError(
                    f"launch.devices_per_process: {self.launch.devices_per_process} does not divide {devices} devices"
                )
        return self


Choice = tuple[Any, dict[str, Any]]  # the value as shown, and the config keys that it sets


def load_spec(source: str) -> SweepSpec:
    """The sweep of a file or of a shipped name; raises `BadInput` with the file, the key and the nearest one."""
    path = find(source, SHIPPED_SWEEPS, "sweep")
    try:
        return validate(SweepSpec, read_toml(path))
    except BadInput as error:
        raise error if str(error).startswith(str(path)) else BadInput(f"{path}: {error}") from None


def axes_of(spec: SweepSpec) -> dict[str, list[Choice]]:
    """Each axis of `[axes]` with its choices; an axis has its key's name, or of tied keys its own."""
    axes: dict[str, list[Choice]] = {}
    owners = {"strategy.name": "strategies", "strategy": "strategies", "devices": "devices"}

    def claim(keys: Iterable[str], place: str) -> None:
        for key in keys:
            if owners.setdefault(key, place) != place:
                raise BadInput(f"{place}: {key} is set by {owners[key]} already; leave one of them out")

    claim(dotted(spec.set), "set")
    for name, values in dotted(spec.axes).items():
        if not isinstance(values, list) or not values:
            raise BadInput(f"axes.{name}: expected a list of values, not {values!r}")
        axes[name] = [_tied(name, value) if isinstance(value, dict) else (value, {name: value}) for value in values]
        names = [shown for shown, _ in axes[name]]
        if twice := [shown for place, shown in enumerate(names) if shown in names[:place]]:
            raise BadInput(f"axes.{name}: {twice[0]!r} stands there twice; each value needs a name of its own")
        claim([name, *(key for _, keys in axes[name] for key in keys)], f"axes.{name}")
    return axes


def _tied(axis: str, table: dict[str, Any]) -> Choice:
    values = dict(table)
    name = values.pop("name", None)
    if not isinstance(name, str) or not name or not values:
        raise BadInput(f"axes.{axis}: a table of tied keys needs a name and at least one config key")
    return name, dotted(values)
