"""What a run was made with: read, compared, and told apart by."""

from collections.abc import Mapping
from typing import Any


def settings_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `run.json` that a reader compares: config, versions, machine, devices, data."""
    devices = record.get("devices") or []
    kinds = sorted({f"{device.get('kind')} ({device.get('platform')})" for device in devices})
    return {
        **{key: record[key] for key in ("config", "versions", "machine", "commit", "processes") if key in record},
        **({"devices": {"count": len(devices), "kind": ", ".join(kinds)}} if devices else {}),
        **({"data": {"sha256": record["data"].get("sha256")}} if isinstance(record.get("data"), Mapping) else {}),
        **({"xla_flags": record["xla_flags"]} if "xla_flags" in record else {}),
    }
