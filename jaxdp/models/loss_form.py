"""How many tokens' logits a backend holds at once (no JAX), so that memory can be told from it."""

MAX_LOGITS_BYTES = 2**28  # on a GPU; a chunk is still thousands of tokens, so that its products run at full rate


def loss_chunk(platform: str, tokens: int, vocab: int, logit_bytes: int = 4) -> int:
    """Tokens of a chunk: a divisor of `tokens`, all of them where their logits are small or the platform is no GPU.

    On CPUs and TPUs the memory model is fitted to programs that hold all logits.
    """
    if platform != "gpu" or tokens * vocab * logit_bytes <= MAX_LOGITS_BYTES:
        return tokens
    most = max(1, MAX_LOGITS_BYTES // (vocab * logit_bytes))
    return next(size for size in range(min(most, tokens), 0, -1) if tokens % size == 0)
