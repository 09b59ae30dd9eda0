"""Your own language model: a mixture of experts whose blocks are unsharded one layer at a time inside a scan.

python examples/own_llama.py
jaxdp train --task examples.own_llama:task --strategy fsdp --devices 4 --set task.experts=8
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.data.arrays import from_arrays
from jaxdp.data.text import byte_tokens, stdlib_documents
from jaxdp.task import Batch, DataSource, Params, Task, Unshard

VOCAB = 256  # bytes


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def block(x_BxTxD: jax.Array, layer: Params) -> jax.Array:
    """Causal attention with one head, then the most likely of the experts, weighted by its probability."""
    q, k, v = jnp.split(rms_norm(x_BxTxD, layer["attention_norm"][None, None]) @ layer["qkv"], 3, axis=-1)
    attended = jax.nn.dot_product_attention(q[:, :, None], k[:, :, None], v[:, :, None], is_causal=True)
    x_BxTxD = x_BxTxD + attended[:, :, 0] @ layer["out"]
    h_BxTxD = rms_norm(x_BxTxD, layer["mlp_norm"][None, None])
    probs_BxTxE = jax.nn.softmax(h_BxTxD @ layer["router"])
    chosen_BxTxE = jax.nn.one_hot(jnp.argmax(probs_BxTxE, axis=-1), probs_BxTxE.shape[-1]) * probs_BxTxE
    up_BxTxExF = jax.nn.silu(jnp.einsum("btd,edf->btef", h_BxTxD, layer["up"]))
    return x_BxTxD + jnp.einsum("btef,efd,bte->btd", up_BxTxExF, layer["down"], chosen_BxTxE)


def task(layers: int = 2, width: int = 64, experts: int = 4, context: int = 64, tokens: int = 2**19) -> Task:
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "router": (width, experts)}
    shapes |= {"up": (experts, width, 2 * width), "down": (experts, 2 * width, width)}

    def init_params(key: jax.Array) -> Params:
        draw = jax.nn.initializers.normal(0.1)
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        blocks = {name: draw(keys[name], (layers, *shape)) for name, shape in shapes.items()}
        blocks |= {name: jnp.ones((layers, width)) for name in ("attention_norm", "mlp_norm")}
        return {"embed": draw(key, (VOCAB, width)), "blocks": blocks, "final_norm": jnp.ones(width)}

    def loss_sum(params: Params, batch: Batch, unshard: Unshard, /, *, train: bool = True):
        root = unshard("", {"embed": params["embed"], "final_norm": params["final_norm"]})
        inputs_BxT, targets_BxT = batch["text"][:, :-1].astype(jnp.int32), batch["text"][:, 1:].astype(jnp.int32)

        @jax.checkpoint  # so that the backward pass unshards a layer again instead of keeping all of them
        def body(x: jax.Array, shards: Params) -> tuple[jax.Array, None]:
            return block(x, unshard("blocks", shards)), None

        x_BxTxD, _ = jax.lax.scan(body, root["embed"][inputs_BxT], params["blocks"])
        logits_BxTxV = rms_norm(x_BxTxD, root["final_norm"][None, None]) @ root["embed"].T
        logs_BxTxV = jax.nn.log_softmax(logits_BxTxV.astype(jnp.float32))
        losses_BxT = -jnp.take_along_axis(logs_BxTxV, targets_BxT[..., None], axis=-1)[..., 0]
        return jnp.sum(losses_BxT * batch["weight"][:, None]), jnp.sum(batch["weight"]) * context

    def open_data(global_batch: int, seed: int) -> DataSource:
        text = byte_tokens(stdlib_documents())[: tokens // context * context + 1]
        windows = np.lib.stride_tricks.sliding_window_view(text, context + 1)[::context]
        return from_arrays({"text": windows}, heldout=0.05)(global_batch, seed)

    return Task(
        init_params=init_params,
        loss_sum=loss_sum,
        open_data=open_data,
        unit="tokens",
        units_per_example=context,
        blocks=("blocks",),
    )


if __name__ == "__main__":
    from cli.main import main

    sys.argv[1:] = ["bench", "--task", "own_llama:task", "--strategy", "ddp,fsdp", "--devices", "4", *sys.argv[1:]]
    main()
