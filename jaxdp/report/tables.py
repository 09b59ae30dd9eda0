"""Results as tables: coloured on a terminal, plain text elsewhere."""

from collections.abc import Callable, Sequence

from jaxdp.records import BenchResult
from jaxdp.report.screen import print_table, screen
from jaxdp.units import bytes_text, percent_text, seconds_text

Row = tuple[str, Callable[[BenchResult], str]]

ROWS: tuple[Row, ...] = (
    ("{unit}/s", lambda r: f"{r.tokens_per_second:,.0f}"),
    ("{unit}/s per device", lambda r: f"{r.tokens_per_second_per_device:,.0f}"),
    ("step time (median)", lambda r: seconds_text(r.step_time_s.median)),
    ("  p10 to p90", lambda r: f"{seconds_text(r.step_time_s.p10)} to {seconds_text(r.step_time_s.p90)}"),
    ("MFU (causal)", lambda r: f"{percent_text(r.mfu_percent)} ({percent_text(r.mfu_causal_percent)})"),
    ("HFU", lambda r: percent_text(r.hfu_percent)),
    ("data wait", lambda r: percent_text(100 * r.data_wait_share)),
    ("state per device", lambda r: bytes_text(r.memory.state_bytes_per_device)),
    ("  parameters", lambda r: bytes_text(r.memory.parameter_bytes_per_device)),
    ("  gradients", lambda r: bytes_text(r.memory.gradient_bytes_per_device)),
    ("  optimizer", lambda r: bytes_text(r.memory.optimizer_bytes_per_device)),
    ("compiled per device", lambda r: bytes_text(r.memory.compiled_bytes_per_device)),
    ("device peak", lambda r: bytes_text(r.memory.device_peak_bytes)),
    ("process RSS", lambda r: bytes_text(r.memory.host_rss_bytes)),
    ("sent per device and step", lambda r: bytes_text(r.collective_bytes_per_device)),
    ("  least possible", lambda r: bytes_text(r.collective_bytes_minimum)),
    ("updates/s", lambda r: _extra(r, "updates_per_second", "{:,.1f}")),
    ("staleness (mean)", lambda r: _extra(r, "staleness", "{:.2f}", "mean")),
    ("idle, each worker", lambda r: " ".join(f"{100 * share:.0f}%" for share in r.extra.get("idle_share", []))),
    ("server's state", lambda r: bytes_text(r.extra.get("server_bytes"))),
    ("server busy", lambda r: percent_text(_percent(r.extra.get("server_busy_share")))),
    ("time to loss", lambda r: seconds_text(r.extra.get("time_to_loss_s"))),
    ("loss, first to last", lambda r: f"{r.loss['first']:.4f} to {r.loss['last']:.4f}"),
    ("compile time", lambda r: seconds_text(r.compile_s)),
)


def print_bench(results: Sequence[BenchResult]) -> None:
    """One column a strategy, what each communicates, what differs in their settings, and what to keep in mind."""
    console = screen()
    first = results[0]
    cells = {label.format(unit=first.unit): [show(result) for result in results] for label, show in ROWS}
    known = {label: row for label, row in cells.items() if any(cell.strip("-% ()") for cell in row)}
    rows = list(zip((result.strategy for result in results), *known.values(), strict=True))
    title = f"{first.devices} x {first.device_kind} ({first.platform})"
    print_table(console, title, ["", *known], rows, down=True)
    for result in results:
        console.print(f"{result.strategy} communicates each step: {collectives_text(result)}", markup=False)
    for line in (*differences(results), *dict.fromkeys(note for result in results for note in result.notes)):
        console.print(f"note: {line}", markup=False)
    console.print(f"records: {', '.join(str(result.run_dir) for result in results)}", markup=False)


def _extra(result: BenchResult, key: str, form: str, inner: str | None = None) -> str:
    value = result.extra.get(key)
    value = value[inner] if inner and value else value
    return "-" if value is None else form.format(value)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def collectives_text(result: BenchResult) -> str:
    if "bytes_pulled" in result.extra:
        return f"{bytes_text(result.collective_bytes_minimum)} a worker, its pull and push"
    if not result.collectives:
        return "nothing"
    return ", ".join(f"{row['count']} {row['kind']} ({bytes_text(row['bytes'])})" for row in result.collectives)


def differences(results: Sequence[BenchResult]) -> list[str]:
    """The settings in which compared strategies differ, which makes the comparison unfair."""
    found = []
    for key in results[0].settings:
        values = {result.strategy: result.settings.get(key) for result in results}
        if len({str(value) for value in values.values()}) > 1:
            told = ", ".join(f"{name} {value}" for name, value in values.items())
            found.append(f"the strategies differ in {key}: {told}")
    return found
