"""The cost model against measured A100 iterations, held out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "iteration_model.py"
DATA = BENCHMARK.parent / "data" / "a100-single-node-data-parallel.csv"


def run(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(BENCHMARK), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def part(path: Path, keep) -> Path:
    header, *rows = DATA.read_text().splitlines()
    path.write_text("\n".join([header, *(row for row in rows if keep(row.split(",")))]) + "\n")
    return path


def test_held_out_error_is_under_seven_percent():
    found = json.loads(run("--json").stdout)
    assert found["rows"] == 122
    assert found["mape_percent"] <= 7


@pytest.mark.parametrize(
    ("split", "known"),
    [
        ("another width", lambda row: row[3] == "1024"),
        ("another number of GPUs", lambda row: row[0] == "2"),
        ("other depths", lambda row: int(row[5]) <= 16),
        ("other microbatches", lambda row: int(row[2]) >= 2),
    ],
)
def test_it_extrapolates_from_part_of_the_rows(split, known, tmp_path):
    calibration = part(tmp_path / "known.csv", known)
    rest = part(tmp_path / "rest.csv", lambda row: not known(row))
    found = json.loads(run("--data", rest, "--calibrate-on", calibration, "--json").stdout)
    assert found["mape_percent"] <= 7
    assert found["rows"] + len(calibration.read_text().splitlines()) - 1 == 122


def test_rows_of_other_kinds_are_counted_as_skipped(tmp_path):
    path = part(tmp_path / "more.csv", lambda row: True)
    with path.open("a") as file:
        file.write("8,64,1,2048,16,24,1024,2,4,1,900.0\n8,64,1,2048,16,24,1024,1,4,2,900.0\n")
    found = json.loads(run("--data", path, "--json").stdout)
    assert (found["rows"], found["skipped"]) == (122, 2)


@pytest.mark.parametrize("row", ["", "8,64,one", "8,64,1,2048,16,24,1024,1,8,1,-3", "8,63,2,2048,16,24,1024,1,8,1,90"])
def test_a_bad_file_is_one_line(row, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(f"header\n{row}\n")
    found = run("--data", path)
    assert found.returncode == 2
    assert len(found.stderr.strip().splitlines()) == 1
