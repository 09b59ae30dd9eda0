"""The plan of a step's collectives: its laws, the published volumes, and real programs that keep to it or leave it."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp import config
from jaxdp.config import Config, ModelConfig, StrategyConfig
from jaxdp.hlo.collectives import Collective, collectives
from jaxdp.mesh.compile import compile_step
from jaxdp.models import shapes
from jaxdp.predict.discrepancies import compare
from jaxdp.strategies.collectives import Planned, moved_bytes, plan, summarise
from jaxdp.strategies.rows import STRATEGIES
from jaxdp.strategies.rules import Cut
from jaxdp.strategies.volume import Step
from tests.mesh_cases import BY_LEAVES

MODEL = ModelConfig(layers=3, width=64, heads=4, ffn=128, context=16, vocab=128)


def cuts_of(strategy: StrategyConfig, model: ModelConfig, sizes: Mapping[str, int]) -> dict[str, Cut]:
    rule = strategy.rule
    return {leaf.path: rule(leaf, sizes) for leaf in shapes.parameters(model)}


def minimum_bytes(name: str, blocks: int, root: int, sizes: Mapping[str, int], **options: int) -> float:
    return STRATEGIES[name].least_bytes(
        Step(block_parameters=blocks, root_parameters=root, axis_sizes=sizes, **options)
    )


def planned(name: str, devices: int = 8, model: ModelConfig = MODEL, **options) -> list[Planned]:
    strategy = StrategyConfig.model_validate({"name": name, "min_shard_bytes": 0})
    sizes = strategy.axis_sizes(devices)
    return plan(shapes.parameters(model), cuts_of(strategy, model, sizes), sizes, **options)


def as_found(one: Planned, **changes) -> Collective:
    """The collective that a compiler makes of a planned one."""
    found = Collective(
        kind=one.kind,
        dtypes=({2: "bf16", 4: "f32"}[one.dtype_bytes],),
        bytes=one.bytes,
        group_size=one.group_size,
        groups=one.groups,
        count=one.count,
        operands=1,
        name="it",
        op_name=f"jit(step)/{one.leaves[0]}",
    )
    return dataclasses.replace(found, **changes)


# --- the plan against the published volumes


@pytest.mark.parametrize("name", BY_LEAVES)
@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("width_bytes", [2, 4])
def test_plan_moves_what_the_strategys_formula_says(name: str, devices: int, width_bytes: int) -> None:
    sizes = StrategyConfig.model_validate({"name": name}).axis_sizes(devices)
    blocks = shapes.block_count(MODEL)
    least = minimum_bytes(name, blocks, shapes.count(MODEL) - blocks, sizes, compute_dtype_bytes=width_bytes)
    total = sum(one.count * moved_bytes(one) for one in planned(name, devices, compute_dtype_bytes=width_bytes))
    assert total == pytest.approx(least, rel=1e-12)


def test_the_minimum_in_units_of_the_published_table() -> None:
    """Units of (n-1)/n * 4 bytes a parameter; HSDP by its two levels."""
    n, blocks, outer = 8, 1_000_000, 0
    unit = (n - 1) / n * 4 * blocks
    one = {"data": n}
    assert minimum_bytes("ddp", blocks, outer, one) == 2 * unit
    assert minimum_bytes("zero1", blocks, outer, one) == 2 * unit
    assert minimum_bytes("fsdp", blocks, outer, one) == 3 * unit
    assert minimum_bytes("fsdp", 0, blocks, one) == 2 * unit
    assert minimum_bytes("fsdp", blocks, outer, one, accumulation=4) == 12 * unit
    assert minimum_bytes("fsdp", blocks, outer, one, compute_dtype_bytes=2) == 2 * unit
    two = {"host": 2, "data": 4}
    inside, across = 3 * 3 / 4 * 4 * blocks, 2 * 1 / 2 * 4 * blocks / 4
    assert minimum_bytes("hsdp", blocks, outer, two) == inside + across


@pytest.mark.parametrize("name", BY_LEAVES)
def test_one_device_moves_nothing(name: str) -> None:
    assert planned(name, 1) == []
    sizes = {"host": 1, "data": 1} if name == "hsdp" else {"data": 1}
    assert minimum_bytes(name, 1000, 100, sizes) == 0


def test_accumulation_repeats_fsdps_collectives_and_not_ddps() -> None:
    assert planned("ddp", accumulation=4) == planned("ddp")
    assert planned("zero1", accumulation=4) == planned("zero1")
    for once, four in zip(planned("fsdp"), planned("fsdp", accumulation=4), strict=True):
        assert four.count == 4 * once.count


def test_ddp_reduces_once_and_fsdp_gathers_each_leaf_of_a_block_twice_a_layer() -> None:
    (reduction,) = planned("ddp")
    assert (reduction.kind, reduction.bytes, reduction.count) == ("all-reduce", 4 * shapes.count(MODEL), 1)
    for one in planned("fsdp", compute_dtype_bytes=2):
        in_blocks = one.leaves[0].startswith("blocks.")
        layers = MODEL.layers if in_blocks else 1
        assert one.count == layers * (2 if in_blocks and one.kind == "all-gather" else 1)
        assert one.dtype_bytes == (2 if one.kind == "all-gather" else 4)


def test_hsdp_reduces_shards_across_hosts() -> None:
    across = [one for one in planned("hsdp") if one.axes == ("host",)]
    assert [one.kind for one in across] == ["all-reduce"]
    assert across[0].groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert across[0].bytes == 4 * shapes.count(MODEL) // 4


@given(devices=st.integers(2, 300), width_bytes=st.sampled_from([2, 4]), name=st.sampled_from(BY_LEAVES))
def test_beside_the_formulas_bytes_the_plan_moves_only_padding(devices: int, width_bytes: int, name: str) -> None:
    """Whatever the count: without the padding that it names, a plan moves what the strategy's formula says."""
    strategy = StrategyConfig.model_validate({"name": name, "min_shard_bytes": 0, "shard_devices": devices})
    sizes = strategy.axis_sizes(2 * devices if name == "hsdp" else devices)
    steps = plan(shapes.parameters(MODEL), cuts_of(strategy, MODEL, sizes), sizes, 2, width_bytes)
    unpadded = [dataclasses.replace(one, bytes=one.bytes - one.padding_bytes) for one in steps]
    blocks = shapes.block_count(MODEL)
    options = {"accumulation": 2, "compute_dtype_bytes": width_bytes}
    least = minimum_bytes(name, blocks, shapes.count(MODEL) - blocks, sizes, **options)
    gathers_outside = sum(
        (one.count - one.least) * moved_bytes(one) for one in unpadded if one.least is not None
    )  # which the formula takes once
    total = sum(one.count * moved_bytes(one) for one in unpadded) - gathers_outside
    # A device's shards of HSDP's sum hold padding in whole elements.
    assert total == pytest.approx(least, rel=1e-12, abs=0 if name != "hsdp" else 8 * len(shapes.parameters(MODEL)) * 3)
    assert all(0 <= one.padding_bytes < one.dtype_bytes * devices * 3 * len(one.leaves) for one in steps)


@given(size=st.integers(1, 64), width=st.integers(1, 10**6), count=st.integers(0, 9))
def test_moved_bytes_grow_with_the_group_and_the_array(size: int, width: int, count: int) -> None:
    def moved(kind: str, n: int, size_bytes: int) -> float:
        return moved_bytes(Collective(kind, ("f32",), size_bytes, n, None, count, 1, "", ""))

    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        assert 0 <= moved(kind, size, width) < moved(kind, size + 1, width)
        assert moved(kind, size + 1, 2 * width) == pytest.approx(2 * moved(kind, size + 1, width))
    # A ring's all-reduce is its reduce-scatter and its all-gather.
    parts = moved("reduce-scatter", size, width) + moved("all-gather", size, width)
    assert moved("all-reduce", size, width) == pytest.approx(parts)


def test_the_summary_adds_up_and_does_not_guess() -> None:
    found = [as_found(one) for one in planned("hsdp")]
    rows, total = summarise(found)
    assert {row["kind"] for row in rows} == {"all-gather", "reduce-scatter", "all-reduce"}
    assert sum(row["count"] for row in rows) == sum(one.count or 0 for one in found)
    assert total == sum(row["bytes"] for row in rows)
    assert total == pytest.approx(sum((one.count or 0) * moved_bytes(one) for one in found), abs=2)
    rows, total = summarise([*found, dataclasses.replace(found[0], count=None)])
    assert total is None
    assert [row["count"] is None for row in rows] == [row["kind"] == found[0].kind for row in rows]


# --- a program against the plan


@pytest.mark.parametrize("name", BY_LEAVES)
def test_a_program_that_keeps_to_the_plan_has_no_discrepancy(name: str) -> None:
    steps = planned(name, accumulation=2)
    found = [as_found(one) for one in steps]
    scalar = Collective("all-reduce", ("f32",), 8, 8, None, 1, 2, "loss", "")
    assert compare(steps, [*found, scalar]) == []
    # A compiler may gather once for all microbatches what lies outside the blocks ...
    hoisted = [as_found(one, count=one.least or one.count) for one in steps]
    assert compare(steps, hoisted) == []
    # ... and combine collectives of a kind.
    first = found[0]
    twins = [one for one in found if (one.kind, one.groups, one.count) == (first.kind, first.groups, first.count)]
    together = dataclasses.replace(first, bytes=sum(one.bytes for one in twins), operands=len(twins))
    assert compare(steps, [together, *(one for one in found if one not in twins)]) == []


def test_groups_and_not_only_their_size_must_agree() -> None:
    """On 2 x 2 devices the hosts' groups and the groups across hosts have the same size."""
    steps = planned("hsdp", 4)
    (across,) = [one for one in steps if one.axes == ("host",)]
    wrong = [as_found(one, groups=((0, 1), (2, 3)) if one is across else one.groups) for one in steps]
    assert {one.problem for one in compare(steps, wrong)} == {"missing", "unplanned"}


FAULTS = {
    "a gather saved instead of repeated": ("fsdp", "bytes", "does not gather again"),
    "no gather": ("fsdp", "missing", "no all-gather"),
    "a full all-reduce for a scatter": ("zero1", "unplanned", "where reduce-scatter was planned"),
    "an exchange": ("fsdp", "unplanned", "all-to-all"),
    "whole blocks across hosts": ("hsdp", "bytes", "whole arrays instead of shards"),
    "one reduction a microbatch": ("ddp", "bytes", "all-reduce over data"),
    "a leaf in pieces": ("ddp", "count", "in 2 pieces"),
    "float32 gathers": ("fsdp", "width", "4 bytes an element instead of 2"),
    "a loop of unknown length": ("fsdp", "unknown", "cannot be counted"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_named(fault: str) -> None:
    name, problem, words = FAULTS[fault]
    steps = planned(name, compute_dtype_bytes=2)
    found = [as_found(one) for one in steps]
    if fault == "a gather saved instead of repeated":
        found = [as_found(one, count=one.count // 2 if one.repeated else one.count) for one in steps]
    elif fault == "no gather":
        found = [one for one in found if one.kind != "all-gather"]
    elif fault == "a full all-reduce for a scatter":
        found = [dataclasses.replace(f, kind=f.kind.replace("reduce-scatter", "all-reduce")) for f in found]
    elif fault == "an exchange":
        found.append(dataclasses.replace(found[0], kind="all-to-all", op_name="jit(step)/block/transpose"))
    elif fault == "whole blocks across hosts":
        found = [dataclasses.replace(f, bytes=4 * f.bytes if f.kind == "all-reduce" else f.bytes) for f in found]
    elif fault == "one reduction a microbatch":
        found = [dataclasses.replace(f, count=2) for f in found]
    elif fault == "a leaf in pieces":
        found = [dataclasses.replace(f, count=2, bytes=f.bytes // 2) for f in found]
    elif fault == "float32 gathers":
        wider = {"dtypes": ("f32",)}
        found = [dataclasses.replace(f, **wider, bytes=4 * f.bytes // f.dtype_bytes) for f in found]
    else:
        found = [dataclasses.replace(f, count=None if f.kind == "all-gather" else f.count) for f in found]
    problems = compare(steps, found)
    matching = [one for one in problems if one.problem == problem and words in one.message]
    assert matching, problems
    if problem not in ("unknown", "unplanned"):
        assert matching[0].leaves


@pytest.mark.parametrize("name", ["zero1", "fsdp", "hsdp"])
def test_whole_sums_that_the_compiler_makes_of_scatters_are_told_apart_from_faults(name: str) -> None:
    """Only while they explain all that is summed: one more, or one less, and the program leaves the plan."""
    steps = planned(name)
    found = [as_found(one) for one in steps]
    scatters = [one for one in found if one.kind == "reduce-scatter"]
    rest = [one for one in found if one.kind != "reduce-scatter"]
    sums = [dataclasses.replace(one, kind="all-reduce", scattered=True) for one in scatters]
    # Combined with others a sum may lose its origin, if most of what is summed has kept it.
    by_size = sorted(sums, key=lambda one: (one.count or 0) * one.bytes)
    small, largest = by_size[0], by_size[-1]
    others = [one for one in sums if one is not largest]
    forgetful = dataclasses.replace(small, scattered=False, operands=2)
    partly = [*(one for one in scatters if one.bytes != largest.bytes), *(o for o in sums if o.bytes == largest.bytes)]
    for made in (sums, [forgetful, *by_size[1:]], partly):
        (problem,) = compare(steps, [*rest, *made])
        assert problem.problem == "rewritten" and problem.leaves
        assert problem.found_bytes == sum((one.count or 0) * one.bytes for one in made if one.kind == "all-reduce")
    wrong = {
        "one more": [*sums, largest],
        "one less": others,
        "a sum of the program's own": [*others, dataclasses.replace(largest, scattered=False)],
        "most of unknown origin": [small, *(dataclasses.replace(o, scattered=False, operands=2) for o in by_size[1:])],
        "in a loop of unknown length": [*others, dataclasses.replace(largest, count=None)],
        "in another width": [dataclasses.replace(one, dtypes=("bf16",), bytes=one.bytes // 2) for one in sums],
    }
    for fault, made in wrong.items():
        assert {"rewritten"} != {one.problem for one in compare(steps, [*rest, *made])}, fault


def test_a_planned_sum_may_have_been_a_scatter() -> None:
    """DDP plans no scatters, so none can be missing."""
    steps = planned("ddp")
    assert compare(steps, [dataclasses.replace(as_found(one), scattered=True) for one in steps]) == []


@given(st.sampled_from(BY_LEAVES), st.data())
def test_any_collective_left_out_or_doubled_is_noticed(name: str, data: st.DataObject) -> None:
    """Whatever is more than 1 % of its kind's volume."""
    steps = planned(name)
    one = data.draw(st.sampled_from(steps))
    same = [other for other in steps if (other.kind, other.groups) == (one.kind, one.groups)]
    if one.bytes * one.count < 0.02 * sum(other.bytes * other.count for other in same):
        return
    found = [as_found(other) for other in steps]
    place = steps.index(one)
    assert compare(steps, found[:place] + found[place + 1 :])
    assert compare(steps, [*found, found[place]])


REAL = [
    *((name, 1, "block") for name in BY_LEAVES),
    ("fsdp", 1, "none"),
    pytest.param("fsdp", 1, "dots", marks=pytest.mark.slow),
    pytest.param("fsdp", 2, "dots", marks=pytest.mark.slow),
    pytest.param("hsdp", 1, "none", marks=pytest.mark.slow),
    pytest.param("hsdp", 1, "dots", marks=pytest.mark.slow),
    pytest.param("hsdp", 2, "block", marks=pytest.mark.slow),
    pytest.param("ddp", 2, "none", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "accumulation", "remat"), REAL)
def test_the_compiled_step_keeps_to_the_plan(name: str, accumulation: int, remat: str) -> None:
    run = real_config(name, accumulation, remat)
    sizes = run.strategy.axis_sizes(8)
    steps = plan(shapes.parameters(run.model), cuts_of(run.strategy, run.model, sizes), sizes, accumulation)
    found = compiled_collectives(name, accumulation, remat)
    assert compare(steps, found) == []
    total = sum((one.count or 0) * moved_bytes(one) for one in found)
    blocks = shapes.block_count(run.model)
    least = minimum_bytes(name, blocks, shapes.count(run.model) - blocks, sizes, accumulation=accumulation)
    assert least <= total <= 1.01 * least
    if name == "ddp":
        assert sum(one.count or 0 for one in found) <= 3
    assert not (name == "zero1" and any(one.kind == "all-reduce" and one.bytes > 64 for one in found))


def test_a_program_of_another_strategy_leaves_the_plan() -> None:
    run = real_config("ddp", 1, "block")
    sizes = run.strategy.axis_sizes(8)
    found = compiled_collectives("ddp", 1, "block")
    cut = StrategyConfig.model_validate({"name": "fsdp", "min_shard_bytes": 0})
    steps = plan(shapes.parameters(run.model), cuts_of(cut, run.model, sizes), sizes)
    problems = {(one.problem, one.kind) for one in compare(steps, found)}
    assert problems == {("unplanned", "all-reduce"), ("missing", "all-gather"), ("missing", "reduce-scatter")}


@functools.cache
def compiled_collectives(name: str, accumulation: int, remat: str) -> list[Collective]:
    return collectives(compile_step(real_config(name, accumulation, remat), jax.devices()[:8]).as_text())


def real_config(name: str, accumulation: int, remat: str) -> Config:
    return config.build(
        {
            "model": MODEL.model_dump(exclude_none=True),
            "strategy": {"name": name, "min_shard_bytes": 0},
            "train": {"accumulation": accumulation, "remat": remat, "global_batch": 16},
        }
    )


def test_model_of_these_tests_is_divided_by_eight_devices() -> None:
    assert all(any(dim % 8 == 0 for dim in leaf.shape) for leaf in shapes.parameters(MODEL))
    assert math.prod(StrategyConfig(name="hsdp").axis_sizes(8).values()) == 8
