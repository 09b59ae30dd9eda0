"""Every parameter's shape, and the counts that follow from it, from the config alone (no JAX).

A law in the tests keeps these shapes equal to those of the real model.
"""

from collections.abc import Iterator

from jaxdp.config import ModelConfig
from jaxdp.parameter import Parameter


def parameters(model: ModelConfig) -> tuple[Parameter, ...]:
    """All parameters, in the order of the tree's sorted paths."""
    return tuple(sorted(_parameters(model), key=lambda parameter: parameter.path))


def _parameters(model: ModelConfig) -> Iterator[Parameter]:
    layers, width, ffn = model.layers, model.width, model.ffn
    queries = model.heads * model.head_dim
    projections = queries + 2 * model.key_value_heads * model.head_dim
    gated = 2 if model.activation == "swiglu" else 1
    yield Parameter("embed", (model.vocab, width))
    yield Parameter("blocks.attention_norm", (layers, width), in_blocks=True)
    yield Parameter("blocks.qkv", (layers, width, projections), in_blocks=True)
    yield Parameter("blocks.attention_out", (layers, queries, width), in_blocks=True)
    yield Parameter("blocks.mlp_norm", (layers, width), in_blocks=True)
    yield Parameter("blocks.mlp_in", (layers, width, gated * ffn), in_blocks=True)
    yield Parameter("blocks.mlp_out", (layers, ffn, width), in_blocks=True)
    yield Parameter("final_norm", (width,))
    if not model.tied:
        yield Parameter("head", (width, model.vocab))


def count(model: ModelConfig) -> int:
    return sum(parameter.size for parameter in parameters(model))


def block_count(model: ModelConfig) -> int:
    """Parameters of all blocks together."""
    return sum(parameter.size for parameter in parameters(model) if parameter.in_blocks)


def matmul_count(model: ModelConfig) -> int:
    """Parameters that take part in a matrix product: the head counts (tied too), the embedding look-up doesn't."""
    matrices = sum(p.size for p in parameters(model) if p.in_blocks and len(p.shape) == 3)
    return matrices + model.width * model.vocab


def train_flops_per_token(model: ModelConfig, causal: bool = False) -> int:
    """Forward and backward FLOPs of a token: 6 a matmul parameter, 12 L S heads d for attention.

    `causal` counts only the unmasked half of attention. Source: appendix B of PaLM (arXiv 2204.02311).
    """
    attention = 12 * model.layers * model.context * model.heads * model.head_dim
    return 6 * matmul_count(model) + attention // (2 if causal else 1)
