"""Reading a scheduled program, and playing it: what overlaps, what shows, and what a kernel moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.errors import JaxdpError
from jaxdp.hlo.collectives import Collective
from jaxdp.hlo.schedule import Await, Begin, Kernel, Loop, Operation, kernels, schedule
from jaxdp.predict.played import KernelRates, play

# A loop of 3: the gather of a weight is started, a product runs meanwhile, the gathered weight is used after it.
# The product's fusion reads one layer of a stack; another fusion writes one layer into a stack in place.
TEXT = """\
HloModule jit_step, is_scheduled=true, num_partitions=4

%fused_product (stack: f32[3,8,16], layer: s32[], x: f32[32,8]) -> f32[32,16] {
  %stack = f32[3,8,16]{2,1,0} parameter(0)
  %layer = s32[] parameter(1)
  %x = f32[32,8]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %slice = f32[1,8,16]{2,1,0} dynamic-slice(%stack, %layer, %zero, %zero), dynamic_slice_sizes={1,8,16}
  %weight = f32[8,16]{1,0} bitcast(%slice)
  ROOT %dot = f32[32,16]{1,0} dot(%x, %weight), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused_save (saved: f32[3,32,16], layer.1: s32[], value: f32[32,16]) -> f32[3,32,16] {
  %saved = f32[3,32,16]{2,1,0} parameter(0)
  %layer.1 = s32[] parameter(1)
  %value = f32[32,16]{1,0} parameter(2)
  %row = f32[1,32,16]{2,1,0} bitcast(%value)
  %zero.1 = s32[] constant(0)
  ROOT %update = f32[3,32,16]{2,1,0} dynamic-update-slice(%saved, %row, %layer.1, %zero.1, %zero.1)
}

%body (state: (s32[], f32[3,8,16], f32[32,8], f32[3,32,16], f32[2,16])) -> (s32[], f32[3,8,16], f32[32,8], f32[3,32,16], f32[2,16]) {
  %state = (s32[], f32[3,8,16]{2,1,0}, f32[32,8]{1,0}, f32[3,32,16]{2,1,0}, f32[2,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %w = f32[3,8,16]{2,1,0} get-tuple-element(%state), index=1
  %a = f32[32,8]{1,0} get-tuple-element(%state), index=2
  %s = f32[3,32,16]{2,1,0} get-tuple-element(%state), index=3
  %shard = f32[2,16]{1,0} get-tuple-element(%state), index=4
  %gather = (f32[2,16]{1,0}, f32[8,16]{1,0}) all-gather-start(%shard), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  %product = f32[32,16]{1,0} fusion(%w, %i, %a), kind=kCustom, calls=%fused_product
  %whole = f32[8,16]{1,0} all-gather-done(%gather)
  %kept = f32[3,32,16]{2,1,0} fusion(%s, %i, %product), kind=kLoop, calls=%fused_save
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[3,8,16]{2,1,0}, f32[32,8]{1,0}, f32[3,32,16]{2,1,0}, f32[2,16]{1,0}) tuple(%next, %w, %a, %kept, %shard)
}

%condition (state.1: (s32[], f32[3,8,16], f32[32,8], f32[3,32,16], f32[2,16])) -> pred[] {
  %state.1 = (s32[], f32[3,8,16]{2,1,0}, f32[32,8]{1,0}, f32[3,32,16]{2,1,0}, f32[2,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%i.1, %three), direction=LT
}

%sum (x.1: f32[], y.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0)
  %y.1 = f32[] parameter(1)
  ROOT %added = f32[] add(%x.1, %y.1)
}

ENTRY %main (start: (s32[], f32[3,8,16], f32[32,8], f32[3,32,16], f32[2,16])) -> f32[3,32,16] {
  %start = (s32[], f32[3,8,16]{2,1,0}, f32[32,8]{1,0}, f32[3,32,16]{2,1,0}, f32[2,16]{1,0}) parameter(0)
  %loop = (s32[], f32[3,8,16]{2,1,0}, f32[32,8]{1,0}, f32[3,32,16]{2,1,0}, f32[2,16]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %stacked = f32[3,32,16]{2,1,0} get-tuple-element(%loop), index=3
  ROOT %reduced = f32[3,32,16]{2,1,0} all-reduce(%stacked), channel_id=2, replica_groups={{0,1,2,3}}, to_apply=%sum
}
"""  # noqa: E501
PRODUCT_FLOPS = 2 * 32 * 8 * 16


def loop() -> Loop:
    (found,) = [operation for operation in schedule(TEXT) if isinstance(operation, Loop)]
    return found


def test_a_scheduled_program_is_read_in_order() -> None:
    body = loop().body
    assert loop().trips == 3
    assert [type(operation) for operation in body] == [Begin, Kernel, Await, Kernel, Kernel]
    assert isinstance(body[0], Begin) and body[0].collective.bytes == 8 * 16 * 4
    assert schedule(TEXT)[1:] == (Begin(schedule(TEXT)[1].collective), Await("reduced"))  # type: ignore[union-attr]


def test_a_slice_counts_as_a_slice_and_an_update_in_place_as_the_update() -> None:
    product, kept, _ = (operation for operation in loop().body if isinstance(operation, Kernel))
    assert (product.kind, product.flops) == ("product", PRODUCT_FLOPS)
    assert product.bytes == 4 * (8 * 16 + 1 + 32 * 8 + 32 * 16)  # one layer, its number, the input, the output
    assert kept.bytes == 4 * (32 * 16 + 1 + 32 * 16)  # the value and its number, and the row written
    assert sum(kernel.flops * count for kernel, count in kernels(schedule(TEXT))) == 3 * PRODUCT_FLOPS


def test_a_collective_hides_behind_what_runs_before_it_is_awaited() -> None:
    played = play(schedule(TEXT), lambda kernel: 2.0 if kernel.kind == "product" else 0.0, lambda one: 3.0)
    gather, reduce = played.overlaps
    assert (gather.count, gather.seconds, gather.exposed_s, gather.products_between) == (3, 9.0, 3.0, 3)
    assert (reduce.count, reduce.exposed_s, reduce.products_between) == (1, 3.0, 0)
    assert (played.compute_s, played.step_s) == (6.0, 12.0)


def test_one_collective_follows_another_on_the_link() -> None:
    first, second = collective("first"), collective("second")
    played = play((Begin(first), Begin(second), Await("first"), Await("second")), lambda kernel: 0.0, lambda one: 1.0)
    assert [overlap.exposed_s for overlap in played.overlaps] == [1.0, 1.0]


@pytest.mark.parametrize(
    "change", [("is_scheduled=true, ", ""), ('backend_config={"known_trip_count":{"n":"3"}}', "x=1")]
)
def test_what_cannot_be_played_is_refused(change: tuple[str, str]) -> None:
    text = TEXT.replace(*change).replace("constant(3)", "parameter(1)")
    with pytest.raises(JaxdpError, match=r"not scheduled|length of loop"):
        schedule(text)


def collective(name: str) -> Collective:
    return Collective("all-gather", ("f32",), 64, 4, ((0, 1, 2, 3),), 1, 1, name, "")


@st.composite
def programs(draw: st.DrawFn) -> tuple[Operation, ...]:
    """Kernels and collectives in any order, each collective awaited once, some inside a loop."""
    operations: list[Operation] = []
    for index in range(draw(st.integers(1, 5))):
        kernel = Kernel(f"k{index}", "product", draw(st.integers(0, 9)), draw(st.integers(0, 9)), "")
        part: list[Operation] = [Begin(collective(f"c{index}")), kernel, Await(f"c{index}")]
        order = draw(st.sampled_from(([0, 1, 2], [0, 2, 1], [1, 0, 2])))
        part = [part[place] for place in order]
        operations += [Loop(f"l{index}", draw(st.integers(1, 3)), tuple(part))] if draw(st.booleans()) else part
    return tuple(operations)


@given(programs(), st.floats(0.1, 10), st.floats(0.1, 10))
def test_a_step_lies_between_the_longer_stream_and_their_sum(
    operations: tuple[Operation, ...], flops: float, link_s: float
) -> None:
    rates = KernelRates(product_flops=flops, attention_flops=flops, memory_bandwidth=flops)
    played = play(operations, rates.seconds, lambda one: link_s)
    sent_s = sum(overlap.seconds for overlap in played.overlaps)
    assert max(played.compute_s, sent_s) <= played.step_s * (1 + 1e-9)
    assert played.step_s <= (played.compute_s + sent_s) * (1 + 1e-9)
    assert played.step_s == pytest.approx(played.compute_s + played.exposed_s)
    slower = play(operations, rates.seconds, lambda one: 2 * link_s)
    assert slower.step_s >= played.step_s
