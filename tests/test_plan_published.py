"""The calibrated cost model: published runs, parts that add up, and the order that physics asks for."""

import csv
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.predict.calibrated.memory import fits, held, with_remat
from jaxdp.predict.calibrated.rates import FILE, Coefficients, read, shipped
from jaxdp.predict.calibrated.runs import Run, Shape
from jaxdp.predict.calibrated.step import step_seconds
from jaxdp.predict.presets import PRESETS

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import published_runs  # noqa: E402
from published_report import report, text  # noqa: E402
from published_rows import read as read_rows  # noqa: E402

ROWS, UNREADABLE = read_rows(published_runs.SHIPPED)
LLAMA = Shape(
    layers=32, width=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256, gated=True, tied=False
)
RUN = Run(
    shape=LLAMA,
    context=4096,
    microbatch=1,
    accumulation=2,
    devices=32,
    device="h100",
    strategy="fsdp",
    stack="torch-fsdp",
    remat="none",
)


def seconds(run: Run = RUN, known: Coefficients | None = None) -> float:
    return step_seconds(run, known or shipped()).total


def scaled(name: str, factor: float) -> Coefficients:
    known = shipped()
    return Coefficients({**known.values, name: known.values[name] * factor}, known.measured)


@pytest.fixture(scope="module")
def made():
    return published_runs.predictions(ROWS, shipped(), ROWS)


def test_every_shipped_row_is_read():
    assert (len(ROWS), sum(UNREADABLE.values())) == (206, 0)


def test_the_committed_table_is_what_the_script_makes(made):
    committed = published_runs.TABLE.read_text(encoding="utf-8")
    assert text(report(made, Counter())) in committed, (
        "the model or its rows have changed: run python benchmarks/published_runs.py --fit and look at the difference"
    )


def test_a_fifth_more_in_any_row_changes_the_report(made):
    before = report(made, Counter())["groups"]
    for index, one in enumerate(made):
        if one.error is not None:
            row = replace(one.row, tokens_per_second=1.2 * one.row.tokens_per_second)
            other = published_runs.predict(row, shipped(), one.calibrated_on)
            assert report([*made[:index], other, *made[index + 1 :]], Counter())["groups"] != before, row


def test_rows_that_say_too_little_are_counted_with_the_reason(tmp_path):
    lines = list(csv.DictReader(published_runs.SHIPPED.read_text(encoding="utf-8").splitlines()))
    first = lines[0]
    lines = [
        first,
        {**first, "hardware": "abacus"},
        {**first, "strategy": "carrier pigeons"},
        {**first, "context": ""},
        {**first, "tokens_per_s_per_device": "", "tflops_per_device": "", "mfu_percent": ""},
        {**first, "layers": "", "parameters_b": "", "model": "mystery"},
        {**first, "strategy": "FSDP with TP=4"},
    ]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(first))
        writer.writeheader()
        writer.writerows(lines)
    command = [sys.executable, str(BENCHMARKS / "published_runs.py"), "--data", str(path), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["overall"]["rows"] == 1
    assert sorted(found["unreadable"]) == [
        "neither a shape nor a number of parameters",
        "neither a throughput nor an outcome",
        "no context",
        "not data parallelism alone",
        "unknown device: abacus",
        "unknown strategy: carrier pigeons",
    ]


def test_every_coefficient_has_a_source():
    entries, _ = read(FILE)
    assert len(entries) > 80
    assert not [name for name, (_, source) in entries.items() if not source]


@pytest.mark.parametrize("device", PRESETS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
def test_every_device_and_strategy_is_predicted_in_parts_that_add_up(device, strategy):
    for stack in shipped().stacks():
        parts = step_seconds(replace(RUN, device=device, strategy=strategy, stack=stack), shipped())
        assert min(*parts.split.values(), parts.gather, parts.scatter, parts.reduce, parts.waiting) >= 0
        assert parts.total == pytest.approx(parts.compute + parts.communication + parts.waiting)


FASTER = [
    "devices.h100.products",
    "devices.h100.flash2",
    "devices.h100.memory",
    "networks.default.link",
    "networks.default.nic",
    "stacks.torch-fsdp.overlap",
]
SLOWER = ["stacks.torch-fsdp.passes", "stacks.torch-fsdp.jitter", "networks.default.step_s"]
RUNS = st.builds(
    lambda strategy, devices, microbatch, remat: replace(
        RUN, strategy=strategy, devices=devices, microbatch=microbatch, remat=remat
    ),
    st.sampled_from(["ddp", "zero1", "zero2", "fsdp"]),
    st.sampled_from([8, 16, 64, 512]),
    st.integers(1, 8),
    st.sampled_from(["none", "op", "layers", "block"]),
)


@settings(deadline=None, max_examples=40)
@given(RUNS, st.sampled_from(FASTER), st.floats(1.05, 1.3))
def test_faster_parts_make_no_step_slower(run, name, factor):
    assert seconds(run, scaled(name, factor)) <= seconds(run) * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(RUNS, st.sampled_from(SLOWER), st.floats(1.05, 2))
def test_more_to_do_makes_no_step_faster(run, name, factor):
    assert seconds(run, scaled(name, factor)) >= seconds(run) * (1 - 1e-9)


@settings(deadline=None, max_examples=40)
@given(RUNS, st.integers(1, 4))
def test_more_tokens_take_longer_and_more_memory(run, more):
    larger, stack = replace(run, microbatch=run.microbatch + more), shipped().stack(run.stack)
    assert seconds(larger) > seconds(run)
    assert held(larger, stack).total > held(run, stack).total


def test_unstated_recomputation_is_the_least_that_fits():
    stack = shipped().stack("torch-fsdp")
    roomy, tight = (replace(RUN, remat="unstated", microbatch=size) for size in (1, 8))
    assert with_remat(roomy, stack).remat == "none"
    chosen = with_remat(tight, stack)
    assert chosen.remat != "none"
    assert fits(chosen, stack)
