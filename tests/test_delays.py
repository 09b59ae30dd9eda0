"""The straggler SPEC: its grammar, what each model does to a step, and that draws belong to (seed, worker, step)."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.errors import BadInput
from jaxdp.stragglers import draws
from jaxdp.stragglers.delays import parse
from jaxdp.stragglers.models import DELAY_MODELS, Number
from jaxdp.stragglers.trace import read_trace

HARMONIC = {n: sum(1 / k for k in range(1, n + 1)) for n in (8, 32, 64, 256)}

BAD_SPECS = {
    "lognormel(sigma=.1)": "did you mean lognormal?",
    "lognormal(sigm=.1)": "did you mean sigma?",
    "pareto(mean_s=1)": "alpha is missing",
    "pareto(mean_s=1,alpha=1)": "alpha: expected more than 1",
    "exponential(mean_s=-1)": "mean_s: expected 0",
    "exponential(mean_s=nan)": "not nan",
    "exponential(mean_s=inf)": "not inf",
    "persistent(factor=0)": "factor: expected more than 0",
    "persistent(factor=two)": "expected a number",
    "persistent(factor=2,factor=3)": "given twice",
    "persistent(2)": "expected key=value",
    "persistent": "expected persistent(",
    "persistent(factor=2),": "empty model",
    "persistent(factor=2": "not closed",
    "persistent(factor=2))": "unbalanced",
    "persistent(factor=2,worker=-1)": "worker:",
    "persistent(factor=2,worker=1.5)": "worker:",
    "pause(seconds=1,probability=1.5)": "probability: expected 0 to 1",
    "fail(mtbf_s=0,restart_s=1)": "mtbf_s: expected more than 0",
    "trace()": "file is missing",
    "trace(file=/does/not/exist.csv)": "/does/not/exist.csv",
}


@pytest.mark.parametrize("spec", BAD_SPECS)
def test_bad_specs_are_refused_in_one_line_that_names_the_fault(spec: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(spec, where="--delays")
    message = str(caught.value)
    assert BAD_SPECS[spec] in message
    assert "\n" not in message


@settings(deadline=None)
@given(st.text(alphabet="perstaxlognm(=),.-1 2w_\n", max_size=40))
def test_no_text_makes_the_parser_fail_otherwise(spec: str) -> None:
    try:
        parse(spec)
    except BadInput as error:
        assert "\n" not in str(error).replace(spec, "")


@pytest.mark.parametrize("name", DELAY_MODELS)
def test_a_models_text_parses_to_the_same_model(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("step,0,1,2\n0,1,2,3\n")
    values = {
        key: (1.5 if kind.most > 1 else 0.5) if isinstance(kind, Number) else str(trace)
        for key, kind in DELAY_MODELS[name].keys.items()
    }
    arguments = ",".join(f"{key}={value}" for key, value in values.items())
    (delay,) = parse(f"{name}({arguments},worker=2)").delays
    assert parse(str(delay)).delays == (delay,)
    assert (delay.values, delay.worker) == (values, 2)


def seconds(spec: str, workers: int, steps: int, base_s: float = 0.0, seed: int = 0) -> np.ndarray:
    sums, factors = parse(spec, seed).block(np.arange(workers), np.arange(steps), base_s)
    return sums * factors


def test_models_compose_as_stated() -> None:
    both = seconds("exponential(mean_s=2),pause(seconds=3),persistent(factor=4,worker=1)", 2, 50, base_s=5.0)
    alone = seconds("exponential(mean_s=2)", 2, 50)
    np.testing.assert_allclose(both, (5 + alone + 3) * [1, 4], rtol=1e-12)
    paced = seconds("persistent(factor=2),pace(seconds=9),pace(seconds=7,worker=1)", 2, 5, base_s=5.0)
    np.testing.assert_allclose(paced, np.broadcast_to([18.0, 14.0], (5, 2)))


@settings(deadline=None)
@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(0, 10**6))
def test_adding_workers_or_steps_or_models_changes_no_draw(seed: int, workers: int, first: int) -> None:
    steps = np.arange(first, first + 5)
    alone = parse("exponential(mean_s=1)", seed).block(np.arange(workers), steps, 0.0)[0]
    more = parse("lognormal(sigma=1),exponential(mean_s=1)", seed)
    block = more.block(np.arange(workers + 3), np.arange(first, first + 9), 0.0)[0]
    np.testing.assert_array_equal(block[:5, :workers], alone)
    one = parse("exponential(mean_s=1)", seed).step_seconds(workers - 1, first + 4, 0.0, at_s=123.0)
    assert one == alone[4, -1]


def test_seeds_workers_causes_and_steps_draw_apart() -> None:
    keys = [(s, c, w) for s in (0, 1) for c in ("exponential", "pause") for w in (0, 1)]
    columns = np.array([draws.uniform(s, c, w, np.arange(20_000))[:, 0] for s, c, w in keys])
    off_diagonal = np.corrcoef(columns) - np.eye(len(keys))
    assert np.abs(off_diagonal).max() < 0.04
    lagged = [np.corrcoef(column[:-1], column[1:])[0, 1] for column in columns]
    assert np.abs(lagged).max() < 0.04


def test_draws_have_their_distributions() -> None:
    steps = np.arange(200_000)
    uniform = np.sort(draws.uniform(3, "u", 0, steps)[:, 0])
    assert np.abs(uniform - (np.arange(200_000) + 0.5) / 200_000).max() < 1.63 / math.sqrt(200_000)  # Kolmogorov, 1 %
    normal = draws.normal(3, "n", 0, steps)[:, 0]
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
    assert abs((normal**4).mean() - 3) < 0.1


@pytest.mark.parametrize(
    "spec", ["exponential(mean_s=2)", "pareto(mean_s=2,alpha=3)", "pause(seconds=4,probability=.5)"]
)
def test_random_additions_have_their_mean(spec: str) -> None:
    assert seconds(spec, 4, 100_000).mean() == pytest.approx(2, rel=0.01)


def test_lognormal_has_mean_one() -> None:
    assert seconds("lognormal(sigma=.5)", 4, 100_000, base_s=1.0).mean() == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize("n", HARMONIC)
def test_the_expected_slowest_of_exponential_workers(n: int) -> None:
    found = parse("exponential(mean_s=3)").expected(n, base_s=1.0)
    assert found.slowest_s == pytest.approx(1 + 3 * HARMONIC[n], rel=0.01)
    assert found.worker_s.mean() == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    ("n", "sigma", "value"), [(8, 0.2, 1.313), (32, 0.2, 1.490), (8, 0.5, 1.888), (256, 0.5, 3.701)]
)
def test_the_expected_slowest_of_lognormal_workers(n: int, sigma: float, value: float) -> None:
    assert parse(f"lognormal(sigma={sigma})").expected(n, base_s=1.0).slowest_s == pytest.approx(value, rel=0.01)


def test_without_chance_the_expectation_is_exact() -> None:
    found = parse("persistent(factor=4,worker=2)").expected(3, base_s=np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(found.worker_s, [1, 2, 12])
    assert found.slowest_s == 12


def test_throttle_and_markov_depend_on_time() -> None:
    throttled = parse("throttle(after_s=10,factor=3,worker=0)")
    assert [throttled.step_seconds(0, 0, 2.0, at_s) for at_s in (0, 9.9, 10, 99)] == [2, 2, 6, 6]
    assert throttled.step_seconds(1, 0, 2.0, 99) == 2
    markov = parse("markov(on_s=10,off_s=30,factor=3)", seed=5)
    at = np.arange(0, 200_000, 7.0)
    slow = np.array([markov.step_seconds(0, 0, 1.0, t) for t in at]) == 3
    assert slow.mean() == pytest.approx(0.25, abs=0.02)
    changes = np.count_nonzero(slow[1:] != slow[:-1])
    assert changes < 2 * len(at) * 7 / 40  # periods last, they aren't drawn anew each step


def test_looking_back_in_time_finds_the_same_periods() -> None:
    markov = parse("markov(on_s=1,off_s=2,factor=3),fail(mtbf_s=5,restart_s=1)", seed=1)
    times = [float(t) for t in range(0, 2000, 3)]
    forward = [(markov.step_seconds(4, 0, 1.0, t), markov.next_outage(4, t)) for t in times]
    backward = [(markov.step_seconds(4, 0, 1.0, t), markov.next_outage(4, t)) for t in reversed(times)]
    assert forward == backward[::-1]


def test_a_periodic_pause_takes_its_share() -> None:
    delays, at_s = parse("pause(seconds=0.5,every_s=10)"), 0.0
    for step in range(20_000):
        at_s += delays.step_seconds(0, step, 0.3, at_s)
    # a pause a period, less what falls within pauses themselves: one pause in every 10.5 s of the clock
    assert 20_000 * 0.3 / at_s == pytest.approx(1 - 0.05, abs=0.003)


def test_failures_come_at_their_rate_and_undo_the_step() -> None:
    delays = parse("fail(mtbf_s=100,restart_s=10)")
    outage, count = delays.next_outage(0, 0.0), 0
    while outage.start_s < 1e6:
        assert outage.end_s == pytest.approx(outage.start_s + 10)
        count += 1
        outage = delays.next_outage(0, outage.end_s)
    assert count == pytest.approx(1e6 / 110, rel=0.03)
    first = delays.next_outage(0, 0.0)
    done, lost = delays.survive(0, first.start_s - 1, 2.0)
    assert done == pytest.approx(first.end_s + 2)
    assert lost == pytest.approx(1)
    with pytest.raises(BadInput, match="never survives"):
        parse("fail(mtbf_s=0.001,restart_s=0)").survive(0, 0.0, 10.0)


def test_links_divide_bandwidth() -> None:
    delays = parse("link(factor=2),link(factor=3,worker=1)")
    assert [delays.bandwidth_divisor(worker) for worker in range(3)] == [2, 6, 2]


def test_workers_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no worker 4"):
        parse("persistent(factor=2,worker=4)").check(4)
    path = tmp_path / "two.csv"
    path.write_text("step,0,1\n0,1,2\n")
    with pytest.raises(BadInput, match="none for worker 2"):
        parse(f"trace(file={path})").check(3)


def test_a_trace_replaces_the_base_and_comes_round(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("step,0,1\n10,1.0,2.0\n20,3.0,4.0\n")
    np.testing.assert_array_equal(read_trace(str(path)), [[1, 2], [3, 4]])
    rows = seconds(f"trace(file={path}),persistent(factor=2,worker=1)", 2, 5, base_s=77.0)
    np.testing.assert_array_equal(rows, [[1, 4], [3, 8], [1, 4], [3, 8], [1, 4]])


BAD_TRACES = {
    "": "expected the header",
    "step\n0\n": "expected the header",
    "time,0,1\n0,1,2\n": "expected the header",
    "step,0,2\n0,1,2\n": "expected the header",
    "step,0,1\n": "no steps",
    "step,0,1\n0,1,\n": "line 2: a hole for worker 1",
    "step,0,1\n0,1,2\n1,1\n": "line 3: 2 columns",
    "step,0,1\n0,1,-2\n": "line 2: -2 seconds",
    "step,0,1\n0,1,nan\n": "line 2: nan seconds",
    "step,0,1\n0,1,x\n": "'x' is not a number",
    "step,0,1\n\n0,1,2\n": "line 2: 1 columns",
}


@pytest.mark.parametrize("content", BAD_TRACES)
def test_bad_traces_are_refused_with_their_line(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(BadInput, match=BAD_TRACES[content]):
        read_trace(str(path))


@settings(max_examples=30, deadline=None)
@given(st.floats(1.0, 8.0), st.floats(1.0, 8.0), st.integers(1, 6))
def test_a_slower_worker_never_makes_the_slowest_faster(one: float, other: float, n: int) -> None:
    low, high = sorted((one, other))
    slowest = [
        parse(f"lognormal(sigma=.3),persistent(factor={factor},worker=0)").expected(n, 1.0, 200).slowest_s
        for factor in (low, high)
    ]
    assert slowest[0] <= slowest[1]


def test_delays_import_no_jax() -> None:
    code = "import sys, jaxdp.stragglers.delays; assert not {'jax', 'scipy', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
