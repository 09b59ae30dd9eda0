"""Collective and server times: the published formulas, limits, and monotonicity."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.predict.network import (
    Link,
    all_reduce,
    async_rate,
    byteps_round,
    ring_all_reduce,
    ring_pass,
    server_round,
    tree_all_reduce,
    two_level_all_reduce,
    two_level_pass,
)
from jaxdp.predict.traffic import tokens_for_balance

sizes = st.floats(1, 1e12)
devices = st.integers(2, 512)
bandwidths = st.floats(1e6, 1e12)
latencies = st.floats(0, 1e-3)


@given(M=sizes, n=devices, B=bandwidths, alpha=latencies)
def test_ring_and_tree_are_the_published_formulas(M, n, B, alpha):
    link = Link(B, alpha)
    assert ring_all_reduce(M, n, link) == pytest.approx(2 * (n - 1) * (alpha + M / (n * B)))
    assert 2 * ring_pass(M, n, link) == pytest.approx(ring_all_reduce(M, n, link))
    assert tree_all_reduce(M, n, link) >= 2 * math.log2(n) * alpha + 2 * M / B
    assert all_reduce(M, n, link) <= ring_all_reduce(M, n, link)


@given(M=sizes, g=st.integers(1, 16), m=st.integers(1, 16), B=bandwidths, nic=bandwidths)
def test_two_levels_without_latency(M, g, m, B, nic):
    expected = 2 * (g - 1) / g * M / B + 2 * (m - 1) / m * M / (g * nic)
    assert two_level_all_reduce(M, g, m, Link(B), Link(nic)) == pytest.approx(expected)
    assert 2 * two_level_pass(M, g, m, Link(B), Link(nic)) == pytest.approx(expected)


TIMES = {
    "ring": lambda M, n, link: ring_all_reduce(M, n, link),
    "tree": lambda M, n, link: tree_all_reduce(M, n, link),
    "all-reduce": lambda M, n, link: all_reduce(M, n, link),
    "pass": lambda M, n, link: ring_pass(M, n, link),
    "two levels": lambda M, n, link: two_level_all_reduce(M, n, 4, link, link),
    "server": lambda M, n, link: server_round(M, n, 2, link, link),
}


@pytest.mark.parametrize("name", TIMES)
@given(M=sizes, n=devices, B=bandwidths, alpha=latencies, more=st.floats(1.001, 100))
def test_times_are_monotone(name, M, n, B, alpha, more):
    """More bytes take longer (by as much, without latency), more bandwidth less long, more devices no shorter."""
    time = TIMES[name]
    assert time(M * more, n, Link(B, alpha)) > time(M, n, Link(B, alpha))
    assert time(M * more, n, Link(B)) == pytest.approx(more * time(M, n, Link(B)))
    assert time(M, n, Link(B * more, alpha)) < time(M, n, Link(B, alpha))
    assert time(M, n + 1, Link(B, alpha)) >= time(M, n, Link(B, alpha)) * (1 - 1e-12)


@given(M=sizes, B=bandwidths, alpha=latencies)
def test_one_device_communicates_nothing(M, B, alpha):
    link = Link(B, alpha)
    for spent in (ring_pass(M, 1, link), all_reduce(M, 1, link), two_level_all_reduce(M, 1, 1, link, link)):
        assert spent == 0


@pytest.mark.parametrize(("k", "rounds"), [(0, 1.75), (4, 1.273), (8, 1.0)])
def test_byteps_with_extra_cpu_hosts(k, rounds):
    assert byteps_round(1.0, 8, k, 1.0) == pytest.approx(rounds, abs=5e-4)


@given(M=sizes, n=devices, B=bandwidths)
def test_a_colocated_server_equals_the_ring(M, n, B):
    assert byteps_round(M, n, 0, B) == pytest.approx(ring_all_reduce(M, n, Link(B)))


def test_server_round_is_bound_by_the_slower_side():
    worker, server = Link(10.0, 0.5), Link(100.0, 0.5)
    assert server_round(100.0, 4, 1, worker, server) == pytest.approx(2 * (0.5 + 10.0))
    assert server_round(100.0, 40, 2, worker, server) == pytest.approx(2 * (0.5 + 20.0))


@pytest.mark.parametrize(
    ("cycles", "size", "apply_s", "rate"),
    [
        ([1.0, 2.0, 4.0], 0.0, 0.0, 1.75),
        ([1.0] * 8, 1e9, 0.0, 2.0),  # 2 servers x 1 GB/s
        ([1.0] * 8, 0.0, 0.5, 2.0),
    ],
)
def test_async_rate_is_the_least_of_its_three_bounds(cycles, size, apply_s, rate):
    assert async_rate(cycles, size, 2, 1e9, apply_s) == pytest.approx(rate)


def test_an_h100_across_nodes_needs_about_2500_tokens():
    """(b/2) C/B with half the peak and one host's NICs shared by its GPUs: 2 bytes, 989 TFLOP/s, 400 GB/s."""
    assert tokens_for_balance(2, 989e12, 400e9) == pytest.approx(2472.5)
