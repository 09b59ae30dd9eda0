"""The reader of compiled programs: every spelling by hand, and real programs whose collectives are known."""

import itertools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxdp.errors import JaxdpError
from jaxdp.hlo.collectives import Collective, collectives
from jaxdp.hlo.flops import Flops, flops
from jaxdp.hlo.replica_groups import axis_groups, parse_groups
from jaxdp.hlo.text import arrays, components, dtype_bits, parse

P = PartitionSpec
WHOLE = P()
EVERYONE = (tuple(range(8)),)


def module(*entry: str, others: str = "", header: str = "num_partitions=8") -> str:
    body = "\n".join(f"  {line}" for line in entry)
    return f"HloModule m, is_scheduled=true, {header}\n\n{others}\nENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n"


def only(text: str) -> Collective:
    (found,) = collectives(text)
    return found


# --- which devices take part

ALL8 = "use_global_device_ids=true, channel_id=1"


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("{{0,4,1,5},{2,6,3,7}}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("{}", EVERYONE),
        ("[1,8]<=[8]", EVERYONE),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['axis_0'=8] {'axis_0'}", EVERYONE),
        ("mesh['host'=2,'data'=4] {'data'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['host'=2,'data'=4] {'host'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", ((0, 4, 1, 5), (2, 6, 3, 7))),
        ("mesh['d'=8] {'d':(1)4}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['d'=8] {'d':(4)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['d'=8] {'d':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['a'=2,'b'=4,'c'=1], device_ids=([2,2,2]T(0,2,1)) {'b':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=2,'b'=4], device_ids=(7,6,5,4,3,2,1,0) {'b'}", ((7, 6, 5, 4), (3, 2, 1, 0))),
    ],
)
def test_every_spelling_of_groups(spelling: str, expected: tuple) -> None:
    line = f"ROOT %r = f32[8]{{0}} all-reduce(%x), channel_id=1, replica_groups={spelling}, use_global_device_ids=true"
    found = only(module(f"{line}, to_apply=%add"))
    assert found.groups == expected
    assert found.group_size == len(expected[0])


def test_an_unknown_spelling_is_unknown_and_not_guessed() -> None:
    for spelling in ("[4,2]<=[9]", "mesh['a'=8] {'a':(3)2}", "mesh['a'=2], device_ids=(0,0) {'a'}", "torus(2,4)"):
        assert parse_groups(spelling) is None
    found = only(module("ROOT %r = f32[8]{0} all-reduce(%x), replica_groups=torus(2,4), to_apply=%add"))
    assert found.groups is None and found.group_size == 8


@pytest.mark.parametrize(
    ("attributes", "header", "expected"),
    [
        # Replica ids without a channel; every partition by itself.
        ("replica_groups={{0,1}}", "replica_count=2, num_partitions=2", ((0, 2), (1, 3))),
        ("replica_groups={}", "replica_count=4", ((0, 1, 2, 3),)),
        # A channel without global ids: replicas with all their partitions.
        ("channel_id=1, replica_groups={{0}}", "num_partitions=4", ((0, 1, 2, 3),)),
        ("channel_id=1, replica_groups={{0},{1}}", "replica_count=2, num_partitions=2", ((0, 1), (2, 3))),
    ],
)
def test_ids_count_replicas_or_devices_as_the_channel_says(attributes: str, header: str, expected: tuple) -> None:
    text = module(f"ROOT %r = f32[8]{{0}} all-reduce(%x), {attributes}, to_apply=%add", header=header)
    assert only(text).groups == expected


@st.composite
def transposed_iotas(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    dims = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(dims))))
    size = draw(st.sampled_from([d for d in range(1, math.prod(dims) + 1) if math.prod(dims) % d == 0]))
    return dims, list(order), size


@given(transposed_iotas())
def test_iota_groups_are_those_of_numpy_and_partition_the_devices(case: tuple[list[int], list[int], int]) -> None:
    dims, order, size = case
    n = math.prod(dims)
    groups = parse_groups(f"[{n // size},{size}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})")
    assert groups is not None
    assert [list(group) for group in groups] == np.arange(n).reshape(dims).transpose(order).reshape(-1, size).tolist()
    assert sorted(itertools.chain(*groups)) == list(range(n))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_mesh_groups_vary_along_their_axes_only(sizes: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    mesh = ",".join(f"'a{axis}'={size}" for axis, size in enumerate(sizes))
    along = ",".join(f"'a{axis}'" for axis in axes)
    groups = parse_groups(f"mesh[{mesh}] {{{along}}}")
    assert groups == axis_groups(sizes, axes)
    assert groups is not None and sorted(itertools.chain(*groups)) == list(range(math.prod(sizes)))
    for group in groups:
        places = [np.unravel_index(device, sizes) for device in group]
        fixed = {tuple(place[axis] for axis in range(len(sizes)) if axis not in axes) for place in places}
        assert len(fixed) == 1
        assert places == sorted(places, key=lambda place: tuple(place[axis] for axis in axes))


# --- how much

GROUPS = "channel_id=1, replica_groups=[2,4]<=[8], use_global_device_ids=true"


@pytest.mark.parametrize(
    ("line", "kind", "size", "operands"),
    [
        ("f32[8,4]{1,0} all-reduce(%x), GROUPS, to_apply=%add", "all-reduce", 128, 1),
        ("bf16[3]{0} all-reduce(%x), GROUPS, to_apply=%add", "all-reduce", 6, 1),
        ("(f32[8]{0}, bf16[4]{0}, /*index=2*/f32[]) all-reduce(%x, %y, /*index=2*/%z), GROUPS", "all-reduce", 44, 3),
        ("(f32[8]{0}, f32[2]{0}) all-reduce-start(%x, %y), GROUPS, to_apply=%add", "all-reduce", 40, 2),
        ("f32[8,4]{1,0} all-gather(%x), GROUPS, dimensions={0}", "all-gather", 128, 1),
        ("(f32[2]{0}, f32[8]{0}) all-gather-start(%x), GROUPS, dimensions={0}", "all-gather", 32, 1),
        (
            "((f32[2]{0}, bf16[2]{0}), (f32[8]{0}, bf16[8]{0})) all-gather-start(%x, %y), GROUPS, dimensions={0}",
            "all-gather",
            48,
            2,
        ),
        ("f32[2,4]{1,0} reduce-scatter(%x), GROUPS, dimensions={0}, to_apply=%add", "reduce-scatter", 128, 1),
        ("((f32[8]{0}), f32[2]{0}) reduce-scatter-start(%x), GROUPS, to_apply=%add", "reduce-scatter", 32, 1),
        ("(f32[2]{0}, f32[2]{0}, f32[2]{0}, f32[2]{0}) all-to-all(%a, %b, %c, %d), GROUPS", "all-to-all", 32, 4),
        ("f32[8]{0:T(256)} all-to-all(%a), GROUPS, dimensions={0}", "all-to-all", 32, 1),
        (
            "(f32[8]{0:T(8,128)}, f32[8]{0:T(8,128)S(1)}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), "
            "channel_id=1, source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            32,
            1,
        ),
        ("f32[8]{0} collective-broadcast(%x), channel_id=1, replica_groups={{0,1}}", "collective-broadcast", 32, 1),
    ],
)
def test_bytes_are_the_whole_array(line: str, kind: str, size: int, operands: int) -> None:
    started = "-start(" in line
    done = f"ROOT %d = f32[8]{{0}} {kind}-done(%r)" if started else "ROOT %d = f32[8]{0} copy(%r)"
    found = only(module("%x = f32[2]{0} parameter(0)", f"%r = {line.replace('GROUPS', GROUPS)}", done))
    assert (found.kind, found.bytes, found.operands, found.count) == (kind, size, operands, 1)


@pytest.mark.parametrize(
    ("dtype", "bits"), [("pred", 8), ("bf16", 16), ("f8e4m3fn", 8), ("s4", 4), ("u64", 64), ("c64", 64), ("token", 0)]
)
def test_dtype_bits(dtype: str, bits: int) -> None:
    assert dtype_bits(dtype) == bits


def test_a_narrow_element_still_has_a_width() -> None:
    found = only(module(f"ROOT %r = s4[64]{{0}} all-gather(%x), {GROUPS}, dimensions={{0}}"))
    assert (found.bytes, found.dtype_bytes) == (32, 1)


def test_shapes_with_layouts_comments_and_nesting() -> None:
    shape = "((s32[], bf16[8,128]{1,0:T(8,128)(2,1)S(1)}), /*index=1*/pred[<=7]{0}, token[])"
    assert [array.dims for array in arrays(shape)] == [(), (8, 128), (7,), ()]
    assert len(components(shape)) == 3
    assert arrays("s4[3]{0:E(4)}")[0].bytes == 2


# --- how often

LOOPED = """%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  ROOT %s = f32[] add(%a, %a)
}}

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]{{0}}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[8]{{0}} get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %next = s32[] add(%i, %two)
  %r = f32[8]{{0}} all-reduce(%v), channel_id=1, replica_groups={{}}, use_global_device_ids=true, to_apply=%add
  ROOT %t = (s32[], f32[8]{{0}}) tuple(%next, %r)
}}

%cond (q: (s32[], f32[8])) -> pred[] {{
  %q = (s32[], f32[8]{{0}}) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %limit = s32[] constant({limit})
  ROOT %less = pred[] compare(%j, %limit), direction={direction}
}}
"""
LOOP = (
    "%start = s32[] constant(1)",
    "%copied = s32[] copy(%start)",
    "%x = f32[8]{0} parameter(0)",
    "%state = (s32[], f32[8]{0}) tuple(%copied, %x)",
    "ROOT %w = (s32[], f32[8]{0}) while(%state), condition=%cond, body=%body",
)


@pytest.mark.parametrize(("limit", "trips"), [(7, 3), (8, 4), (1, 0), (0, 0)])
def test_trips_follow_from_a_counter_of_constants(limit: int, trips: int) -> None:
    assert only(module(*LOOP, others=LOOPED.format(limit=limit, direction="LT"))).count == trips


def test_noted_trips_win_and_unknown_ones_stay_unknown() -> None:
    others = LOOPED.format(limit=7, direction="NE")
    assert only(module(*LOOP, others=others)).count is None
    noted = LOOP[-1] + ', backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}'
    assert only(module(*LOOP[:-1], noted, others=others)).count == 5
    quoted = LOOP[-1] + r', backend_config="{\"known_trip_count\":{\"n\":\"6\"}}"'
    assert only(module(*LOOP[:-1], quoted, others=others)).count == 6


def test_an_async_call_counts_what_it_wraps_once() -> None:
    others = """%wrapped (a: f32[8]) -> f32[1] {
  %a = f32[8]{0} parameter(0)
  ROOT %rs = f32[1]{0} reduce-scatter(%a), channel_id=3, replica_groups=[1,8]<=[8], use_global_device_ids=true
}
"""
    found = only(
        module(
            "%x = f32[8]{0} parameter(0)",
            "%s = ((f32[8]{0}), f32[1]{0}, u32[]) async-start(%x), calls=%wrapped",
            "ROOT %d = f32[1]{0} async-done(%s), calls=%wrapped",
            others=others,
        )
    )
    assert (found.kind, found.count, found.bytes) == ("reduce-scatter", 1, 32)


def test_overlapped_copies_of_a_gather_on_tpu_count_once() -> None:
    gather = "f32[8]{0} all-gather(%p), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true"

    def fused(name: str, chain: int, after: str) -> str:
        line = f'%g.{name} = {gather}, dimensions={{0}}, frontend_attributes={{chain_id="{chain}"}}'
        return f"%{name} (p: f32[1]) -> f32[8] {{\n  %p = f32[1]{{0}} parameter(0)\n  {line}\n  {after}\n}}\n"

    start = '(f32[1]{0}, f32[8]{0}, u32[]{:S(2)}) custom-call(%g), custom_call_target="AsyncCollectiveStart"'
    done = 'f32[8]{0} custom-call(%g), custom_call_target="AsyncCollectiveDone"'
    others = "".join(
        fused(f"{name}{chain}", chain, f"ROOT %e.{name}{chain} = {after}")
        for chain in (0, 1)
        for name, after in (("start", start), ("async_collective_fusion.", "f32[8]{0} copy(%p)"), ("done", done))
    )
    names = [f"{name}{chain}" for chain in (0, 1) for name in ("start", "async_collective_fusion.", "done")]
    calls = [f"%c.{name} = f32[8]{{0}} fusion(%x), kind=kCustom, calls=%{name}" for name in names]
    entry = ("%x = f32[1]{0} parameter(0)", *calls, f"ROOT %last = {gather.replace('%p', '%x')}")
    found = collectives(module(*entry, others=others))
    assert [one.name for one in found] == ["g.start0", "g.start1", "last"]


SUM_OF_A_SCATTER = """%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0), metadata={op_name="transpose(jvp())/reduce_scatter"}
  %b = f32[] parameter(1), metadata={op_name="transpose(jvp())/reduce_scatter"}
  ROOT %c = f32[] add(%a, %b), metadata={op_name="transpose(jvp())/add"}
}
"""


def test_tpus_fused_scatter_is_one_and_its_padding_is_not_counted() -> None:
    others = f"""{SUM_OF_A_SCATTER}
%all-reduce-scatter.1 (input: f32[30,4]) -> f32[4,4] {{
  %input = f32[30,4]{{1,0:T(8,128)}} parameter(0)
  %zero = f32[] constant(0)
  %pad = f32[32,4]{{1,0:T(8,128)}} pad(%input, %zero), padding=0_2x0_0
  %sums = f32[32,4]{{1,0:T(8,128)}} all-reduce(%pad), {ALL8}, replica_groups={{}}, to_apply=%sum
  %start = u32[] partition-id()
  ROOT %mine = f32[4,4]{{1,0:T(8,128)S(1)}} dynamic-slice(%sums, %start, %zero), dynamic_slice_sizes={{4,4}}
}}
"""
    found = only(module("ROOT %r = f32[4,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1", others=others))
    assert (found.kind, found.bytes, found.count, found.group_size) == ("reduce-scatter", 30 * 4 * 4, 1, 8)
    assert found.where == "backward: reduce_scatter" and not found.scattered


@pytest.mark.parametrize("start", ["", "-start"])
def test_a_whole_sum_made_of_a_scatter_keeps_its_origin(start: str) -> None:
    """What it moves is an all-reduce; that JAX asked for a scatter is written in the computation that adds."""
    line = f"ROOT %r = f32[32]{{0}} all-reduce{start}(%x), {GROUPS}, to_apply=%sum"
    found = only(module(line, others=SUM_OF_A_SCATTER))
    assert (found.kind, found.bytes, found.scattered) == ("all-reduce", 128, True)
    assert not only(module(line.replace("%sum", "%add"))).scattered


def test_a_users_scope_is_not_taken_for_an_attribute() -> None:
    hostile = 'metadata={op_name="jit(f)/replica_groups={{0}}, channel_id=9/calls=%x \\"}/psum" stack_frame_id=1}'
    found = only(module(f"ROOT %r = f32[8]{{0}} all-reduce(%x), {GROUPS}, to_apply=%add, {hostile}"))
    assert found.group_size == 4
    assert found.op_name.endswith('"}/psum')


@pytest.mark.parametrize("text", ["", "stablehlo.module", "HloModule m\n\nENTRY %main (x: f32[]) -> f32[] {\n"])
def test_what_is_no_compiled_program_is_refused(text: str) -> None:
    with pytest.raises(JaxdpError, match="compiled program"):
        parse(text)


def test_a_call_of_what_the_text_lacks_is_refused() -> None:
    with pytest.raises(JaxdpError, match=r"%?gone"):
        collectives(module("ROOT %r = f32[8]{0} call(%x), to_apply=%gone"))


# --- real programs of the running jax

MESHES = {"flat": ((8,), ("data",)), "two": ((2, 4), ("host", "data"))}


def compiled(fn, *shapes, mesh: str = "flat", specs=None, out=WHOLE) -> str:
    sizes, names = MESHES[mesh]
    grid = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    specs = specs or (WHOLE,) * len(shapes)
    mapped = jax.shard_map(fn, mesh=grid, in_specs=specs, out_specs=out, check_vma=False)
    arguments = [
        jax.tree.map(
            lambda s, p: jax.ShapeDtypeStruct(s, jnp.float32, sharding=NamedSharding(grid, p)),
            shape,
            spec,
            is_leaf=lambda leaf: isinstance(leaf, tuple),
        )
        for shape, spec in zip(shapes, specs, strict=True)
    ]
    return jax.jit(mapped).lower(*arguments).compile().as_text() or ""


def counted(text: str) -> Counter:
    """(kind, group size, bytes) -> runs, scalars left out."""
    counts: Counter = Counter()
    for one in collectives(text):
        if one.bytes > 64:
            assert one.count is not None
            counts[one.kind, one.group_size, one.bytes] += one.count
    return counts


def test_nested_scans_multiply() -> None:
    def fn(x):
        def inner(c, _):
            return jax.lax.psum(c * 0.5, "data"), None

        def outer(c, _):
            return jax.lax.psum(jax.lax.scan(inner, c, None, length=3)[0], "host"), None

        return jax.lax.scan(outer, x, None, length=5)[0]

    found = counted(compiled(fn, (64, 4), mesh="two"))
    assert found == {("all-reduce", 4, 1024): 15, ("all-reduce", 2, 1024): 5}


def test_gathers_in_a_rematerialised_body() -> None:
    def fn(weights, x):
        def loss(weights):
            @jax.checkpoint
            def body(h, layer):
                with jax.named_scope("block"):
                    w = jax.lax.all_gather(layer, "data", axis=1, tiled=True)
                    return h + jnp.tanh(jnp.tanh(h @ w) @ w.T), None

            return (jax.lax.scan(body, x, weights)[0] ** 2).sum()

        return jax.grad(loss)(weights)

    cut = P(None, None, "data")
    for mesh, size in (("flat", 8), ("two", 4)):
        text = compiled(fn, (6, 16, 64), (4, 16), mesh=mesh, specs=(cut, P()), out=cut)
        whole = 16 * 64 * 4
        assert counted(text) == {("all-gather", size, whole): 12, ("reduce-scatter", size, whole): 6}
        again = [one for one in collectives(text) if one.where.startswith("backward: recomputed")]
        assert [(one.kind, one.count) for one in again] == [("all-gather", 6)]
        assert all("block" in one.where for one in collectives(text) if one.kind == "all-gather")


def test_a_tuple_is_summed_in_one_collective() -> None:
    text = compiled(lambda x, y: jax.lax.psum((x * 2, y * 3, x.sum()), "data"), (32, 4), (16,))
    found = [one for one in collectives(text) if one.bytes > 64]
    assert sum(one.bytes * (one.count or 0) for one in found) in (512 + 64 + 4, 512 + 64)
    assert found[0].operands >= 2


def test_scatter_exchange_and_permutation() -> None:
    scatter = compiled(lambda x: jax.lax.psum_scatter(x, "data", tiled=True), (64, 4), mesh="two", out=P("data"))
    assert counted(scatter) == {("reduce-scatter", 4, 1024): 1}
    exchange = compiled(lambda x: jax.lax.all_to_all(x, "data", 0, 1, tiled=True), (64, 8), mesh="two", out=WHOLE)
    assert counted(exchange) == {("all-to-all", 4, 2048): 1}
    ring = [(i, (i + 1) % 8) for i in range(8)]
    found = only(compiled(lambda x: jax.lax.ppermute(x, "data", ring), (64,), out=WHOLE))
    assert (found.kind, found.bytes, found.groups) == ("collective-permute", 256, tuple(ring))


def test_of_branches_the_largest_counts_and_says_so() -> None:
    def fn(index, x):
        def twice(x):
            return jax.lax.psum(jax.lax.psum(x, "data") * 2, "data")

        return jax.lax.switch(index[0].astype(int), [lambda x: jax.lax.psum(x, "data"), twice, lambda x: x], x)

    found = [one for one in collectives(compiled(fn, (1,), (64,))) if one.bytes > 64]
    assert sum(one.count or 0 for one in found) == 2
    assert {one.assumption for one in found} == {"the largest of 3 branches"}


def test_a_switch_on_the_loops_counter_takes_each_branch_once() -> None:
    """Branch i sums i+1 times, so that a loop over three blocks sums 1+2+3 times, not 3 times the largest."""

    def branch(times):
        def sums(x):
            for _ in range(times):
                x = jax.lax.psum(x, "data") * 0.1
            return x

        return sums

    def fn(x):
        def body(c, index):
            return jax.lax.switch(index, [branch(1), branch(2), branch(3)], c), None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    found = [one for one in collectives(compiled(fn, (64,))) if one.bytes > 64]
    assert sum(one.count or 0 for one in found) == 6
    assert {one.assumption for one in found} == {"each of 3 branches once in 3 iterations"}


def test_a_loop_until_convergence_has_no_count() -> None:
    def fn(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) > 1.0, lambda x: jax.lax.psum(x, "data") * 0.01, x)

    (found,) = [one for one in collectives(compiled(fn, (64,))) if one.bytes > 64]
    assert found.count is None


# --- FLOPs


def lowered(fn, *shapes) -> str:
    return jax.jit(fn).lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).compile().as_text() or ""


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        (lambda a, b: a @ b, ((64, 128), (128, 32)), 2 * 64 * 128 * 32),
        (lambda a, b: jnp.einsum("bij,bkj->bik", a, b), ((3, 16, 64), (3, 8, 64)), 2 * 3 * 16 * 64 * 8),
        (lambda a, b: jnp.einsum("abij,abjk->ik", a, b), ((2, 3, 16, 8), (2, 3, 8, 32)), 2 * 6 * 16 * 8 * 32),
        (
            lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID"),
            ((2, 3, 10, 10), (5, 3, 3, 3)),
            2 * 2 * 5 * 8 * 8 * 3 * 9,
        ),
    ],
)
def test_flops_of_a_product(fn, shapes, expected: int) -> None:
    assert flops(lowered(fn, *shapes)) == Flops(expected, ())


def test_flops_of_a_scan_count_every_layer() -> None:
    def loss(weights, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0].sum()

    forward = 2 * 8 * 64 * 64
    assert flops(lowered(loss, (5, 64, 64), (8, 64))).total == 5 * forward
    # Backward: the weights' gradient every layer, the input's in all but the first at the least.
    both = flops(lowered(jax.grad(loss), (5, 64, 64), (8, 64))).total
    assert 5 * forward * 3 - forward <= both <= 5 * forward * 3


def products(line: str, *parameters: str) -> int:
    operands = [f"%p{i} = {shape} parameter({i})" for i, shape in enumerate(parameters)]
    found = flops(module(*operands, f"ROOT %r = {line}"))
    assert not found.unknown
    return found.total


@settings(max_examples=60, deadline=None)
@given(
    image=st.integers(1, 7),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    low=st.integers(-2, 4),
    high=st.integers(-2, 4),
    spread=st.integers(1, 4),
    kernel_spread=st.integers(1, 3),
)
def test_convolutions_count_real_input_only(
    image: int, kernel: int, stride: int, low: int, high: int, spread: int, kernel_spread: int
) -> None:
    line = [False] * low if low > 0 else []
    line += [place % spread == 0 for place in range((image - 1) * spread + 1)]
    line += [False] * max(high, 0)
    line = line[max(-low, 0) : len(line) - max(-high, 0)]
    width = (kernel - 1) * kernel_spread + 1
    out = (len(line) - width) // stride + 1 if len(line) >= width else 0
    expected = sum(line[o * stride + k * kernel_spread] for o in range(out) for k in range(kernel))
    window = f"{{size={kernel} stride={stride} pad={low}_{high} lhs_dilate={spread} rhs_dilate={kernel_spread}}}"
    shapes = (f"f32[2,{image},3]{{2,1,0}}", f"f32[{kernel},3,5]{{2,1,0}}")
    text = f"f32[2,{out},5]{{2,1,0}} convolution(%p0, %p1), window={window}, dim_labels=b0f_0io->b0f"
    assert products(text, *shapes) == 2 * expected * 2 * 3 * 5


def test_a_batched_product_as_tpu_writes_it() -> None:
    """Batch 4 as a spatial dim, dilated so that each output meets its own input alone."""
    line = "f32[4,16,24]{2,1,0} convolution(%p0, %p1), window={size=4 stride=3 lhs_dilate=4}, dim_labels=0bf_0io->0bf"
    assert products(line, "f32[4,16,32]{2,1,0}", "f32[4,32,24]{2,1,0}") == 2 * 4 * 16 * 32 * 24


def test_library_calls_are_counted_or_named() -> None:
    matmul = (
        '(bf16[64,32]{1,0}, s8[4096]{0}) custom-call(%p0, %p1), custom_call_target="__cublas$lt$matmul", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]}}}'
    )
    assert products(matmul, "bf16[64,128]{1,0}", "bf16[128,32]{1,0}") == 2 * 64 * 128 * 32

    def attention(target: str, mask: str) -> int:
        config = f'{{"intermediate_tensor_shape":{{"dimensions":["2","4","512","512"]}},"mask_type":"{mask}"}}'
        line = f'(bf16[2,512,4,64]{{3,2,1,0}}, u8[0]) custom-call(%p0, %p0, %p0), custom_call_target="{target}"'
        line += f', backend_config={{"cudnn_fmha_backend_config":{config}}}'
        return products(line, "bf16[2,512,4,64]{3,2,1,0}")

    scores = 2 * 2 * 4 * 512 * 512 * 64
    assert attention("__cudnn$fmhaSoftmax", "NO_MASK") == 2 * scores
    assert attention("__cudnn$fmhaSoftmax", "CAUSAL") == scores
    assert attention("__cudnn$fmhaSoftmaxBackward", "NO_MASK") == 5 * scores

    unknown = 'f32[8]{0} custom-call(%x), custom_call_target="__onednn$matmul", metadata={op_name="f/dot"}'
    assert flops(module("%x = f32[8]{0} parameter(0)", f"ROOT %r = {unknown}")).unknown == ("f/dot",)
    harmless = 'f32[8]{0} custom-call(%x), custom_call_target="AllocateBuffer"'
    assert flops(module("%x = f32[8]{0} parameter(0)", f"ROOT %r = {harmless}")).unknown == ()
