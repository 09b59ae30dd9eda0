"""The cells of a sweep: each a config on some devices, resolved and checked before the first one runs (no JAX)."""

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from jaxdp.config import Config, dotted, load, parse_override, shipped_names
from jaxdp.data.corpora import open_corpus
from jaxdp.errors import BadInput, Refused
from jaxdp.predict.evaluate import evaluate, possible
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.preflight import check_allowed, preflight, require
from jaxdp.predict.sharding import workers
from jaxdp.stragglers import delays
from jaxdp.strict_json import to_json
from jaxdp.sweep.spec import Choice, SweepSpec, axes_of
from jaxdp.workload import user_task

MAX_RUNS = 10_000


@dataclass(frozen=True)
class SweepPoint:
    """One combination. `values` is what it is called by; `refusal` why it will not be run, in one line.

    `launcher` and `arguments` are the command's words on either side of the program, `jaxdp`.
    """

    values: dict[str, Any]
    config: Config
    devices: int
    hash: str
    launcher: tuple[str, ...]
    arguments: tuple[str, ...]
    findings: tuple[dict[str, Any], ...]
    refusal: str | None
    predicted: dict[str, Any] | None

    def command(self, program: Sequence[str]) -> list[str]:
        """All words but the run's folder; `jaxdp launch` takes its own subcommand, other launchers a program."""
        if self.launcher[:1] == ("jaxdp",):
            return [*program, *self.launcher[1:], *self.arguments]
        return [*self.launcher, *program, *self.arguments]

    def __str__(self) -> str:
        return shlex.join(f"{key}={value}" for key, value in self.values.items())


class Run(NamedTuple):
    """One repeat of a cell: a row of the table."""

    cell: SweepPoint
    repeat: int

    @property
    def key(self) -> str:
        return f"{self.cell.hash}.{self.repeat}"

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.cell.config.strategy.name}-{self.cell.devices}-{self.key}"


def in_order(cells: Sequence[SweepPoint], repeats: int) -> list[Run]:
    """Every cell once, then all again backwards, and so on: drift of the machine hits all alike."""
    return [Run(cell, repeat) for repeat in range(repeats) for cell in (cells if repeat % 2 == 0 else reversed(cells))]


def make_cells(spec: SweepSpec) -> list[SweepPoint]:
    """All cells, strategies innermost, with everything checked that can be; raises `BadInput` for a wrong one."""
    allowed = check_allowed(spec.allow)
    hardware = load_hardware(spec.hardware) if spec.hardware else None
    axes = axes_of(spec)
    count = len(spec.strategies) * len(spec.devices) * spec.repeats
    for choices in axes.values():
        count *= len(choices)
    if count > MAX_RUNS:
        raise BadInput(f"axes: make {count} runs; at most {MAX_RUNS}")
    # A cell's command starts from shipped configs, which don't change while a sweep runs, as files may.
    base = load(_shipped(spec))
    cells = [_cell(spec, base, values, config, hardware, allowed) for values, config in _combinations(spec, axes)]
    seen: dict[str, SweepPoint] = {}
    for cell in cells:
        if twin := seen.get(cell.hash):
            raise BadInput(f"cells {twin} and {cell}: are the same; each is measured `repeats` times anyway")
        seen[cell.hash] = cell
    _open_data(cells)
    return cells


def _combinations(spec: SweepSpec, axes: dict[str, list[Choice]]) -> Iterator[tuple[dict[str, Any], Config]]:
    fixed = dotted(spec.set)
    for chosen, devices, strategy in product(product(*axes.values()), spec.devices, spec.strategies):
        values = {name: shown for name, (shown, _) in zip(axes, chosen, strict=True)}
        values |= {"devices": devices, "strategy": strategy}
        keys = {key: value for _, keys in chosen for key, value in keys.items()}
        try:
            config = load(spec.config, (), {**fixed, **keys, "strategy.name": strategy})
            yield values, _scaled(config, devices, spec)
        except BadInput as error:
            told = " ".join(f"{key}={value}" for key, value in values.items())
            raise BadInput(f"sweep {spec.name}, cell {told}: {error}") from None


def _scaled(config: Config, devices: int, spec: SweepSpec) -> Config:
    """Weak scaling: the global batch is the config's at the fewest devices, and grows with them."""
    if spec.scaling == "strong":
        return config
    fewest = min(spec.devices)
    batch, rest = divmod(config.train.global_batch * devices, fewest)
    if rest:
        raise BadInput(
            f"train.global_batch: {config.train.global_batch} on {fewest} devices cannot grow to {devices} evenly; "
            f"set it to a multiple of {fewest}"
        )
    return config.model_copy(update={"train": config.train.model_copy(update={"global_batch": batch})})


def _cell(
    spec: SweepSpec,
    base: Config,
    values: dict[str, Any],
    config: Config,
    hardware: Hardware | None,
    allowed: frozenset[str],
) -> SweepPoint:
    devices = values["devices"]
    here = _resized(hardware, devices) if hardware else None
    hosts = here.hosts if here else spec.launch.hosts(devices)
    platform = hardware.groups[0].platform if hardware else None
    report = preflight(config, devices, hosts, hardware.usable_bytes if hardware else None, platform=platform)
    uneven = delays.parse(config.stragglers, config.train.seed, "stragglers")
    refusal = None
    try:
        require(report, allowed)
        uneven.check(workers(config, devices) if config.strategy.name == "ps" else devices)
    except (Refused, BadInput) as error:
        refusal = str(error)
    return SweepPoint(
        values=values,
        config=config,
        devices=devices,
        hash=_hash(spec, config, devices),
        launcher=tuple(spec.launch.words(devices)),
        arguments=tuple(_arguments(spec, base, config, devices)),
        findings=tuple(asdict(finding) for finding in report.findings),
        refusal=refusal,
        predicted=_predicted(config, here, uneven) if here and refusal is None else None,
    )


def _predicted(config: Config, hardware: Hardware, uneven: delays.Delays) -> dict[str, Any] | None:
    """The cost model's row, unless it could only be made to fit with more microbatches than the cell has."""
    name = config.strategy.name
    if config.task or name not in possible(config, hardware):
        return None
    row = evaluate(config, hardware, name, uneven or None)
    return row.to_json() if row.accumulation == config.train.accumulation else None


def _resized(hardware: Hardware, devices: int) -> Hardware | None:
    """The sweep's machines with so many devices, hosts filled one after the other; None where they don't come out."""
    if hardware.devices == devices:
        return hardware
    group = hardware.groups[0]
    if len(hardware.groups) > 1:
        return None
    if devices <= group.devices:
        return Hardware((replace(group, count=1, devices=devices, speeds=group.speeds[:devices]),))
    return Hardware((replace(group, count=devices // group.devices),)) if devices % group.devices == 0 else None


def _hash(spec: SweepSpec, config: Config, devices: int) -> str:
    """Of everything that a cell's figures depend on."""
    what = {
        "config": config.model_dump(exclude=None if config.task else {"task"}),
        "devices": devices,
        "steps": spec.steps,
        "warmup": spec.warmup,
        "launch": spec.launch.model_dump() if spec.launch.command else None,
    }
    return hashlib.sha256(to_json(what).encode()).hexdigest()[:12]


def _shipped(spec: SweepSpec) -> list[str]:
    return [source for source in spec.config if source in shipped_names()]


def _arguments(spec: SweepSpec, base: Config, config: Config, devices: int) -> list[str]:
    """`bench` and its flags, of which --set brings the shipped configs to the cell's."""
    words = ["bench", *(word for source in _shipped(spec) for word in ("--config", source))]
    words += ["--strategy", config.strategy.name, "--devices", str(devices)]
    words += ["--steps", str(spec.steps), "--warmup", str(spec.warmup)]
    before = dotted(base.model_dump())
    for key, value in dotted(config.model_dump()).items():
        if value != before.get(key) and key != "strategy.name":
            words += ["--set", _override(key, value)]
    return [*words, *(word for name in spec.allow for word in ("--allow", name)), "--json", "--quiet"]


def _override(key: str, value: Any) -> str:
    """`key=value` as --set reads it; text is quoted only where it would be read as something else."""
    plain = f"{key}={value}"
    reads_back = isinstance(value, str) and dotted(parse_override(plain)) == {key: value}
    return plain if reads_back else f"{key}={to_json(value)}"


def _open_data(cells: Sequence[SweepPoint]) -> None:
    """Opens each kind of data once, so that missing files are found now."""
    seen = set()
    for cell in cells:
        config = cell.config
        kind = config.task or (config.data, config.model.vocab, config.model.context, config.train.seed)
        if kind not in seen:
            seen.add(kind)
            if user_task(config) is None:
                open_corpus(config)
