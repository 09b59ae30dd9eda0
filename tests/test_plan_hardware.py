"""Presets and `hardware.toml`."""

import pytest

from jaxdp.errors import BadInput
from jaxdp.predict.hardware import load_hardware, preset
from jaxdp.predict.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_every_number_of_a_preset_has_a_source(name):
    group = preset(f"{name}x8")
    assert (group.name, group.devices, group.count) == (name, 8, 1)
    for known in vars(PRESETS[name]).values():
        assert known.value > 0
        assert known.source
    assert preset(name).devices == 1


@pytest.mark.parametrize(
    ("name", "tflops", "gigabytes"),
    [("a100-80g", 312, 80), ("h100", 989, 80), ("h200", 989, 141), ("b200", 2250, 180), ("tpu-v6e", 918, 32)],
)
def test_presets_are_the_data_sheets(name, tflops, gigabytes):
    assert preset(name).flops == tflops * 1e12
    assert preset(name).memory_bytes == gigabytes * 10**9


def test_hosts_and_nic_override_a_preset():
    hardware = load_hardware("h100x8", hosts=4, nic_gbps=100)
    assert (hardware.hosts, hardware.devices, hardware.groups[0].nic_bandwidth) == (4, 32, 12.5e9)


def test_groups_of_a_file_may_differ(tmp_path):
    path = tmp_path / "hardware.toml"
    path.write_text(
        '[[hosts]]\npreset = "h100"\ncount = 2\ndevices = 8\nnic_gbps = 400\n'
        "[[hosts]]\nflops = 1e11\nmemory_bytes = 8e9\nmemory_bandwidth = 6e9\nspeeds = [0.5]\nlatency_s = 1e-4\n"
    )
    hardware = load_hardware(str(path))
    gpu, cpu = hardware.groups
    assert (hardware.devices, hardware.hosts, hardware.memory_bytes) == (17, 3, 8_000_000_000)
    assert (gpu.nic_bandwidth, gpu.compute_dtype) == (50e9, "bfloat16")
    assert (cpu.flops, cpu.compute_dtype, cpu.speeds, cpu.nic_latency_s) == (1e11, "float32", (0.5,), 1e-4)


def test_measured_collectives_follow_the_network(tmp_path):
    """`--nic-gbps` scales what was measured; a kind that was not measured keeps the formula."""
    path = tmp_path / "hardware.toml"
    path.write_text("[[hosts]]\npreset = 'h100'\nnic_gbps = 8\nall_reduce_rounds = [[1e3, 1e-3], [1e6, 5e-3]]\n")
    (group,) = load_hardware(str(path)).groups
    assert group.nic("all-reduce").send(1e6) == pytest.approx(5e-3)
    assert group.nic("all-gather").send(1e6) == pytest.approx(group.nic_latency_s + 1e-3)
    (slower,) = load_hardware(str(path), nic_gbps=4).groups
    assert slower.nic("all-reduce").send(1e6) == pytest.approx(1e-3 + 8e-3)
    assert slower.nic("all-reduce").send(1e3) == pytest.approx(1e-3)


BAD = {
    "": "one or more",
    "hosts = 3": "one or more",
    "x = 1\n[[hosts]]\npreset='h100'": "nothing else",
    "[[hosts]]": "needs preset",
    "[[hosts]]\nflops = 1e12": "missing: memory_bytes",
    "[[hosts]]\npreset = 'h99'": "no such preset",
    "[[hosts]]\npreset = 'h100'\ncount = 0": "at least 1",
    "[[hosts]]\npreset = 'h100'\ncount = 2.5": "whole number",
    "[[hosts]]\npreset = 'h100'\nflops = -1": "above 0",
    "[[hosts]]\npreset = 'h100'\nflops = nan": "above 0",
    "[[hosts]]\npreset = 'h100'\nflops = true": "above 0",
    "[[hosts]]\npreset = 'h100'\nnic_gbps = 'fast'": "above 0",
    "[[hosts]]\npreset = 'h100'\nnick = 1": "unknown key 'nick'",
    "[[hosts]]\npreset = 'h100'\nreachable = 1.5": "at most 1",
    "[[hosts]]\npreset = 'h100'\ndevices = 2\nspeeds = [1.0]": "one relative rate",
    "[[hosts]]\npreset = 'h100'\ncompute_dtype = 'int4'": "float32 or bfloat16",
    "[[hosts]]\npreset = 'h100'\noverlaps = 1": "true or false",
    "[[hosts]]\npreset = 'h100'\ncombines = 'no'": "combines: expected true or false",
    "[[hosts]]\npreset = 'h100'\nefficiency = 0": "efficiency: expected a number above 0",
    "[[hosts]]\npreset = 'h100'\nall_gather_round = [[1, 2], [2, 3]]": "did you mean all_gather_rounds",
    "[[hosts]]\npreset = 'h100'\nall_gather_rounds = [[1, 2]]": "two or more pairs",
    "[[hosts]]\npreset = 'h100'\nall_gather_rounds = [1, 2]": "two or more pairs",
    "[[hosts]]\npreset = 'h100'\nall_gather_rounds = [[1, 2], [2, 0]]": "above 0",
    "[[hosts]]\npreset = 'h100'\nall_gather_rounds = [[2, 1], [1, 3]]": "sizes must grow",
    "[[hosts]]\npreset = 'h100'\nall_gather_rounds = [[1, 3], [2, 1]]": "seconds not fall",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_refused_in_one_line(text, tmp_path):
    path = tmp_path / "hardware.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=BAD[text]) as raised:
        load_hardware(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "hosts", "nic"),
    [
        ("h100x0", None, None),
        ("h100x99999999", None, None),
        ("h100x8", 10_000, None),
        ("h100x", None, None),
        ("nothing.toml", None, None),
        ("h100", 0, None),
    ]
    + [("h100", None, nic) for nic in (0, -1, float("nan"), float("inf"))],
)
def test_bad_flags_are_refused(source, hosts, nic):
    with pytest.raises(BadInput):
        load_hardware(source, hosts, nic)


def test_a_preset_whose_name_ends_like_a_count():
    assert preset("rtx4090").devices == 1
    assert preset("rtx4090x2").devices == 2
