"""Laws of the model, its attention and its loss, against references that share no code with them."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxdp.config import Config, build
from jaxdp.data.batch import Batch
from jaxdp.models import shapes
from jaxdp.models.attention import blocked_attention, choose, cudnn_attention, rotary, xla_attention
from jaxdp.models.attention_form import MAX_BLOCKS, query_blocks
from jaxdp.models.transformer import Dropout, rms_norm
from jaxdp.recipe import cast_unshard, make_recipe
from jaxdp.task import Params, Task
from jaxdp.workload import task_of as task_of_config

SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "ffn": 48, "context": 16, "vocab": 61}
VARIANTS: dict[str, dict[str, Any]] = {
    "gelu tied": {},
    "swiglu untied grouped": {"activation": "swiglu", "tied": False, "kv_heads": 2},
    "one group": {"kv_heads": 1},
}
float32 = cast_unshard(jnp.float32)


def config_of(train: dict[str, Any] | None = None, **model: Any) -> Config:
    return build({"model": {**SMALL, **model}, "train": train or {}})


def task_of(train: dict[str, Any] | None = None, **model: Any) -> Task:
    return task_of_config(config_of(train, **model), "cpu")


def batch_of(sequences: int = 4, length: int = 16, vocab: int = 61, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    tokens = random.integers(0, vocab, (sequences, length + 1)).astype(np.int32)
    weights = np.ones((sequences, length), np.float32)
    return Batch(tokens[:, :-1], tokens[:, 1:], weights, np.arange(sequences, dtype=np.uint32))


@functools.cache
def compiled(task: Task, dtype: Any, train: bool = True) -> Any:
    """(params, batch) -> ((loss sum, tokens), gradients), compiled once for a task."""
    loss = lambda params, batch: task.loss_sum(params, batch, cast_unshard(dtype), train=train)  # noqa: E731
    return jax.jit(jax.value_and_grad(loss, has_aux=True))


def gradients(task: Task, params: Params, batch: Batch, dtype: Any = jnp.float32) -> tuple[float, Params]:
    (total, _), grads = compiled(task, dtype)(params, batch)
    return float(total), grads


def assert_close(found: Params, expected: Params, tolerance: float) -> None:
    """Every leaf within `tolerance` of the largest element of the expected leaf."""
    for path, leaf in jax.tree.leaves_with_path(expected):
        other = found
        for key in path:
            other = other[key.key]
        bound = tolerance * float(jnp.max(jnp.abs(leaf)))
        np.testing.assert_allclose(other, leaf, rtol=0, atol=bound, err_msg=jax.tree_util.keystr(path))


# ---------------------------------------------------------------- a reference in NumPy, in float64


def reference_losses(params: Params, batch: Batch, config: Config) -> np.ndarray:
    """Each token's loss, [B, T], written down a head and a position at a time."""
    model = config.model
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = p["embed"][np.asarray(batch.inputs_BxT)]
    for layer in range(model.layers):
        block = {name: leaf[layer] for name, leaf in p["blocks"].items()}
        x = x + _reference_attention(_norm(x, block["attention_norm"]) @ block["qkv"], model) @ block["attention_out"]
        h = _norm(x, block["mlp_norm"]) @ block["mlp_in"]
        if model.activation == "swiglu":
            gate, up = h[..., : model.ffn], h[..., model.ffn :]
            h = gate / (1 + np.exp(-gate)) * up
        else:
            h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + h @ block["mlp_out"]
    logits = _norm(x, p["final_norm"]) @ (p["embed"].T if model.tied else p["head"])
    logits -= logits.max(-1, keepdims=True)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logp, np.asarray(batch.targets_BxT)[..., None], -1)[..., 0]


def _norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def _reference_attention(qkv: np.ndarray, model: Any) -> np.ndarray:
    heads, groups, width = model.heads, model.key_value_heads, model.head_dim
    out = np.zeros((*qkv.shape[:2], heads * width))
    part = lambda index: qkv[..., index * width : (index + 1) * width]  # noqa: E731
    for head in range(heads):
        group = head // (heads // groups)
        q, k, v = _rotate(part(head)), _rotate(part(heads + group)), part(heads + groups + group)
        for t in range(qkv.shape[1]):
            scores = np.einsum("bk,bsk->bs", q[:, t], k[:, : t + 1]) / math.sqrt(width)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            out[:, t, head * width : (head + 1) * width] = np.einsum("bs,bsk->bk", probs, v[:, : t + 1])
    return out


def _rotate(x: np.ndarray) -> np.ndarray:
    """Rotary positions as multiplication of complex numbers."""
    half = x.shape[-1] // 2
    turns = np.arange(x.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * turns)
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_the_loss_is_the_references(variant: dict[str, Any]) -> None:
    config, batch = config_of(**variant), batch_of()
    task = task_of_config(config, "cpu")
    # Larger weights than a fresh model's, so that attention is far from uniform.
    params = jax.tree.map(lambda leaf: 5 * leaf, task.init_params(jax.random.key(0)))
    weights = np.random.default_rng(1).integers(0, 2, batch.weights_BxT.shape).astype(np.float32)
    total, tokens = jax.jit(lambda p: task.loss_sum(p, batch._replace(weights_BxT=weights), float32))(params)
    expected = (reference_losses(params, batch, config) * weights).sum()
    np.testing.assert_allclose(float(total), expected, rtol=2e-5)
    assert float(tokens) == weights.sum()


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_shapes_are_those_of_the_real_model(variant: dict[str, Any]) -> None:
    config = config_of(**variant)
    params = jax.eval_shape(task_of_config(config, "cpu").init_params, jax.random.key(0))
    leaves = jax.tree.leaves_with_path(params)
    found = {jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape for path, leaf in leaves}
    assert found == {parameter.path: parameter.shape for parameter in shapes.parameters(config.model)}
    assert all(leaf.dtype == jnp.float32 for _, leaf in leaves)


# ---------------------------------------------------------------- causality, padding, remat, dtype


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_no_token_sees_the_future(kv_heads: int) -> None:
    """Position t's loss has a gradient for the embeddings of the inputs up to t, for all of those, no other."""
    length = 8
    task = task_of(vocab=length, tied=False, kv_heads=kv_heads)
    params = jax.tree.map(lambda leaf: 5 * leaf, task.init_params(jax.random.key(0)))
    tokens = np.arange(length, dtype=np.int32)[None]  # each position has a row of the embedding of its own

    @jax.jit
    def embedding_gradient(weights: jax.Array) -> jax.Array:
        batch = Batch(tokens, np.zeros_like(tokens), weights, np.zeros(1, np.uint32))
        return jax.grad(lambda p: task.loss_sum(p, batch, float32)[0])(params)["embed"]

    for t in range(length):
        rows = np.abs(np.asarray(embedding_gradient(jax.nn.one_hot(jnp.array([t]), length)))).max(-1)
        assert (rows[: t + 1] > 0).all() and (rows[t + 1 :] == 0).all(), (t, rows)


def test_padding_has_no_gradient_and_counts_no_token() -> None:
    task, batch = task_of(), batch_of()
    params = task.init_params(jax.random.key(0))
    weights = batch.weights_BxT.copy()
    weights[2:] = 0
    padded = batch._replace(weights_BxT=weights)
    rest = jax.tree.map(lambda leaf: leaf[:2], batch)
    total, grads = gradients(task, params, padded)
    expected_total, expected = gradients(task, params, rest)
    assert total == pytest.approx(expected_total, rel=1e-6)
    assert_close(grads, expected, 1e-5)
    nothing = batch._replace(weights_BxT=np.zeros_like(weights))
    total, grads = gradients(task, params, nothing)
    assert total == 0 and all(not np.any(leaf) for leaf in jax.tree.leaves(grads))


def test_remat_policies_have_equal_gradients() -> None:
    batch = batch_of()
    tasks = [task_of({"remat": remat}, dropout=0.3) for remat in ("none", "dots", "block")]
    params = tasks[0].init_params(jax.random.key(0))
    (total, expected), *others = [gradients(task, params, batch) for task in tasks]
    for other_total, grads in others:
        assert other_total == pytest.approx(total, rel=1e-6)
        assert_close(grads, expected, 1e-5)


@pytest.mark.parametrize("remat", ["none", "dots", "block"])
def test_no_policy_saves_gathered_parameters(remat: str) -> None:
    """With tiny activations the temporaries of a sharded step stay below one copy of all blocks."""
    devices = 8
    model: dict[str, Any] = {"layers": 8, "width": 128, "ffn": 512, "context": 4, "vocab": 64}
    task = task_of_config(build({"model": model, "train": {"remat": remat}}), "cpu")
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    params = jax.eval_shape(task.init_params, jax.random.key(0))
    specs = jax.tree.map(lambda leaf: PartitionSpec(*[None] * (leaf.ndim - 1), "data"), params)

    def unshard(subtree: str, shards: Params) -> Params:
        gather = lambda leaf: jax.lax.all_gather(leaf, "data", axis=leaf.ndim - 1, tiled=True)  # noqa: E731
        return jax.tree.map(gather, shards)

    def local(params: Params, batch: Batch) -> Params:
        return jax.grad(lambda p: task.loss_sum(p, batch, unshard)[0])(params)

    step = jax.shard_map(local, mesh=mesh, in_specs=(specs, PartitionSpec("data")), out_specs=specs)
    batch = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, batch_of(devices, 4, 64)))
    memory = jax.jit(step).lower(params, batch).compile().memory_analysis()
    assert memory is not None
    blocks = sum(leaf.size * 4 for leaf in jax.tree.leaves(params["blocks"]))
    assert memory.temp_size_in_bytes < 0.75 * blocks


def test_bfloat16_is_close_to_float32() -> None:
    batch, task = batch_of(), task_of()
    params = task.init_params(jax.random.key(0))
    total, expected = gradients(task, params, batch)
    low_total, grads = gradients(task, params, batch, jnp.bfloat16)
    assert low_total == pytest.approx(total, rel=2e-3)
    assert low_total != total
    for found, leaf in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        assert found.dtype == jnp.float32
        assert jnp.linalg.norm(found - leaf) < 0.05 * jnp.linalg.norm(leaf)


def test_auto_is_bfloat16_on_accelerators_only() -> None:
    config = config_of()
    assert [jnp.dtype(make_recipe(config, p).compute_dtype).name for p in ("cpu", "gpu", "tpu")] == [
        "float32",
        "bfloat16",
        "bfloat16",
    ]
    assert make_recipe(config_of({"compute_dtype": "float32"}), "gpu").compute_dtype == jnp.float32


# ---------------------------------------------------------------- dropout and initial values


def test_dropout_belongs_to_a_sequence_wherever_it_stands() -> None:
    task, batch = task_of(dropout=0.3), batch_of(6)
    params = task.init_params(jax.random.key(0))
    order = np.array([4, 0, 5, 2, 1, 3])
    total, expected = gradients(task, params, batch)
    shuffled_total, grads = gradients(task, params, jax.tree.map(lambda leaf: leaf[order], batch))
    assert shuffled_total == pytest.approx(total, rel=1e-6)
    assert_close(grads, expected, 1e-5)
    moved = batch._replace(positions_B=batch.positions_B + 6)
    assert gradients(task, params, moved)[0] != pytest.approx(total, rel=1e-6)


def test_dropout_is_off_outside_training_and_keeps_the_mean() -> None:
    plain, dropped = task_of(), task_of(dropout=0.3)
    params, batch = plain.init_params(jax.random.key(0)), batch_of(6)
    total, _ = gradients(plain, params, batch)
    evaluated = jax.jit(lambda p: dropped.loss_sum(p, batch, float32, train=False)[0])(params)
    assert float(evaluated) == pytest.approx(total, rel=1e-6)
    assert gradients(dropped, params, batch)[0] == pytest.approx(total, rel=0.02)


def test_dropout_masks_differ_between_sequences_and_sites() -> None:
    keys_B = jax.vmap(jax.random.key)(jnp.arange(3))
    x_NxD = jnp.ones((3 * 20, 30))
    masks = [np.asarray(Dropout(0.4, keys_B)(x_NxD, site)).reshape(3, -1) > 0 for site in (0, 1)]
    rows = np.concatenate(masks).astype(float)
    assert rows.mean() == pytest.approx(0.6, abs=0.03)
    assert np.abs(np.corrcoef(rows) - np.eye(6)).max() < 0.15
    kept = np.asarray(Dropout(0.4, keys_B)(x_NxD, 0))
    np.testing.assert_allclose(kept[kept > 0], 1 / 0.6, rtol=1e-6)


@pytest.mark.parametrize("train", [True, False])
def test_without_dropout_no_random_number_is_drawn(train: bool) -> None:
    task = task_of(dropout=0.0 if train else 0.5)
    params = jax.eval_shape(task.init_params, jax.random.key(0))
    program = jax.make_jaxpr(lambda p: task.loss_sum(p, batch_of(), float32, train=train))(params)
    assert "random" not in str(program) and "threefry" not in str(program)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_initial_values_are_the_same_on_any_number_of_devices(devices: int) -> None:
    task = task_of(width=64)
    expected = jax.jit(task.init_params)(jax.random.key(3))
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    cut = lambda leaf: NamedSharding(mesh, PartitionSpec(*[None] * (leaf.ndim - 1), "data"))  # noqa: E731
    found = jax.jit(task.init_params, out_shardings=jax.tree.map(cut, expected))(jax.random.key(3))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), found, expected))


def test_initial_scales() -> None:
    task = task_of(width=128, ffn=256, vocab=256, tied=False)
    params = task.init_params(jax.random.key(0))
    blocks = params["blocks"]
    for leaf in (params["embed"], params["head"], blocks["qkv"], blocks["mlp_in"]):
        assert float(jnp.std(leaf)) == pytest.approx(0.02, rel=0.05)
    for leaf in (blocks["attention_out"], blocks["mlp_out"]):
        assert float(jnp.std(leaf)) == pytest.approx(0.02 / math.sqrt(4), rel=0.05)
    drawn = [*(leaf.ravel()[:1000] for leaf in jax.tree.leaves(params) if leaf.ndim > 1 and leaf.size > 2000)]
    drawn += [blocks["qkv"][1].ravel()[:1000]]
    correlation = np.corrcoef(np.stack(drawn)) - np.eye(len(drawn))
    assert np.abs(correlation).max() < 0.15, "two leaves or layers share their draw"


def test_devices_do_not_change_loss_or_gradients() -> None:
    """The body of the scan also type-checks where values vary over the devices of a mesh."""
    task, batch = task_of(dropout=0.2, kv_heads=2), batch_of(8)
    params = task.init_params(jax.random.key(0))
    total, expected = gradients(task, params, batch)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])

    def local(params: Params, batch: Batch) -> Any:
        params = jax.tree.map(lambda leaf: jax.lax.pcast(leaf, "data", to="varying"), params)
        sums = jax.value_and_grad(lambda p: task.loss_sum(p, batch, float32)[0])(params)
        return jax.lax.psum(sums, "data")

    everywhere, cut = PartitionSpec(), PartitionSpec("data")
    step = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(everywhere, cut), out_specs=everywhere))
    found_total, found = step(params, batch)
    assert float(found_total) == pytest.approx(total, rel=1e-6)
    assert_close(found, expected, 1e-5)


# ---------------------------------------------------------------- attention


def naive_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Every head with its own copy of keys and values, the whole square of scores."""
    repeat = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, repeat, axis=2), jnp.repeat(v, repeat, axis=2)
    scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(q.shape[-1])
    future = jnp.triu(jnp.ones(scores.shape[-2:], bool), 1)
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(jnp.where(future, -1e30, scores)), v)


@pytest.mark.parametrize(
    ("length", "block", "heads", "groups", "scale"),
    [
        (1, 64, 2, 2, 1.0),
        (7, 64, 4, 2, 1.0),
        (64, 64, 2, 1, 30.0),
        (65, 64, 2, 2, 1.0),
        (133, 64, 6, 3, 30.0),
        (300, 256, 2, 1, 30.0),  # a TPU's
        (83, 4, 2, 2, 1.0),  # 14 blocks of 6, since 21 of 4 are too many
    ],
)
def test_blocked_attention_is_softmax_attention(length: int, block: int, heads: int, groups: int, scale: float) -> None:
    keys = jax.random.split(jax.random.key(length), 4)
    q, d_out = (scale * jax.random.normal(key, (2, length, heads, 6)) for key in keys[:2])
    k, v = (jax.random.normal(key, (2, length, groups, 6)) for key in keys[2:])

    def with_gradients(attention: Any) -> Any:
        def run(q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array) -> Any:
            out, pull = jax.vjp(attention, q, k, v)
            return out, *pull(d_out)

        return jax.jit(run)(q, k, v, d_out)

    blocked = functools.partial(blocked_attention, block=block)
    for found, expected in zip(with_gradients(blocked), with_gradients(naive_attention), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, float(jnp.abs(expected).max())))


def test_blocked_attention_in_bfloat16() -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 80, 4, 8))
    low = blocked_attention(*(x.astype(jnp.bfloat16) for x in (q, k, v)), block=64)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(jnp.float32), naive_attention(q, k, v), atol=0.03)


def test_the_masked_half_is_not_computed() -> None:
    """Twice the sequence costs less than four times the products, since only the diagonal's blocks are whole."""

    def product_flops(attention: Any, length: int) -> float:
        shape = jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32)
        program = jax.make_jaxpr(attention)(shape, shape, shape)
        return _dot_flops(program.jaxpr)

    blocked = functools.partial(blocked_attention, block=64)
    assert product_flops(blocked, 512) < 0.6 * product_flops(naive_attention, 512)


@given(length=st.integers(1, 5000), block=st.sampled_from([4, 64, 256]))
def test_blocks_of_queries_cover_a_sequence_once_and_are_few(length: int, block: int) -> None:
    blocks = query_blocks(length, block)
    assert [start for start, _ in blocks] == [0, *(end for _, end in blocks[:-1])] and blocks[-1][1] == length
    assert len(blocks) <= MAX_BLOCKS
    assert all(end - start == blocks[0][1] for start, end in blocks[:-1])


def _dot_flops(jaxpr: Any) -> float:
    flops = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            flops += math.prod(equation.outvars[0].aval.shape) * math.prod(left[dim] for dim in contract)
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                flops += equation.params.get("length", 1) * _dot_flops(inner)
    return flops


def test_each_backend_has_its_form() -> None:
    for platform, dtype, block in (("cpu", jnp.float32, 64), ("tpu", jnp.bfloat16, 256)):
        chosen = choose(platform, dtype, 64)
        assert isinstance(chosen, functools.partial)
        assert chosen.func is blocked_attention and chosen.keywords == {"block": block}
    assert choose("gpu", jnp.bfloat16, 64) is cudnn_attention
    assert choose("gpu", jnp.float32, 64) is xla_attention  # cuDNN has no float32
    assert choose("gpu", jnp.bfloat16, 36) is xla_attention  # nor widths that 8 does not divide


def test_rotary_scores_depend_on_the_distance_only() -> None:
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    along = lambda x: rotary(jnp.broadcast_to(x, (1, 32, 1, 8)))[0, :, 0]  # noqa: E731
    scores = np.asarray(along(q) @ along(k).T)
    for distance in range(-5, 6):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    assert np.ptp(scores[0]) > 0.1
    np.testing.assert_allclose(jnp.linalg.norm(along(q), axis=-1), jnp.linalg.norm(q), rtol=1e-5)


def test_rms_norm_ignores_the_scale_of_its_input() -> None:
    x = jax.random.normal(jax.random.key(0), (5, 16))
    one = jnp.ones(16)
    np.testing.assert_allclose(rms_norm(1000 * x, one), rms_norm(x, one), rtol=1e-4)
    np.testing.assert_allclose(jnp.mean(jnp.square(rms_norm(x, one)), -1), 1, rtol=1e-4)
