"""A run that was continued: who trained which of its steps, and what was changed in between (no JAX)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxdp.config import Config, dotted
from jaxdp.errors import BadInput
from jaxdp.strict_json import from_json, plain

RECORD = "run.json"
KEPT = ("started", "config", "devices", "processes", "xla_flags", "versions", "machine", "commit")
SPLIT = ("data.heldout", "data.heldout_sequences")  # of another value, text that was held out would be trained on


def earlier(folder: Path) -> dict[str, Any] | None:
    """The record of the run in a folder; None where there is none, or none that can be read."""
    try:
        found = from_json((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("config"), dict) else None


def refuse_other_split(before: Mapping[str, Any], config: Config, folder: Path) -> None:
    """Raises `BadInput` if another part of the text was held out so far."""
    had, now = dotted(before["config"]), dotted(plain(config.model_dump()))
    for key in () if config.task else SPLIT:
        if key in had and had[key] != now[key]:
            raise BadInput(
                f"{folder}: {key} was {had[key]} so far and is {now[key]} here: text that was held out would be "
                f"trained on, or the reverse; go on with {key}={had[key]}, or give another --run-dir"
            )


def changes(before: Mapping[str, Any], config: Config) -> list[str]:
    """`key old -> new` of every key that is not what it was."""
    had, now = dotted(before["config"]), dotted(plain(config.model_dump()))
    return [f"{key} {had[key]} -> {now[key]}" for key in now if key in had and had[key] != now[key]]


def continued(before: Mapping[str, Any] | None, document: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """The segments of a run that goes on from `step` as `document` says; each lasts until the next one's `from_step`.

    Segments whose steps are all taken again are gone.
    """
    known = [] if before is None else before.get("segments") or [_segment(before, 0)]
    return [*(segment for segment in known if segment["from_step"] < step), _segment(document, step)]


def _segment(document: Mapping[str, Any], step: int) -> dict[str, Any]:
    return {"from_step": step, **{key: document[key] for key in KEPT if key in document}}
