"""Numbers as people read them."""


def bytes_text(count: float | None) -> str:
    """Bytes in MiB or GiB (2^20, 2^30); "-" for unknown."""
    if count is None:
        return "-"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.2f} MiB"


def seconds_text(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def percent_text(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:.1f} %"
