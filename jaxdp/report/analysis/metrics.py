"""What a report says of a run: each metric's place in the record, its unit, and how it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxdp.records import How
from jaxdp.report.section import number_text
from jaxdp.units import bytes_text, percent_text, seconds_text

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """`key` is its dotted place in the bench's document. `exact` ones are counted, not timed: any difference is real.

    `scale` turns the recorded value into the chart's unit.
    """

    key: str
    name: str
    unit: str
    text: Callable[[float], str]
    better: Better = "neither"
    exact: bool = False
    scale: float = 1.0
    predicted: Callable[[Mapping[str, Any]], float | None] | None = None  # from the cost model's prediction

    @property
    def label(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def of(self, result: Mapping[str, Any] | None) -> float | None:
        """Its value, None where it is unknown."""
        return number_at(result, self.key)

    def window(self, result: Mapping[str, Any] | None) -> tuple[float, float] | None:
        """The p10 and p90 of one run's windows, for what is derived from the time of a step; None of one window."""
        low, high, median = (number_at(result, f"step_time_s.{name}") for name in ("p10", "p90", "median"))
        if low is None or high is None or median is None or (number_at(result, "step_time_s.n") or 0) < 2:
            return None
        if self.key == "step_time_s.median":
            return low, high
        value = self.of(result)
        if not self.key.startswith("tokens_per_second") or value is None:
            return None
        return value * median / high, value * median / low

    def how(self, result: Mapping[str, Any] | None) -> How:
        found = ((result or {}).get("how") or {}).get(self.key.removesuffix(".median"))
        return found or "measured"


def number_at(document: Mapping[str, Any] | None, key: str) -> float | None:
    found: Any = document
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return percent_text(100 * value)


def _at(key: str) -> Callable[[Mapping[str, Any]], float | None]:
    return lambda document: number_at(document, key)


def _exposed_share(predicted: Mapping[str, Any]) -> float | None:
    """What communication shows of the predicted step; the rest of it hides behind computing."""
    exposed, total = (number_at(predicted, f"step_time_s.{part}") for part in ("exposed_communication", "total"))
    return None if exposed is None or not total else exposed / total


MIB = 2.0**-20

THROUGHPUT = Metric("tokens_per_second", "tokens/s", "tokens/s", _count, "higher", predicted=_at("tokens_per_second"))
PER_DEVICE = Metric("tokens_per_second_per_device", "tokens/s per device", "tokens/s per device", _count, "higher")
STEP_TIME = Metric(
    "step_time_s.median", "step time", "ms", seconds_text, "lower", scale=1e3, predicted=_at("step_time_s.total")
)
MFU = Metric("mfu_percent", "MFU", "%", percent_text, "higher")
COMPILE = Metric("compile_s", "compile time", "s", seconds_text, "lower")
DATA_WAIT = Metric("data_wait_share", "data wait", "% of the time", _share, "lower", scale=100)
STATE = Metric("memory.state_bytes_per_device", "state", "MiB per device", bytes_text, "lower", True, MIB)
PARAMETERS = Metric("memory.parameter_bytes_per_device", "parameters", "MiB per device", bytes_text, "lower", True, MIB)
OPTIMIZER = Metric("memory.optimizer_bytes_per_device", "optimizer", "MiB per device", bytes_text, "lower", True, MIB)
COMPILED = Metric(
    "memory.compiled_bytes_per_device", "compiled step", "MiB per device", bytes_text, "lower", True, MIB,
    predicted=_at("bytes_per_device"),
)  # fmt: skip
PEAK = Metric("memory.device_peak_bytes", "device peak", "MiB per device", bytes_text, "lower", False, MIB)
SENT = Metric(
    "collective_bytes_per_device", "sent", "MiB per device and step", bytes_text, "lower", True, MIB,
    predicted=_at("bytes_sent_per_device"),
)  # fmt: skip
MINIMUMS = Metric(
    "collective_bytes_minimum", "least to send", "MiB per device and step", bytes_text, "lower", True, MIB
)
COMMUNICATION = Metric(
    "communication_share", "communication share", "% of the step", _share, "lower", scale=100, predicted=_exposed_share
)
STALENESS = Metric("staleness.mean", "staleness, mean", "updates", number_text, "lower")
STALENESS_P99 = Metric("staleness.p99", "staleness, p99", "updates", number_text, "lower")
SERVER_BUSY = Metric("server_busy_share", "server busy", "% of the time", _share, scale=100)
TIME_TO_LOSS = Metric("time_to_loss_s", "time to loss", "s", seconds_text, "lower")
LAST_LOSS = Metric("loss.last", "last loss", "nats a token", lambda value: f"{value:.4f}", "lower")
EVAL_LOSS = Metric("eval_loss", "held-out loss", "nats a token", lambda value: f"{value:.4f}", "lower")

MEMORY = (STATE, PARAMETERS, OPTIMIZER, COMPILED, PEAK)
METRICS = (
    THROUGHPUT, PER_DEVICE, STEP_TIME, MFU, DATA_WAIT, COMPILE, *MEMORY, SENT, MINIMUMS, COMMUNICATION,
    STALENESS, STALENESS_P99, SERVER_BUSY, TIME_TO_LOSS, LAST_LOSS, EVAL_LOSS,
)  # fmt: skip
