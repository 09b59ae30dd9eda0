"""The fast check: every wrong sharding is found, sound configurations raise nothing."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.config import Config, build, load
from jaxdp.errors import BadInput, Refused
from jaxdp.predict.preflight import preflight, require
from jaxdp.strategies.flat_layout import FlatLayout
from jaxdp.strategies.rules import Cut

F5 = {"layers": 6, "width": 384, "heads": 12, "ffn": 1536}


def config(strategy="fsdp", model=None, batch=16, accumulation=1, server=None, **options) -> Config:
    return build(
        {
            "model": model or {},
            "train": {"global_batch": batch, "accumulation": accumulation},
            "strategy": {"name": strategy, **options},
            "server": server or {},
        }
    )


def names(report) -> set[str]:
    return {finding.name for finding in report.findings}


def changed(config: Config, at: str, cut: Cut):
    """The strategy's rule with one leaf cut otherwise."""
    sound = config.strategy.rule

    def rule(parameter, axis_sizes):
        return cut if parameter.path == at else sound(parameter, axis_sizes)

    return rule


SOUND = [
    (strategy, devices, accumulation)
    for strategy, devices, accumulation in itertools.product(
        ("ddp", "zero1", "fsdp", "hsdp", "ps"), range(1, 9), (1, 2)
    )
    if not (strategy == "hsdp" and devices in (5, 7))  # whose groups of 2 and 3 divide neither
]


@pytest.mark.parametrize(("strategy", "devices", "accumulation"), SOUND)
def test_sound_configurations_raise_nothing(strategy, devices, accumulation):
    report = preflight(config(strategy, accumulation=accumulation, batch=840 * 2), devices)
    assert report.findings == ()
    assert report.ok
    require(report)


@pytest.mark.parametrize(("devices", "split"), [(2, []), (3, []), (4, [1, 4]), (5, [1, 2, 3, 4]), (6, [])])
def test_the_flat_unit_splits_blocks_at_4_and_5_devices(devices, split):
    report = preflight(config(model=F5, batch=60, unit="flat"), devices)
    found = [finding for finding in report.findings if finding.name == "block_split"]
    assert [finding.block for finding in found] == split
    assert report.ok == (not split)
    assert "block_split" not in names(preflight(config(model=F5, batch=60), devices))


@pytest.mark.parametrize("strategy", ["zero1", "fsdp", "hsdp"])
@pytest.mark.parametrize("devices", [8, 24, 40, 48, 96, 16384])
def test_real_models_are_cut_evenly_by_any_count_of_devices(strategy, devices):
    for name in ("llama3-8b", "llama3-70b"):
        sharded = load([name], flags={"strategy.name": strategy, "train.global_batch": devices})
        report = preflight(sharded, devices, hosts=devices // 8)
        assert report.findings == ()
        whole = preflight(sharded, 1).state_bytes or 0
        group = min(8, devices // 2) if strategy == "hsdp" else devices
        held = whole / group if strategy != "zero1" else whole / 2 + whole / 2 / group
        assert report.state_bytes is not None and report.padding_bytes is not None
        assert report.state_bytes == pytest.approx(held, rel=0.01)
        assert report.state_bytes - report.padding_bytes == pytest.approx(held, abs=group)


@given(layers=st.integers(1, 12), block_size=st.integers(1, 40), devices=st.integers(1, 16), data=st.data())
def test_the_parts_of_all_blocks_are_the_flat_vector(layers, block_size, devices, data):
    flat = FlatLayout(layers, block_size, devices)
    parts = [part for layer in range(layers) for part in flat.parts(layer)]
    elements = [part.owner * flat.piece_size + at for part in parts for at in range(part.start, part.stop)]
    assert elements == list(range(layers * block_size))
    assert 0 <= flat.padding < devices
    if layers % devices == 0:
        assert flat.split_blocks() == ()


WRONG = {
    "one leaf left replicated": (config(), 4, ("blocks.qkv", Cut()), "replicated"),
    "an axis the mesh lacks": (config(), 4, ("blocks.qkv", Cut("model", "model")), "bad_spec"),
    "an optimizer state away from its shards": (config(), 4, ("embed", Cut("data", None)), "bad_spec"),
    "an optimizer state left replicated by zero1": (config("zero1"), 4, ("embed", Cut()), "replicated"),
    "more devices than elements": (
        config(model={"width": 8, "heads": 2, "vocab": 16}, batch=96, min_shard_bytes=0),
        96,
        None,
        "uneven",
    ),
    "a batch not divided": (config(batch=10), 4, None, "batch_undivided"),
    "microbatches not divided": (config(batch=12, accumulation=2), 4, None, "batch_undivided"),
    "a batch the workers don't divide": (
        config("ps", server={"workers": 3}),
        4,
        None,
        "batch_undivided",
    ),
    "a group that doesn't divide": (config("hsdp", shard_devices=3), 8, None, "group_undivided"),
    "more workers than devices": (config("ps", server={"workers": 8}), 4, None, "group_undivided"),
    "all leaves small": (config(min_shard_bytes=2**30), 4, None, "replicated"),
}
ERRORS = {"bad_spec", "batch_undivided", "group_undivided"}


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_sharding_is_found(case):
    wrong, devices, change, name = WRONG[case]
    report = preflight(wrong, devices, rule=changed(wrong, *change) if change else None)
    found = [finding for finding in report.findings if finding.name == name]
    assert found
    assert all(finding.remedy and finding.message for finding in found)
    assert (found[0].severity == "error") == (name in ERRORS)
    if change:
        assert found[0].parameter == change[0]
    if name in ERRORS:  # there is no program for it, so that no run can allow it
        assert not report.runs
        for allow in ((), (name,)):
            with pytest.raises(Refused, match=name) as refused:
                require(report, allow)
            assert "pass --allow" not in str(refused.value)


def test_a_clusters_workers_need_no_devices_of_this_process():
    server = {"workers": 8, "engine": "ray", "devices_per_worker": 2}
    report = preflight(config("ps", server=server), 4)
    assert report.ok and report.devices == 16


def test_a_split_block_is_refused_and_can_be_allowed():
    report = preflight(config("fsdp", batch=12, unit="flat"), 3)
    assert report.runs
    with pytest.raises(Refused, match="or pass --allow block_split"):
        require(report)
    require(report, allow=("block_split",))


def test_five_largest_replicated_leaves_are_named_largest_first():
    report = preflight(config(min_shard_bytes=2**30), 4)
    sizes = {row["parameter"]: row["bytes"] for row in report.parameters}
    named = [finding.parameter for finding in report.findings if finding.name == "replicated"]
    assert len(named) == 5
    assert {sizes[name] for name in named} == set(sorted(sizes.values())[-5:])


def test_memory_is_refused_only_above_the_devices():
    needed = preflight(config("ddp"), 4, platform="gpu").memory_bytes
    assert needed is not None
    assert "memory" not in names(preflight(config("ddp"), 4, memory_bytes=needed))
    with pytest.raises(Refused, match="memory"):
        require(preflight(config("ddp"), 4, memory_bytes=needed - 1))


def test_bad_counts_and_names_are_bad_input():
    with pytest.raises(BadInput, match="at least 1"):
        preflight(config(), 0)
    with pytest.raises(BadInput, match="no such finding"):
        require(preflight(config(), 1), allow=("block_spilt",))


@given(devices=st.sampled_from([1, 2, 4, 8]), strategy=st.sampled_from(["ddp", "zero1", "fsdp", "hsdp"]))
def test_shards_of_sound_rules_add_up(devices, strategy):
    """Every leaf is held whole times its copies: shard elements x cuts = elements."""
    sound = config(strategy)
    for row in preflight(sound, devices).parameters:
        cuts = row["bytes"] / row["shard_bytes"]
        group = devices // 2 if strategy == "hsdp" and devices > 1 else devices
        assert cuts == (group if any(row["spec"]) else 1)
        assert not any(row["spec"]) or strategy in ("fsdp", "hsdp")


def test_the_fast_check_imports_no_jax():
    code = (
        "import sys; from jaxdp.config import build; from jaxdp.predict.preflight import preflight;"
        "preflight(build({}), 4); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
