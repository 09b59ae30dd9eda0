"""Files of tokens that another program prepared, memory-mapped (no JAX, and nothing is unpickled)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdp.errors import BadInput

DTYPES = (np.dtype(np.uint8), np.dtype("<u2"), np.dtype("<u4"))
# llm.c's header, which modded-nanogpt took over: 256 words (magic, version, tokens). GPT-2's tokens, then Llama 3's.
HEADER_BYTES = 1024
MAGICS = {20240520: DTYPES[1], 20240801: DTYPES[2]}
SNIFFED_BYTES = 2**20


def open_shards(files: Sequence[Path], vocab: int) -> np.ndarray:
    """The 1-D tokens of one file, mapped, or of several one after the other, which takes memory for all of them."""
    shards = [open_tokens(file, vocab) for file in files]
    if len({shard.dtype for shard in shards}) > 1:
        kinds = ", ".join(f"{file.name} {shard.dtype.name}" for file, shard in zip(files, shards, strict=True))
        raise BadInput(f"data.path: its files hold tokens of different types ({kinds[:200]}); name those of one type")
    return shards[0] if len(shards) == 1 else np.concatenate(shards)


def open_tokens(file: Path, vocab: int) -> np.ndarray:
    """The 1-D tokens of a file: `.npy` (uint8, uint16, uint32), `.u16.bin`, `.u32.bin` or a plain `.bin`.

    `.bin` files are little-endian; llm.c's header says what follows it. A plain `.bin` without one is uint32 where the
    upper half of every 32-bit word at its start is zero, else uint16, which a larger vocabulary refuses to guess.
    Raises `BadInput` with the file's name if it is missing, empty, truncated or of another type.
    """
    try:
        if not file.is_file():
            raise BadInput(f"data.path: {file} is no file; data.corpus=tokens reads one .bin or .npy file")
        tokens = _open_npy(file) if file.suffix == ".npy" else _open_bin(file, vocab)
    except OSError as error:
        raise BadInput(f"data.path: {file} cannot be read ({error.strerror or error})") from None
    if not tokens.size:
        raise BadInput(f"data.path: {file} is empty; expected tokens")
    return tokens


def _open_npy(file: Path) -> np.ndarray:
    # Only the header is parsed: np.load would also take an archive or a pickle under this name.
    try:
        with file.open("rb") as opened:
            version = np.lib.format.read_magic(opened)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(opened)
            start = opened.tell()
    except OSError:
        raise
    except Exception as error:  # NumPy's parser lets ValueError, TokenError and MemoryError out of a bad header
        raise BadInput(f"data.path: {file} is truncated or not a .npy array ({_brief(error)})") from None
    if dtype not in DTYPES or len(shape) != 1:
        raise BadInput(f"data.path: {file} holds {dtype.str} of shape {shape}; save one dimension of uint16 or uint32")
    held, promised = file.stat().st_size - start, shape[0] * dtype.itemsize
    if held != promised:
        raise BadInput(f"data.path: {file} is truncated or damaged: {held} bytes of tokens instead of {promised}")
    return _mapped(file, dtype, start)


def _open_bin(file: Path, vocab: int) -> np.ndarray:
    if file.suffix != ".bin":
        raise BadInput(f"data.path: {file} is neither .bin nor .npy; for text use data.corpus=files")
    size = file.stat().st_size
    if (header := _header(file, size)) is not None:
        return header
    dtype = {".u16": DTYPES[1], ".u32": DTYPES[2]}.get(Path(file.stem).suffix) or _sniff(file, vocab)
    if size % dtype.itemsize:
        raise BadInput(
            f"data.path: {file} has {size} bytes, not a whole number of {dtype.name} tokens; "
            "it is truncated, or needs the suffix .u16.bin or .u32.bin"
        )
    return _mapped(file, dtype, start=0)


def _header(file: Path, size: int) -> np.ndarray | None:
    """The tokens that follow llm.c's header; None where there is none."""
    with file.open("rb") as opened:
        words = np.frombuffer(opened.read(HEADER_BYTES), "<u4", count=min(size, HEADER_BYTES) // 4)
    if len(words) < HEADER_BYTES // 4 or int(words[0]) not in MAGICS or words[1] not in (1, 7):
        return None
    dtype, promised = MAGICS[int(words[0])], int(words[2])
    if size - HEADER_BYTES != promised * dtype.itemsize:
        raise BadInput(
            f"data.path: {file} is truncated or damaged: its header promises {promised} {dtype.name} tokens, "
            f"{(size - HEADER_BYTES) / dtype.itemsize:g} follow"
        )
    return _mapped(file, dtype, HEADER_BYTES)


def _mapped(file: Path, dtype: np.dtype, start: int) -> np.ndarray:
    if file.stat().st_size == start:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(file, dtype, mode="r", offset=start))


def _sniff(file: Path, vocab: int) -> np.dtype:
    with file.open("rb") as opened:
        start = opened.read(SNIFFED_BYTES)
    words = np.frombuffer(start[: len(start) // 4 * 4], "<u4")
    if words.size and words.max() < max(vocab, 2**16):
        return DTYPES[2]
    if vocab > 2**16:
        raise BadInput(
            f"data.path: {file} holds uint16 tokens, or uint32 ones beyond model.vocab={vocab}; "
            "name it .u16.bin if it is the first, else raise model.vocab"
        )
    return DTYPES[1]


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
