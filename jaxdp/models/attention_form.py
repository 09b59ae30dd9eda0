"""Which form of attention a backend takes and what it holds at once (no JAX), so that memory can be told from it."""

from typing import Literal, NamedTuple

Kind = Literal["blocked", "cudnn", "whole"]

MAX_BLOCKS = 16  # of a sequence: longer ones get larger blocks, or programs would grow with the context


class Form(NamedTuple):
    """`blocked`: a sequence at a time and in it `block` queries or more; `cudnn`: a fused kernel; `whole`: XLA's own,
    which holds the scores of all sequences.
    """

    kind: Kind
    block: int = 0


def form(platform: str, value_bytes: int, head_dim: int) -> Form:
    """The form for "cpu", "gpu" or "tpu" and a compute dtype of `value_bytes`.

    A TPU's compiler estimates for a step with blocks of 256 queries as many cycles as with whole scores at 1024 tokens
    and a fifth fewer at 2048, with 29 and 47 % less memory; smaller blocks take more (`benchmarks/tpu_attention.py`).
    """
    if platform == "cpu":
        return Form("blocked", 64)
    if platform == "tpu":
        return Form("blocked", 256)
    fits_cudnn = value_bytes == 2 and head_dim % 8 == 0 and head_dim <= 128
    return Form("cudnn" if fits_cudnn else "whole")


def query_blocks(length: int, block: int) -> list[tuple[int, int]]:
    """(start, end) of each block of queries of a sequence; a block sees the keys up to its own end."""
    size = max(block, -(-length // MAX_BLOCKS))
    return [(start, min(start + size, length)) for start in range(0, length, size)]
