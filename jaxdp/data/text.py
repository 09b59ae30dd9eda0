"""Text as documents: the standard library's source, or the user's files; and as tokens (no JAX)."""

import glob
import hashlib
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdp import cache
from jaxdp.errors import BadInput
from jaxdp.install import install_command


class Document(NamedTuple):
    name: str
    content: bytes  # UTF-8, without NUL


def stdlib_documents() -> list[Document]:
    """The running Python's own top-level standard modules, in order of name: about 5 MB of real text anywhere.

    Packages are left out: listing them takes seconds where `site-packages` lies among them.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    paths = [stdlib / f"{module}.py" for module in sorted(sys.stdlib_module_names)]
    found = [read_text(path) for path in paths if path.is_file()]
    if not found:
        raise BadInput(
            f"data.corpus: no source of the standard library in {stdlib}; "
            "use data.corpus=synthetic, or data.corpus=files with data.path"
        )
    return found


def file_documents(path: Path) -> list[Document]:
    """The text of a file, of all files in a folder (hidden ones left out) or of a glob's, in order of path.

    Raises `BadInput` with the name of a file that is missing, empty, unreadable or not UTF-8 text. Inside
    a folder or glob an empty file is harmless and passes.
    """
    paths = _paths(path)
    found = [read_text(each) for each in paths]
    if not any(document.content for document in found):
        raise BadInput(f"data.path: {path} is empty; expected UTF-8 text")
    return found


def _paths(given: Path) -> list[Path]:
    try:
        if given.is_dir():
            inside = [each for each in given.rglob("*") if not _hidden(each.relative_to(given))]
            found = sorted(each for each in inside if each.is_file())
        elif given.exists():
            found = [given]
        else:
            found = sorted(Path(each) for each in glob.glob(str(given), recursive=True))  # noqa: PTH207
            found = [each for each in found if each.is_file()]
    except OSError as error:
        raise BadInput(f"data.path: {given} cannot be read ({error.strerror})") from None
    if not found:
        what = "holds no file" if given.is_dir() else "does not exist, and matches no file as a glob"
        raise BadInput(f"data.path: {given} {what}")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_text(path: Path) -> Document:
    if not path.is_file():  # reading a pipe or a device might never end
        raise BadInput(f"data.path: {path} is neither a file nor a folder")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"data.path: {path} cannot be read ({error.strerror})") from None
    try:
        content.decode("utf-8")
        position = content.find(b"\0")
    except UnicodeDecodeError as error:
        position = error.start
    if position >= 0:
        raise BadInput(
            f"data.path: {path} is not UTF-8 text (byte {position}); convert it, or leave it out with a glob"
        )
    return Document(str(path), content)


def byte_tokens(documents: Sequence[Document]) -> np.ndarray:
    return np.frombuffer(b"".join(document.content for document in documents), np.uint8)


def encoded(documents: Sequence[Document], tokenizer: Path) -> np.ndarray:
    """The documents' tokens (uint32) by a `tokenizer.json`, each with the special tokens that it adds.

    Kept in the cache folder under the hash of the tokenizer, its package's version and the text.
    """
    package = _tokenizers_package()
    definition = _read_tokenizer(tokenizer)
    key = hashlib.sha256(f"{package.__version__} {len(definition)} ".encode() + definition)
    for document in documents:
        key.update(f"{len(document.content)} ".encode() + document.content)
    name = f"tokens-{key.hexdigest()}.u32"
    content = cache.read(name)
    if content is None:
        content = _encode(package, definition, documents, tokenizer).tobytes()
        cache.write(name, content)
    return np.frombuffer(content, "<u4")


def _tokenizers_package():
    try:
        import tokenizers
    except ImportError:
        raise BadInput(f"data.tokenizer: needs the package tokenizers; {install_command('tokenizers')}") from None
    return tokenizers


def _read_tokenizer(path: Path) -> bytes:
    try:
        if path.is_file():
            return path.read_bytes()
    except OSError as error:
        raise BadInput(f"data.tokenizer: {path} cannot be read ({error.strerror})") from None
    raise BadInput(f"data.tokenizer: {path} is no file; expected the path of a tokenizer.json")


def _encode(package, definition: bytes, documents: Sequence[Document], name: Path) -> np.ndarray:
    try:
        tokenizer = package.Tokenizer.from_buffer(definition)
    except Exception as error:  # the package raises the bare class
        raise BadInput(f"data.tokenizer: {name} is not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()  # a tokenizer.json may carry both, made for classifiers
    tokenizer.no_padding()
    parts = [np.asarray(tokenizer.encode(d.content.decode("utf-8")).ids, "<u4") for d in documents]
    return np.concatenate(parts)
