"""Files of tokens that another program prepared, memory-mapped (no JAX, and nothing is unpickled)."""

from pathlib import Path

import numpy as np

from jaxdp.errors import BadInput

DTYPES = (np.dtype(np.uint8), np.dtype("<u2"), np.dtype("<u4"))
SNIFFED_BYTES = 2**20


def open_tokens(file: Path, vocab: int) -> np.ndarray:
    """The 1-D tokens of a file: `.npy` (uint8, uint16, uint32), `.u16.bin`, `.u32.bin` or a plain `.bin`.

    `.bin` files are little-endian without a header. A plain `.bin` is uint32 where the vocabulary needs it
    or the upper half of every 32-bit word at its start is zero, else uint16. Raises `BadInput` with the
    file's name if it is missing, empty, truncated or of another type.
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
    dtype = {".u16": DTYPES[1], ".u32": DTYPES[2]}.get(Path(file.stem).suffix) or _sniff(file, vocab)
    size = file.stat().st_size
    if size % dtype.itemsize:
        raise BadInput(
            f"data.path: {file} has {size} bytes, not a whole number of {dtype.name} tokens; "
            "it is truncated, or needs the suffix .u16.bin or .u32.bin"
        )
    return _mapped(file, dtype, start=0)


def _mapped(file: Path, dtype: np.dtype, start: int) -> np.ndarray:
    if file.stat().st_size == start:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(file, dtype, mode="r", offset=start))


def _sniff(file: Path, vocab: int) -> np.dtype:
    if vocab > 2**16:
        return DTYPES[2]
    with file.open("rb") as opened:
        start = opened.read(SNIFFED_BYTES)
    words = np.frombuffer(start[: len(start) // 4 * 4], "<u4")
    return DTYPES[2] if words.size and words.max() < 2**16 else DTYPES[1]


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:120] if str(error) else type(error).__name__
