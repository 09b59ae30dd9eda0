"""The cost model: published formulas, exact overlaps, and monotonicity in bytes, bandwidth and devices."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.config import Config, build
from jaxdp.models import shapes
from jaxdp.predict.compute import Rates, Work, block_seconds, block_work
from jaxdp.predict.cost import Computing, barrier_seconds, exposed_seconds, mesh_cost
from jaxdp.predict.hardware import Hardware, load_hardware
from jaxdp.predict.memory import memory, state_bytes_per_parameter
from jaxdp.predict.server_cost import server_cost
from jaxdp.predict.sharding import shards
from jaxdp.predict.traffic import Phases, levels, phases, planned_collectives, tokens_for_balance
from jaxdp.stragglers.delays import parse

GPT = {"layers": 4, "width": 256, "heads": 8, "ffn": 1024, "context": 256, "vocab": 1024, "tied": False}
MESH = ("ddp", "zero1", "fsdp", "hsdp")


def config(strategy: str = "ddp", batch: int = 64, accumulation: int = 1, unit="block", server=None, **model) -> Config:
    return build(
        {
            "model": {**GPT, **model},
            "train": {"global_batch": batch, "accumulation": accumulation, "remat": "block"},
            "strategy": {"name": strategy, "unit": unit, "min_shard_bytes": 0},
            "server": server or {},
        }
    )


def without_latency(hardware: Hardware) -> Hardware:
    return Hardware(tuple(replace(g, intra_latency_s=0.0, nic_latency_s=0.0) for g in hardware.groups))


def test_parameters_and_flops_are_the_closed_formulas():
    model = config(kv_heads=2, activation="swiglu").model
    V, h, L, H, G, d, f = model.vocab, model.width, model.layers, model.heads, 2, model.head_dim, model.ffn
    block = h * (H + 2 * G) * d + H * d * h + 3 * h * f + 2 * h
    assert shapes.count(model) == 2 * V * h + L * block + h
    matmul = V * h + L * (block - 2 * h)
    S = model.context
    assert shapes.train_flops_per_token(model) == 6 * matmul + 12 * L * S * H * d


@pytest.mark.parametrize(("remat", "factor"), [("none", 6 / 6), ("block", 8 / 6)])
def test_rematerialised_blocks_cost_eight_sixths(remat, factor):
    model = config().model
    forward, backward = block_work(model, 100, remat, 2, passes=4, scores=True)
    blocks = shapes.train_flops_per_token(model) - 6 * model.width * model.vocab
    assert model.layers * (forward.flops + backward.flops) == pytest.approx(100 * factor * blocks)


@pytest.mark.parametrize(
    ("cut", "gigabytes"),
    [
        ((), 120),
        (("optimizer",), 31.4),
        (("optimizer", "gradients"), 16.6),
        (("optimizer", "gradients", "parameters"), 1.9),
    ],
)
def test_zero_paper_example(cut, gigabytes):
    """7.5e9 parameters on 64 devices, K = 12 (arXiv 1910.02054, figure 1)."""
    each = state_bytes_per_parameter(cut, 64, parameter_bytes=2, gradient_bytes=2, optimizer_bytes=12)
    assert 7.5 * each == pytest.approx(gigabytes, abs=0.06)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_state_is_the_closed_formula(devices):
    """Leaf by leaf from the rules: DDP 16P, ZeRO-1 8P + 8P/n, FSDP 16P/n, at min_shard_bytes 0."""
    P = shapes.count(config().model)
    for strategy, cut in (("ddp", ()), ("zero1", ("optimizer",)), ("fsdp", ("optimizer", "gradients", "parameters"))):
        expected = P * state_bytes_per_parameter(cut, devices)
        assert memory(config(strategy), devices).state == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_volumes_are_the_table(n, accumulation):
    """Units of (n-1)/n P b: DDP 2, ZeRO-1 2, FSDP 3 in blocks and 2 outside, times the microbatches."""
    model = config().model
    P, P_b = shapes.count(model), shapes.block_count(model)
    expected = {"ddp": 2 * P, "zero1": 2 * P, "fsdp": accumulation * (3 * P_b + 2 * (P - P_b))}
    for strategy, units in expected.items():
        hardware = load_hardware(f"h100x{n}")
        found = phases(config(strategy, accumulation=accumulation), hardware, "float32").moved_bytes
        assert found == pytest.approx((n - 1) / n * units * 4)


def test_hsdp_sends_only_shards_between_hosts():
    hardware = load_hardware("h100x4", hosts=2)
    model, each = config("hsdp"), shapes.count(config().model) * 4
    placed = shards(model, 8, 2)
    between = [p for p in planned_collectives(model, placed, "float32") if p.axes == ("host",)]
    assert {p.kind for p in between} == {"all-reduce"}
    assert sum(p.bytes for p in between) == each // 4
    assert {levels(p.groups[0], hardware) for p in between} == {(1, 2)}


COMPUTING = Computing(2.0, 4.0, 1.0, 0.5, layers=3, microbatches=2)


def test_overlap_follows_the_program():
    """Forward: first gather + what exceeds each block; a reduction at the end shows whole."""
    hidden = Phases(block_gather_s=1.0, block_scatter_s=2.0, outer_gather_s=0.25, outer_scatter_s=0.5, end_s=10.0)
    assert exposed_seconds(COMPUTING, hidden, overlaps=True) == pytest.approx(2 * (1 + (1 + 2) + 0.75) + 10)
    long = replace(hidden, block_gather_s=5.0)
    forward, backward = 5 + 2 * (5 - 2), 5 + 2 * (5 + 2 - 4) + 2
    assert exposed_seconds(COMPUTING, long, overlaps=True) == pytest.approx(2 * (forward + backward + 0.75) + 10)
    assert exposed_seconds(COMPUTING, long, overlaps=False) == pytest.approx(2 * (3 * 5 + 3 * 7 + 0.75) + 10)


@given(gather=st.floats(0, 10), scatter=st.floats(0, 10), forward=st.floats(0, 10), backward=st.floats(0, 10))
def test_gathers_overlap_as_the_sum_of_maxima(gather, scatter, forward, backward):
    """first gather + sum over layers of max(compute_l, gather_{l+1}), the last block having nothing to hide."""
    work = Computing(forward, backward, 0.0, 0.0, layers=4, microbatches=1)
    comm = Phases(block_gather_s=gather, block_scatter_s=scatter)
    together = gather + 3 * max(forward, gather) + forward
    together += gather + 3 * max(backward, gather + scatter) + backward + scatter
    assert work.total_s + exposed_seconds(work, comm, overlaps=True) == pytest.approx(together)


@given(floor=st.floats(0, 1), flops=st.floats(0, 1e15), traffic=st.floats(0, 1e12), more=st.floats(1, 10))
def test_a_block_takes_at_least_its_floor_and_its_work(floor, flops, traffic, more):
    device = Rates(1e14, 1e12, floor)
    spent = block_seconds(Work(flops, traffic), device, 1.0)
    busy = flops / 1e14 + traffic / 1e12
    assert max(floor, busy) * (1 - 1e-9) <= spent <= (floor + busy) * (1 + 1e-9)
    assert block_seconds(Work(flops * more, traffic), device, 1.0) >= spent * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(
    strategy=st.sampled_from((*MESH, "ps")),
    devices=st.sampled_from([1, 2, 4, 8]),
    hosts=st.sampled_from([1, 2]),
    width=st.sampled_from([64, 128, 256]),
    speed=st.floats(1.1, 100),
)
def test_cost_is_monotone(strategy, devices, hosts, width, speed):
    """More parameters send more bytes and take longer; faster links and devices never take longer."""
    small, large = (config(strategy, width=w, ffn=4 * w) for w in (width, 2 * width))
    hardware = load_hardware(f"h100x{devices}", hosts=hosts)
    cost = server_cost if strategy == "ps" else mesh_cost
    now = cost(small, hardware)
    assert cost(large, hardware).total_s > now.total_s
    assert cost(large, hardware).moved_bytes >= 1.99 * now.moved_bytes
    links = Hardware(
        tuple(
            replace(g, intra_bandwidth=g.intra_bandwidth * speed, nic_bandwidth=g.nic_bandwidth * speed)
            for g in hardware.groups
        )
    )
    assert cost(small, links).total_s <= now.total_s * (1 + 1e-12)
    faster = Hardware(tuple(replace(g, flops=g.flops * speed) for g in hardware.groups))
    assert cost(small, faster).total_s <= now.total_s * (1 + 1e-12)
    batch = cost(config(strategy, batch=128, width=width, ffn=4 * width), hardware)
    assert batch.total_s > now.total_s * (1 - 1e-12)
    assert batch.compute_s > now.compute_s


@settings(max_examples=20, deadline=None)
@given(
    strategy=st.sampled_from(MESH), devices=st.sampled_from([1, 2, 4]), remat=st.sampled_from(["none", "dots", "block"])
)
def test_memory_is_monotone(strategy, devices, remat):
    now = memory(config(strategy), devices)
    assert memory(config(strategy), 2 * devices).total < now.total
    assert memory(config(strategy, layers=8), devices).total > now.total
    assert memory(config(strategy, width=512), devices).total > now.total
    assert memory(config(strategy, batch=128), devices).total > now.total
    assert memory(config(strategy, accumulation=2), devices).activations < now.activations


@pytest.mark.parametrize("strategy", MESH)
def test_one_device_communicates_nothing(strategy):
    cost = mesh_cost(config(strategy), load_hardware("h100"))
    assert (cost.exposed_communication_s, cost.waiting_s, cost.moved_bytes) == (0, 0, 0)


def test_the_slowest_sets_a_barriers_pace():
    alone = [1.0] * 8
    mean, slowest = barrier_seconds(alone, parse("persistent(factor=4,worker=0)"))
    assert (mean, slowest) == (pytest.approx(11 / 8), pytest.approx(4.0))
    mean, slowest = barrier_seconds(alone, parse("exponential(mean_s=1)"), proportional=False)
    assert slowest - 1.0 == pytest.approx(2.718, rel=0.02)  # H_8
    equal = 8 / (7 + 1 / 4)
    assert barrier_seconds(alone, parse("persistent(factor=4,worker=0)"), proportional=True) == (
        pytest.approx(equal),
        pytest.approx(equal),
    )


def test_uneven_groups_share_a_barrier(tmp_path):
    path = tmp_path / "hardware.toml"
    path.write_text('[[hosts]]\npreset="h100"\ndevices=4\n[[hosts]]\npreset="a100-80g"\ndevices=4\n')
    mixed, slow = load_hardware(str(path)), load_hardware("a100-80gx4", hosts=2)
    cost = mesh_cost(config("ddp"), mixed)
    assert cost.waiting_s > 0
    assert cost.compute_s + cost.waiting_s == pytest.approx(mesh_cost(config("ddp"), slow).compute_s)
    assert mesh_cost(config("ddp"), mixed, proportional=True).waiting_s == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("slowdown", [2.0, 6.0])
def test_a_free_server_gains_what_the_closed_form_says(slowdown):
    """async/sync = (s(n-1)+1)/n with one straggler and a server whose transfers and applying cost nothing."""
    group = replace(
        load_hardware("h100x8").groups[0], host_bandwidth=1e18, host_memory_bandwidth=1e18, memory_bandwidth=1e15
    )
    delays = parse(f"persistent(factor={slowdown},worker=0)")
    times = {
        policy: server_cost(config("ps", server={"policy": policy}), Hardware((group,)), delays).total_s
        for policy in ("async", "sync")
    }
    assert times["sync"] / times["async"] == pytest.approx((slowdown * 7 + 1) / 8, rel=1e-3)


def test_backup_workers_drop_the_slowest():
    hardware, delays = load_hardware("h100x8"), parse("persistent(factor=10,worker=0)")
    sync = server_cost(config("ps", server={"policy": "sync"}), hardware, delays)
    backup = server_cost(config("ps", server={"policy": "backup", "backups": 1}), hardware, delays)
    assert backup.total_s < sync.total_s
    ssp = server_cost(config("ps", server={"policy": "ssp", "bound": 4}), hardware, delays)
    free = server_cost(config("ps", server={"policy": "async"}), hardware, delays)
    assert ssp.total_s >= free.total_s


def test_the_flat_unit_pays_latency_where_blocks_are_split():
    """6 blocks: at 4 and 5 devices some blocks take two rounds, so a block's mean fetch waits for more latency."""
    waits = {}
    for n in (2, 3, 4, 5, 6):
        group = replace(load_hardware(f"h100x{n}").groups[0], intra_latency_s=1.0, intra_bandwidth=1e30)
        cost = phases(config("fsdp", batch=60, unit="flat", layers=6), Hardware((group,)), "float32")
        waits[n] = cost.block_gather_s / (2 * (n - 1))  # a ring's latency
    assert waits == {n: pytest.approx(rounds / 6) for n, rounds in {2: 6, 3: 6, 4: 8, 5: 10, 6: 6}.items()}


def test_an_h100_across_nodes_needs_about_2500_tokens():
    """(b/2) C/B at 2 bytes, 989 TFLOP/s and a host's 400 GB/s (How to Scale Your Model)."""
    assert tokens_for_balance(2, 989e12, 400e9) == pytest.approx(2472.5)


def test_latency_matters_to_small_models_most():
    """F2's cause: a small model's FSDP step is bound by the latency of its many gathers."""
    small, hardware = config("fsdp", width=64, ffn=256), load_hardware("h100x8", hosts=4)
    share = mesh_cost(small, without_latency(hardware)).total_s / mesh_cost(small, hardware).total_s
    assert share < 0.5


def test_what_is_not_combined_pays_its_latency_a_leaf():
    """One sum of all 9 leaves, or gathers of a block's 6."""
    combined = load_hardware("h100", hosts=2).groups[0]
    combined = replace(combined, count=2, nic_latency_s=1.0, nic_bandwidth=1e30)
    alone = replace(combined, combines=False)
    for strategy, leaves in (("ddp", 9), ("fsdp", 6)):
        one, many = (phases(config(strategy), Hardware((group,)), "float32") for group in (combined, alone))
        part = "end_s" if strategy == "ddp" else "block_gather_s"
        assert getattr(many, part) == pytest.approx(leaves * getattr(one, part)), strategy
        assert many.moved_bytes == one.moved_bytes


def test_efficiency_is_the_rate_of_computing():
    group = load_hardware("h100").groups[0]
    whole, half = (mesh_cost(config(), Hardware((replace(group, efficiency=e),))).compute_s for e in (1.0, 0.5))
    assert half == pytest.approx(2 * whole)
