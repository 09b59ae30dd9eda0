"""What a probe makes of its measurements: fits of collectives, hosts of several processes, and their file."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.network import COLLECTIVES, Link, all_reduce, interpolate, ring_pass
from jaxdp.predict.probe import by_host, probe, to_toml
from jaxdp.predict.probe_links import fit_link, rounds, without_gather

SIZES = [2.0**k for k in range(12, 24)]
kinds = st.sampled_from(sorted(COLLECTIVES))


def seconds(kind: str, whole: float, n: int, link: Link) -> float:
    return COLLECTIVES[kind] * ring_pass(whole, n, link)


@given(kind=kinds, n=st.integers(2, 16), bandwidth=st.floats(1e6, 1e11), latency=st.floats(1e-6, 1e-2))
def test_a_fit_finds_the_link_behind_the_formula(kind, n, bandwidth, latency):
    link = Link(bandwidth, latency)
    timed = [[size, seconds(kind, size, n, link)] for size in SIZES]
    found = fit_link(kind, n, timed)
    for size, spent in timed:
        assert seconds(kind, size, n, found) == pytest.approx(spent, rel=1e-6)


@given(kind=kinds, n=st.integers(2, 16), spent=st.lists(st.floats(1e-5, 10), min_size=2, max_size=10))
def test_no_measurement_gives_negative_seconds(kind, n, spent):
    timed = [[size, each] for size, each in zip(SIZES, spent, strict=False)]
    link = fit_link(kind, n, timed)
    assert link.bandwidth > 0
    assert link.latency_s >= 0
    found = rounds(kind, n, timed)
    assert [size * n for size, _ in found] == pytest.approx([size for size, _ in timed])
    assert sorted(each for _, each in found) == [each for _, each in found]


def test_rounds_give_back_what_was_measured():
    timed = [[4096.0, 2e-3], [8192.0, 3e-3], [65536.0, 20e-3]]
    link = Link(1.0, 0.0, tuple((size, spent) for size, spent in rounds("all-gather", 4, timed)))
    for size, spent in timed:
        assert ring_pass(size, 4, link) == pytest.approx(spent)
    assert ring_pass(2 * 65536.0, 4, link) == pytest.approx(20e-3 + 17e-3 * 65536 / 57344)  # as between the last two


def test_a_call_that_was_held_up_counts_as_the_next_larger():
    assert [spent for _, spent in rounds("reduce-scatter", 2, [[1, 9.0], [2, 3.0], [4, 5.0]])] == [3.0, 3.0, 5.0]


def test_a_scatter_is_what_its_pair_takes_beyond_the_gather():
    """Noise makes none vanish, and a size at which no gather was measured is left out."""
    gathers = [[4096, 1.0], [8192, 2.0]]
    assert without_gather([[4096, 3.0], [8192, 2.0], [16384, 9.0]], gathers) == [[4096, 2.0], [8192, 0.5]]


@given(
    steps=st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=2, max_size=8),
    size=st.floats(1, 1e8),
    more=st.floats(1.001, 10),
    factor=st.floats(1.001, 100),
)
def test_measured_rounds_are_monotone(steps, size, more, factor):
    """More bytes take no less time, a faster network no more; the smallest message keeps its latency."""
    points, x, y = [], 0.0, 1e-4
    for dx, dy in steps:
        x, y = x + dx, y + dy
        points.append((x, y))
    link = Link(1e6, 1e-4, tuple(points))
    assert all_reduce(size * more, 4, link) >= all_reduce(size, 4, link) * (1 - 1e-9)
    assert all_reduce(size, 4, link.faster(factor)) <= all_reduce(size, 4, link) * (1 + 1e-9)
    assert link.faster(factor).send(0) == link.send(0) == points[0][1]
    assert interpolate(link.rounds, points[-1][0]) == pytest.approx(points[-1][1])


def process(flops: float, **changes: Any) -> dict[str, Any]:
    return {
        "device_kind": "cpu",
        "platform": "cpu",
        "devices": 2,
        "flops": {"float32": flops, "bfloat16": flops / 2},
        "speeds": [flops, flops],
        "memory_bandwidth": 1e9,
        "memory_bytes": 8_000_000_000,
        "intra": {"all-reduce": []},
        "between": {"all-reduce": []},
        **changes,
    }


def test_processes_of_one_host_are_one_host():
    """All their devices, the slowest one's rates; only a host's first process takes part between hosts."""
    timed = {"all-reduce": [[4096, 1e-3], [8192, 2e-3]]}
    everyone = [process(4e9, between=timed), process(2e9), process(8e9, between=timed), process(8e9)]
    slow, fast = by_host(everyone, ["a", "a", "b", "b"])
    assert (slow["processes"], slow["devices"], slow["flops"]["float32"]) == (2, 4, 2e9)
    assert slow["speeds"] == [1.0, 1.0, 0.5, 0.5]
    assert (fast["devices"], fast["flops"]["float32"]) == (4, 8e9)
    assert slow["between"] == fast["between"] == timed


def test_processes_need_not_come_host_by_host():
    named = by_host([process(1e9), process(2e9), process(3e9)], ["a", "b", "a"])
    assert [host["devices"] for host in named] == [4, 2]


@pytest.mark.slow  # it compiles a train step
def test_a_probe_is_a_hardware_file(tmp_path):
    """What is measured reads back to the same numbers, and is positive and finite."""
    import jax

    profile = probe(jax.devices()[:2])
    path = tmp_path / "hardware.toml"
    path.write_text(to_toml(profile))
    (group,) = load_hardware(str(path)).groups
    (table,) = profile["hosts"]
    assert (group.devices, group.platform, group.overlaps, group.combines) == (2, "cpu", False, False)
    assert group.flops == pytest.approx(table["flops"], rel=1e-5)
    assert group.efficiency == pytest.approx(table["efficiency"], rel=1e-5)
    assert group.intra_bandwidth == pytest.approx(table["intra_gbytes_per_s"] * 1e9, rel=1e-5)
    assert min(group.flops, group.memory_bandwidth, group.memory_bytes, group.efficiency) > 0
    assert json.loads(json.dumps(profile, allow_nan=False)) == profile
