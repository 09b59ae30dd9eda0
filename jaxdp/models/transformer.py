"""The decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, GELU or gated SiLU.

Shapes: B sequences, T tokens, N = B*T tokens flattened (products of matrices are faster so), D width,
H heads, G groups of keys and values, K head width, F feed-forward width, V vocabulary, L layers.
The parameters' tree and shapes are those of `models.shapes`. The model knows no mesh: `unshard` turns the
shards of the root (once) and of one block (inside the rematerialised body, so that the backward pass
unshards again) into full parameters of the compute dtype.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdp.config import ModelConfig
from jaxdp.data.batch import Batch
from jaxdp.models import shapes
from jaxdp.models.attention import SAVED_NAME, Attention, rotary
from jaxdp.models.loss import head_loss_sum
from jaxdp.task import LossSum, Params, Unshard

Remat = Literal["none", "dots", "block"]

INIT_SCALE = 0.02
NORM_EPSILON = 1e-6
ATTENTION_SITE, MLP_SITE = 0, 1  # what dropout's keys are folded with inside a layer


class Dropout:
    """Inverted dropout whose masks belong to sequences: `keys_B` are folded with the site.

    Without keys it is the identity, and no random number enters the program.
    """

    def __init__(self, rate: float, keys_B: jax.Array | None):
        self.rate, self.keys_B = rate, keys_B

    def __call__(self, x_NxD: jax.Array, site: int) -> jax.Array:
        if self.keys_B is None:
            return x_NxD
        x_BxTxD = x_NxD.reshape(self.keys_B.shape[0], -1, x_NxD.shape[-1])
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(self.keys_B, site)
        keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x_BxTxD.shape[1:]))(keys_B)
        kept_BxTxD = jnp.where(keep, x_BxTxD / (1 - self.rate), 0).astype(x_NxD.dtype)
        return kept_BxTxD.reshape(x_NxD.shape)


class Block(nnx.Module):
    """One transformer block, pre-normalised; gate and up projection of SwiGLU are fused in `mlp_in`."""

    def __init__(self, model: ModelConfig, rngs: nnx.Rngs):
        self.model = model
        block_shapes = {p.path: p.shape[1:] for p in shapes.parameters(model) if p.in_blocks}

        def parameter(name: str) -> nnx.Param[jax.Array]:
            return nnx.Param(_initial(name, block_shapes[f"blocks.{name}"], model, rngs))

        self.attention_norm = parameter("attention_norm")
        self.attention_out = parameter("attention_out")
        self.mlp_in = parameter("mlp_in")
        self.mlp_norm = parameter("mlp_norm")
        self.mlp_out = parameter("mlp_out")
        self.qkv = parameter("qkv")

    def __call__(self, x_NxD: jax.Array, batch_size: int, attention: Attention, dropout: Dropout) -> jax.Array:
        model = self.model
        heads, groups, width = model.heads, model.key_value_heads, model.head_dim
        h_NxD = rms_norm(x_NxD, self.attention_norm[...])
        qkv = (h_NxD @ self.qkv[...]).reshape(batch_size, -1, heads + 2 * groups, width)
        q, k, v = jnp.split(qkv, (heads, heads + groups), axis=2)
        o_NxD = attention(rotary(q), rotary(k), v).reshape(x_NxD.shape[0], heads * width)
        x_NxD = x_NxD + dropout(o_NxD @ self.attention_out[...], ATTENTION_SITE)
        h_NxF = rms_norm(x_NxD, self.mlp_norm[...]) @ self.mlp_in[...]
        if model.activation == "swiglu":
            gate_NxF, up_NxF = jnp.split(h_NxF, 2, axis=-1)
            h_NxF = jax.nn.silu(gate_NxF) * up_NxF
        else:
            h_NxF = jax.nn.gelu(h_NxF, approximate=True)
        return x_NxD + dropout(h_NxF @ self.mlp_out[...], MLP_SITE)


class Transformer(nnx.Module):
    """`blocks` is one Block whose leaves are stacked over the layers."""

    def __init__(self, model: ModelConfig, rngs: nnx.Rngs):
        self.model = model
        self.embed = nnx.Param(_initial("embed", (model.vocab, model.width), model, rngs))

        @nnx.split_rngs(splits=model.layers)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(model, rngs)

        self.blocks = stack(rngs)
        self.final_norm = nnx.Param(jnp.ones((model.width,), jnp.float32))
        if not model.tied:
            self.head = nnx.Param(_initial("head", (model.width, model.vocab), model, rngs))

    def __call__(
        self,
        inputs_BxT: jax.Array,
        unshard_block: Callable[[Params], Params],
        attention: Attention,
        remat: Remat,
        keys_B: jax.Array | None,
    ) -> jax.Array:
        """The normed hidden values, [N, D]. `embed`, `final_norm` and `head` must have been unsharded already."""
        # The look-up's gradient is summed in float32, whatever the compute dtype.
        x_BxTxD = self.embed[...].astype(jnp.float32)[inputs_BxT].astype(self.embed[...].dtype)
        x_NxD = x_BxTxD.reshape(-1, self.model.width)
        block_def, blocks = nnx.split(self.blocks)

        def body(x_NxD: jax.Array, layer_and_shards: tuple[jax.Array, Params]) -> tuple[jax.Array, None]:
            layer, shards = layer_and_shards
            block = nnx.merge(block_def, unshard_block(shards))
            keys = None if keys_B is None else jax.vmap(jax.random.fold_in, (0, None))(keys_B, layer)
            return block(x_NxD, inputs_BxT.shape[0], attention, Dropout(self.model.dropout, keys)), None

        stacked = (jnp.arange(self.model.layers), nnx.to_pure_dict(blocks))
        x_NxD, _ = jax.lax.scan(jax.checkpoint(body, policy=_POLICIES[remat]), x_NxD, stacked)
        return rms_norm(x_NxD, self.final_norm[...])

    @property
    def head_DxV(self) -> jax.Array:
        return self.embed[...].T if self.model.tied else self.head[...]


def rms_norm(x_NxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """x / sqrt(mean(x^2) + epsilon) * scale, computed in float32."""
    x = x_NxD.astype(jnp.float32)
    normed = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + NORM_EPSILON)
    return (normed * scale_D.astype(jnp.float32)[None, :]).astype(x_NxD.dtype)


def init_params(model: ModelConfig, key: jax.Array) -> Params:
    """Float32 parameters, the same for a key under any sharding: every leaf has a draw of its own."""
    return nnx.to_pure_dict(nnx.state(Transformer(model, nnx.Rngs(params=key))))


def make_loss_sum(
    model: ModelConfig,
    attention: Attention,
    remat: Remat,
    seed: int,
    chunk: Callable[[int], int] = lambda tokens: tokens,
) -> LossSum:
    """`chunk` gives the tokens whose logits are held at once, of so many in a microbatch."""
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: Transformer(model, nnx.Rngs(0))))

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, *, train: bool = True) -> tuple[jax.Array, jax.Array]:
        root = unshard("", {name: leaf for name, leaf in params.items() if name != "blocks"})
        transformer = nnx.merge(graphdef, {**root, "blocks": params["blocks"]})
        keys_B = None
        if train and model.dropout:
            keys_B = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), batch.positions_B)
        x_NxD = transformer(batch.inputs_BxT, lambda shards: unshard("blocks", shards), attention, remat, keys_B)
        targets_N, weights_N = batch.targets_BxT.reshape(-1), batch.weights_BxT.reshape(-1)
        return head_loss_sum(x_NxD, transformer.head_DxV, targets_N, weights_N, chunk(len(x_NxD)))

    return loss_sum


def _initial(name: str, shape: tuple[int, ...], model: ModelConfig, rngs: nnx.Rngs) -> jax.Array:
    if name.endswith("norm"):
        return jnp.ones(shape, jnp.float32)
    # What is added to the residual stream 2L times is drawn that much smaller (GPT-2).
    residual = name in ("attention_out", "mlp_out")
    scale = INIT_SCALE / (2 * model.layers) ** 0.5 if residual else INIT_SCALE
    return scale * jax.random.normal(rngs.params(), shape, jnp.float32)


# Saving what an unshard makes would keep every full parameter alive from the forward to the backward pass,
# and "fully sharded" would be so in name only. So no policy saves the results of what unsharding is made of:
# casts, collectives, marks of varying values and mere views of an array.
_NEVER_SAVED = {
    "all_gather",
    "all_gather_invariant",
    "broadcast_in_dim",
    "cond",
    "convert_element_type",
    "custom_vjp_call",
    "dynamic_slice",
    "optimization_barrier",
    "pcast",
    "psum",
    "psum_invariant",
    "pvary",
    "reshape",
    "slice",
    "squeeze",
}


def _saves_attention(primitive: Any, *_: Any, **params: Any) -> bool:
    named = primitive.name == "name" and params["name"] == SAVED_NAME
    return named or primitive.name.startswith("dot_product_attention_fwd")


def _save_all(primitive: Any, *avals: Any, **params: Any) -> bool:
    if primitive.name == "name":
        return _saves_attention(primitive, *avals, **params)
    return primitive.name not in _NEVER_SAVED


def _save_products(primitive: Any, *avals: Any, **params: Any) -> bool:
    products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *avals, **params)
    return bool(products) or _saves_attention(primitive, *avals, **params)


_POLICIES: dict[str, Callable[..., Any]] = {
    "none": _save_all,
    "dots": _save_products,
    "block": jax.checkpoint_policies.nothing_saveable,
}
