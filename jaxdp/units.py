"""Numbers as people read them."""

SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
LONGEST_SECONDS = 600.0  # from which on minutes and hours say more


def bytes_text(count: float | None) -> str:
    """Bytes in the largest of B, KiB, MiB and GiB (2^10, 2^20, 2^30) of which there is a tenth; "-" for unknown."""
    if count is None:
        return "-"
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    if count >= 0.1 * 2**20:
        return f"{count / 2**20:.2f} MiB"
    return f"{count / 2**10:.2f} KiB" if count >= 0.1 * 2**10 else f"{count:.0f} B"


def seconds_text(seconds: float | None) -> str:
    """A duration in the unit that leaves digits to see: `2.5 h`, `1.25 s`, `3.4 ms`, `12.0 µs`; "-" for unknown."""
    if seconds is None:
        return "-"
    size = abs(seconds)
    if size < 5e-11:
        return "0 s"
    for scale, unit in SECONDS:
        if unit in ("h", "min") and size < LONGEST_SECONDS:
            continue
        digits = 2 if unit == "s" else 1
        if float(f"{size / scale:.{digits}f}") >= 1:
            return f"{seconds / scale:.{digits}f} {unit}"
    return f"{seconds * 1e9:.1f} ns"


def percent_text(percent: float | None) -> str:
    """With one digit after the point, and no zero below zero; "-" for unknown."""
    return "-" if percent is None else f"{round(percent, 1) + 0.0:.1f} %"
