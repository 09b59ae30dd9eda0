"""What is simulated: workers, their compute times and delays, the network, and the strategies to compare."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import jaxdp
from jaxdp.errors import BadInput
from jaxdp.registry import load_plugins
from jaxdp.stragglers.delays import Delays, parse
from sims import checks
from sims.strategy import Strategy, give_options, parse_strategy

if TYPE_CHECKING:
    from sims.sources import Predicted

SHIPPED = Path(jaxdp.__file__).parent / "configs" / "sims"


def _key(default: Any, description: str, least: int | None = None) -> Any:
    """A field that is a key of a simulation's file and, on the command line, a flag; whole numbers have a least."""
    ranged = "" if least is None else f">={least}"
    return field(default=default, metadata={"description": description, "least": least, "range": ranged})


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A simulation. Times are 0 and bandwidths infinite unless given; gigabits and bytes are decimal.

    A step is one global batch: n workers' gradients, whatever the strategy. Compute times and
    the network can come from the cost model (`hardware`: a preset or file, for the config `train`), which is then kept
    as `predicted`, or from the folder of a measured `run`; what is stated beside wins. `learning_rates` (a grid, by
    default the config's rate) and `until_loss` belong to real gradients. `plugins` are modules with policies or delay
    models of one's own.
    """

    workers: int = _key(8, "Workers.", 1)
    steps: int = _key(1000, "Global batches; each is a gradient of every worker.", 1)
    seed: int = _key(0, "Seed of the delays, and with --gradients of parameters and data.", 0)
    seeds: int = _key(1, "Seeds to average over.", 1)
    compute_s: float | tuple[float, ...] = _key(0.0, "Seconds of a worker's step, or one value for each worker.")
    stragglers: str = _key("", 'How workers are delayed: "lognormal(sigma=0.2),link(factor=4,worker=0)".')
    nic_gbps: float = _key(math.inf, "Bandwidth of a worker's link, in gigabits/s (default: no limit).")
    server_nic_gbps: float = _key(math.inf, "Bandwidth of a server shard's link, in gigabits/s (default: no limit).")
    latency_s: float = _key(0.0, "Seconds that a message travels, one way.")
    apply_s: float = _key(0.0, "Seconds to apply a push.")
    apply_distribution: Literal["constant", "exponential"] = "constant"
    message_bytes: int = _key(0, "Bytes of the parameters, and of the gradients.", 0)
    queue: Literal["fifo", "shared"] = _key("fifo", "How messages share the server's link.")
    tokens_per_step: int = _key(1024, "Tokens of a global batch.", 1)
    hardware: str | None = _key(None, "Compute and network times by the cost model, such as h100x8.")
    hosts: int | None = _key(None, "Hosts of the hardware.", 1)
    run: str | None = _key(None, "Compute times from a measured run's steps.")
    train: str = _key("nano", "Config that --gradients trains, or whose cost --hardware predicts.")
    learning_rates: tuple[float, ...] = _key((), "With --gradients: a grid for all; each strategy keeps its best.")
    until_loss: float | None = _key(None, "With --gradients: report the time to this mean loss.")
    plugins: tuple[str, ...] = ()
    strategies: tuple[Strategy, ...] = (Strategy(name="ddp"), Strategy(name="ps"))
    predicted: "Predicted | None" = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for key in fields(self):
            if (least := key.metadata.get("least")) is not None and getattr(self, key.name) is not None:
                checks.whole(key.name, getattr(self, key.name), least)
        for key in ("latency_s", "apply_s"):
            checks.real(key, getattr(self, key))
        for key in ("nic_gbps", "server_nic_gbps"):
            checks.real(key, getattr(self, key), most=math.inf, above=True)
        for seconds in self.compute_s if isinstance(self.compute_s, tuple) else (self.compute_s,):
            checks.real("compute_s", seconds)
        for rate in self.learning_rates:
            checks.real("learning_rates", rate, most=1e6, above=True)
        if self.until_loss is not None:
            checks.real("until_loss", self.until_loss)
        checks.one_of("queue", self.queue, ("fifo", "shared"))
        checks.one_of("apply_distribution", self.apply_distribution, ("constant", "exponential"))
        for key in ("stragglers", "train", "hardware", "run"):
            if getattr(self, key) is not None:
                checks.text(key, getattr(self, key))
        self._check_workers()
        if not (self.stragglers or np.any(self.compute_s)):
            raise BadInput("compute_s: nothing takes any time; give compute_s, or stragglers such as pace(seconds=1)")

    def _check_workers(self) -> None:
        """What has to do with the number of workers and strategies."""
        n = self.workers
        if isinstance(self.compute_s, tuple) and len(self.compute_s) != n:
            raise BadInput(f"compute_s: {len(self.compute_s)} times for {n} workers")
        labels = [strategy.label for strategy in self.strategies]
        if not labels or len(set(labels)) < len(labels):
            raise BadInput(f"strategies: expected different ones, at least one, not {', '.join(labels) or 'none'}")
        for strategy in self.strategies:
            strategy.check(n)
            if strategy.needs_hardware and not self.predicted:
                raise BadInput(f"{strategy.name}: what it sends depends on the hosts; give hardware")
        self.delays_of(self.seed).check(n)

    def delays_of(self, seed: int) -> Delays:
        return parse(self.stragglers, seed, where="stragglers")

    def base_s(self, strategy: Strategy) -> np.ndarray:
        """Each worker's compute time before delays; the optimizer's part of it is the strategy's own."""
        if self.predicted:
            return self.predicted.compute_s(strategy.like)
        return np.broadcast_to(np.asarray(self.compute_s, np.float64), self.workers)


def load(
    sources: Sequence[str],
    flags: Mapping[str, Any],
    options: Mapping[str, Any],
    names: str | None = None,
    overrides: Iterable[str] = (),
) -> Scenario:
    """The scenario of files or shipped names, later ones winning; then `overrides` (`key=value`), then `flags`.

    `names`, joined by commas, replace its strategies; `options` (policy, bound, ...) go to the strategies that read
    them, and one that none reads is refused. Raises `BadInput`.
    """
    values = _from_files(sources, overrides) if sources or overrides else {}
    values |= flags
    _load_plugins(values)
    if names is not None:
        values["strategies"] = _split(names)
    if options:
        strategies = values.get("strategies", [{"name": "ddp"}, {"name": "ps"}])
        values["strategies"] = give_options(strategies, options)
    return build(values)


def _split(names: str) -> list[dict[str, Any]]:
    """Tables of the strategies named; the server's has one name whatever its policy."""
    strategies = [{"name": name.strip()} for name in names.split(",") if name.strip()]
    if not strategies or len({strategy["name"] for strategy in strategies}) < len(strategies):
        raise BadInput(f"--strategy {names}: expected different strategies with commas between them")
    return strategies


def _from_files(sources: Iterable[str], overrides: Iterable[str]) -> dict[str, Any]:
    from jaxdp.config import parse_override, read_toml  # here, since it takes a tenth of a second to load

    values: dict[str, Any] = {}
    for source in sources:
        values |= read_toml(find(source))
    for override in overrides:
        values |= parse_override(override)
    return values


def _derived(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with what the cost model or a measured run has to say."""
    hardware, run = values.get("hardware"), values.get("run")
    if hardware and run:
        raise BadInput("run: compute times come from hardware too; give only one of them")
    if values.get("hosts") and not hardware:
        raise BadInput("hosts: is a count of the hardware's hosts; give hardware too")
    if not hardware and not run:
        return dict(values)
    from sims import sources  # here, since a start that needs no cost model should not wait for it

    if run:
        return {**sources.from_run(str(run)), **values}
    predicted = sources.from_hardware(dict(values))
    return {**values, **predicted.values, "predicted": predicted}


def build(values: Mapping[str, Any]) -> Scenario:
    """Validates plain values; raises `BadInput`."""
    values = dict(values)
    _load_plugins(values)
    if "delays" in values:  # an older name
        if "stragglers" in values:
            raise BadInput("delays: means the same as stragglers; leave one of them out")
        values["stragglers"] = values.pop("delays")
    checks.refuse_unknown(values, [key.name for key in fields(Scenario) if key.name != "predicted"])
    for key in ("compute_s", "learning_rates", "plugins"):
        if isinstance(values.get(key), list):
            values[key] = tuple(values[key])
    if isinstance(values.get("compute_s"), tuple) and len(values["compute_s"]) == 1:
        values["compute_s"] = values["compute_s"][0]
    strategies = values.get("strategies", ())
    if not isinstance(strategies, list | tuple):
        raise BadInput(f"strategies: expected tables [[strategies]], not {strategies!r}")
    if "strategies" in values:
        values["strategies"] = tuple(
            item
            if isinstance(item, Strategy)
            else parse_strategy({"name": item} if isinstance(item, str) else item, place)
            for place, item in enumerate(strategies)
        )
    return Scenario(**_derived(values))


def _load_plugins(values: Mapping[str, Any]) -> None:
    load_plugins(checks.texts("plugins", values.get("plugins", ())))


def find(source: str) -> Path:
    """The file of a path or of a shipped simulation's name."""
    path, shipped = Path(source), SHIPPED / f"{source}.toml"
    if path.suffix == ".toml" or path.is_file():
        return path
    if not shipped.is_file():
        checks.refuse_name(source, shipped_names())
    return shipped


def headline(path: Path) -> str:
    """The first comment of a simulation's file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def plain_values(scenario: Scenario) -> dict[str, Any]:
    """The scenario as a document, without what isn't given."""
    values = {entry.name: getattr(scenario, entry.name) for entry in fields(scenario) if entry.name != "predicted"}
    values["strategies"] = [
        {key: value for key, value in vars(strategy).items() if value is not None} for strategy in scenario.strategies
    ]
    return {key: value for key, value in values.items() if value is not None}


def stated_values(scenario: Scenario) -> dict[str, Any]:
    """The values from which `build` makes the scenario; what follows from its hardware is left to follow again."""
    values = plain_values(scenario)
    if predicted := scenario.predicted:
        stated = {key: predicted.stated[key] for key in predicted.values if key in predicted.stated}
        values = {key: value for key, value in values.items() if key not in predicted.values} | stated
    return values


def to_toml(scenario: Scenario) -> str:
    """The scenario as TOML that `load` reads back."""
    values = stated_values(scenario)
    strategies = values.pop("strategies")
    lines = [f"{key} = {_toml(value)}" for key, value in values.items()]
    for strategy in strategies:
        lines += ["", "[[strategies]]", *(f"{key} = {_toml(value)}" for key, value in strategy.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)
