"""Tables on a screen of any width: nothing overflows, and no number is cut."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from jaxdp.report.screen import print_table
from jaxdp.units import bytes_text, percent_text, seconds_text

NAMES = ("strategy", "tokens/s", "memory per device", "step", "note")
ROWS = [
    ("ddp", "1,055,837", "24.42 GiB", "124.1 ms", "all of it at the end"),
    ("fsdp", "1,687,687", "3.13 GiB", "77.7 ms", "gathers overlap the block before"),
    ("ps-async", "22,315", "14.65 GiB", "5.87 s", "a server"),
]


@settings(max_examples=60, deadline=None)
@given(width=st.integers(40, 200), down=st.booleans(), shed=st.lists(st.sampled_from(NAMES[1:4]), unique=True))
def test_a_table_fits_and_keeps_its_numbers_whole(width: int, down: bool, shed: list[str]) -> None:
    out = io.StringIO()
    print_table(
        Console(width=width, file=out), "title", NAMES, ROWS, left=("note",), fold=("note",), shed=shed, down=down
    )
    text = out.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    shown = {name: [row[index] in text for row in ROWS] for index, name in enumerate(NAMES[:4])}
    gone = [name for name in shown if not any(shown[name])]
    assert all(all(shown[name]) for name in shown if name not in gone), "a column is there whole, or not at all"
    assert set(gone) <= set(shed)
    assert ("left out at this width" in " ".join(text.split())) == bool(gone)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (seconds_text(0.0), "0 s"),
        (seconds_text(3.2e-9), "3.2 ns"),
        (seconds_text(12e-6), "12.0 µs"),
        (seconds_text(0.00341), "3.4 ms"),
        (seconds_text(0.99999), "1.00 s"),
        (seconds_text(599.0), "599.00 s"),
        (seconds_text(601.0), "10.0 min"),
        (seconds_text(9000.0), "2.5 h"),
        (seconds_text(None), "-"),
        (percent_text(-0.01), "0.0 %"),
        (percent_text(-1.0), "-1.0 %"),
        (bytes_text(1000), "0.98 KiB"),
        (bytes_text(2**20), "1.00 MiB"),
        (bytes_text(0), "0 B"),
        (bytes_text(7), "7 B"),
    ],
)
def test_small_and_large_values_keep_digits(text: str, expected: str) -> None:
    assert text == expected
