"""Reads what runs and sweeps left: a `Measurement` for each strategy of a run, and for each row of a sweep's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.records import SweepRow
from jaxdp.report.analysis.steps import Steps, from_steps
from jaxdp.strategies.rows import canonical
from jaxdp.strict_json import from_json, read_lines

TABLE = "table.jsonl"
DEPTH = 3  # folders below the given one in which runs are looked for
Settings = Mapping[str, Any]
Span = tuple[float, float]  # the first step, and the one after the last
WHOLE: Span = (0, inf)


@dataclass(frozen=True)
class Measurement:
    """One strategy, measured once. `axes` are the settings in which it differs from its neighbours.

    `result` has the keys of `jaxdp bench`'s document, as far as they are known; it is None unless `status` is "ok".
    `record` is `run.json`, `findings` are the pre-flight's, None where no pre-flight is known of.
    """

    source: str
    name: str
    strategy: str
    devices: int
    axes: Settings
    repeat: int
    status: str
    reason: str | None
    result: Settings | None
    predicted: Settings | None
    findings: Sequence[Settings] | None
    record: Settings = field(default_factory=dict)
    folder: Path | None = None
    span: Span = WHOLE

    @cached_property
    def steps(self) -> Steps | None:
        """Its loss against tokens and time; None without records."""
        return _steps(self.folder, self.tokens_per_step, self.span) if self.folder else None

    @property
    def tokens_per_step(self) -> int | None:
        return (self.result or {}).get("tokens_per_step") or _tokens_per_step(self.record)

    @property
    def config(self) -> Settings:
        return self.record.get("config") or {}


def load(folder: Path, source: str) -> list[Measurement]:
    """Everything in a run's folder, a sweep's, or a folder of such folders; raises `BadInput` where nothing is."""
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; give the folder of a bench, train or sweep")
    found = []
    for place in _places(folder):
        found += _load_sweep(place, source) if (place / TABLE).is_file() else _load_run(place, folder, source)
    if not found:
        raise BadInput(f"{folder}: holds neither a run (run.json) nor a sweep ({TABLE}); give the folder of one")
    return found


def _places(folder: Path, depth: int = DEPTH) -> list[Path]:
    """The folders of runs and sweeps, outermost first; what lies inside one belongs to it."""
    if (folder / TABLE).is_file() or (folder / "run.json").is_file():
        return [folder]
    if depth == 0:
        return []
    inner = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [place for entry in inner for place in _places(entry, depth - 1)]


def _load_run(folder: Path, root: Path, source: str) -> list[Measurement]:
    """A bench, or a training: one measurement for each part of it that was trained in another way."""
    record = read_record(folder / "run.json")
    summary = read_object(folder / "summary.json") if (folder / "summary.json").is_file() else {}
    if problem := _result_problem(summary):
        raise BadInput(f"{folder / 'summary.json'}: {problem}; was it written by another version?")
    name = str(Path(source) / folder.relative_to(root))
    segments: list[Settings] = []
    for segment in record.get("segments") or [{"from_step": 0}]:
        if not segments or _how(segment) != _how(segments[-1]):  # stopped and gone on with alike, it is one
            segments.append(segment)
    ends = [*(segment["from_step"] for segment in segments[1:]), inf]
    found = []
    for segment, end in zip(segments, ends, strict=True):
        span = (segment["from_step"], end)
        last = end == inf
        part = record | {key: value for key, value in segment.items() if key != "from_step"}
        where = "" if len(segments) == 1 else f", from step {span[0]}" if last else f", steps {span[0]} to {end}"
        found.append(_part(part, summary if last else {}, folder, name + where, source, span))
    return found


def _how(segment: Settings) -> tuple[Any, ...]:
    return segment.get("config"), [device.get("kind") for device in segment.get("devices") or ()]


def _part(record: Settings, summary: Settings, folder: Path, name: str, source: str, span: Span) -> Measurement:
    config = _mapping(record.get("config"))
    chosen = _mapping(config.get("strategy"))
    benched = "step_time_s" in summary
    steps = None if benched else _steps(folder, _tokens_per_step(record), span)
    result = summary if benched else from_steps(record, summary, steps)
    return Measurement(
        source=source,
        name=name,
        strategy=canonical(str(summary.get("strategy") or chosen.get("name") or "unknown"), chosen.get("unit")),
        devices=int(summary.get("devices") or len(record.get("devices") or ())),
        axes={},
        repeat=0,
        status="ok" if result else "unfinished",
        reason=None if result else "it left no summary.json: it was stopped, failed, or still runs",
        result=result,
        predicted=None,
        findings=_mapping(record.get("preflight")).get("findings"),
        record=record,
        folder=folder,
        span=span,
    )


def _load_sweep(folder: Path, source: str) -> list[Measurement]:
    rows: dict[str, SweepRow] = {}  # a key has one row; of several the last counts
    for number, line in enumerate(_lines(folder / TABLE), start=1):
        try:
            row = SweepRow.from_json(line)
            if problem := _row_problem(row):
                raise ValueError(problem)
        except ValueError as error:
            raise BadInput(f"{folder / TABLE}:{number}: {error}; was it written by another version?") from None
        rows[row.key] = row
    return [_load_row(row, folder, source) for row in rows.values()]


def _row_problem(row: SweepRow) -> str | None:
    if not isinstance(row.cell, Mapping) or not _all_mappings(row.findings):
        return "its cell or findings have another form"
    if not isinstance(row.run_dir, str | None) or not isinstance(row.predicted, Mapping | None):
        return "its run_dir or predicted has another form"
    if row.result is not None and not isinstance(row.result, Mapping):
        return "its result is no object"
    return _result_problem(row.cell) or _result_problem(row.result or {})


def _result_problem(values: Settings) -> str | None:
    """What is wrong with figures that the report divides by, or None."""
    devices, rate = values.get("devices"), values.get("tokens_per_second")
    if devices is not None and not (type(devices) is int and devices > 0):
        return f"devices {devices!r}: expected a positive number of devices"
    if rate is not None and not (type(rate) in (int, float) and isfinite(rate) and rate > 0):
        return f"tokens_per_second {rate!r}: expected a positive number"
    return None


def _load_row(row: SweepRow, folder: Path, source: str) -> Measurement:
    place = folder / row.run_dir if row.run_dir else None
    if place is not None and not (place.resolve().is_relative_to(folder.resolve()) and (place / "run.json").is_file()):
        place = None
    axes = {key: value for key, value in row.cell.items() if key not in ("strategy", "devices")}
    return Measurement(
        source=source,
        name=str(Path(source) / (row.run_dir or row.key)),
        strategy=canonical(str(row.cell.get("strategy", "unknown")), row.cell.get("strategy.unit")),
        devices=int(row.cell.get("devices", 0)),
        axes=axes,
        repeat=row.repeat,
        status=row.status,
        reason=row.reason,
        result=row.result,
        predicted=row.predicted,
        findings=row.findings,
        record=read_record(place / "run.json") if place else {},
        folder=place,
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; raises `BadInput` for anything else."""
    try:
        found = from_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise BadInput(f"{path}: is not strict JSON ({error})") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no JSON object")
    return found


def read_record(path: Path) -> dict[str, Any]:
    """A `run.json`; raises `BadInput` where a part that is read here has another form."""
    record = read_object(path)
    findings = _mapping(record.get("preflight")).get("findings") or []
    forms = [
        *((key, isinstance(record.get(key, {}), Mapping)) for key in ("config", "versions", "machine", "preflight")),
        ("devices", _all_mappings(record.get("devices", []))),
        ("preflight.findings", _all_mappings(findings)),
        ("segments", _all_segments(record.get("segments", []))),
    ]
    if wrong := [key for key, right in forms if not right]:
        raise BadInput(f"{path}: {wrong[0]} has another form than a run's of this version")
    return record


def _all_mappings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, Mapping) for value in values)


def _all_segments(values: Any) -> bool:
    return _all_mappings(values) and all(type(value.get("from_step")) is int for value in values)


def _steps(folder: Path, tokens_per_step: int | None, span: Span) -> Steps | None:
    path = folder / "steps.jsonl"
    if tokens_per_step is None or not path.is_file():
        return None
    try:
        rows = [row for row in _lines(path) if span == WHOLE or span[0] <= row["step"] < span[1]]
        return Steps.of(rows, tokens_per_step)
    except (KeyError, TypeError) as error:
        raise BadInput(f"{path}: a line lacks, or has a wrong, {error}; it is no log of jaxdp's") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return read_lines(path)
    except JaxdpError as error:
        raise BadInput(str(error)) from None


def _tokens_per_step(record: Settings) -> int | None:
    if isinstance(known := record.get("tokens_per_step"), int):
        return known
    config = _mapping(record.get("config"))
    batch, context = _mapping(config.get("train")).get("global_batch"), _mapping(config.get("model")).get("context")
    return batch * context if isinstance(batch, int) and isinstance(context, int) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
