"""Text as documents: the standard library's source, or the user's files; and as tokens (no JAX)."""

import glob
import hashlib
import json
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdp import cache
from jaxdp.errors import BadInput
from jaxdp.install import install_command

AUTO_SEPARATOR, NO_SEPARATOR = "auto", "none"
NUL = b"\0"  # between documents of bytes: no text holds it
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
MARK = b"\xef\xbb\xbf"  # a byte-order mark, which some editors begin UTF-8 with


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


def file_documents(path: Path, text_field: str = "text") -> list[Document]:
    """The text of a file, of all files in a folder (hidden ones left out) or of a glob's, in order of path.

    A line of a `.jsonl` file is a document of its own: the string in its object's `text_field`.
    Raises `BadInput` with the name of a file that is missing, empty, unreadable or not UTF-8 text. Inside
    a folder or glob an empty file is harmless and passes.
    """
    found = []
    for file in paths_of(path):
        document = read_text(file)
        found += _json_lines(document, text_field) if file.suffix == ".jsonl" else [document]
    if not (found := [document for document in found if document.content]):
        raise BadInput(f"data.path: {path} is empty; expected UTF-8 text")
    return found


def _json_lines(document: Document, text_field: str) -> list[Document]:
    found = []
    for number, line in enumerate(document.content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise BadInput(f"data.path: {document.name}, line {number}: is no JSON object; expected one on every line")
        content = value.get(text_field)
        if not isinstance(content, str):
            keys = ", ".join(sorted(map(str, value))[:8])
            raise BadInput(
                f"data.path: {document.name}, line {number}: has no text in {text_field!r} "
                f"(it has {keys or 'nothing'}); set data.text_field"
            )
        found.append(Document(f"{document.name}:{number}", content.replace("\0", "").encode("utf-8", "replace")))
    return found


def paths_of(given: Path, key: str = "data.path") -> list[Path]:
    """The files of a path: itself, those in a folder, or those that a glob matches, in order."""
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
        raise BadInput(f"{key}: {given} cannot be read ({error.strerror})") from None
    if not found:
        what = "holds no file" if given.is_dir() else "does not exist, and matches no file as a glob"
        raise BadInput(f"{key}: {given} {what}")
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
    return Document(str(path), content.removeprefix(MARK))


def byte_tokens(documents: Sequence[Document], between: bytes = b"") -> np.ndarray:
    return np.frombuffer(between.join(document.content for document in documents), np.uint8)


def byte_separator(separator: str) -> tuple[bytes, str]:
    """What stands between two documents of bytes, and its name for people: NUL unless another text is given."""
    between = {AUTO_SEPARATOR: NUL, NO_SEPARATOR: b""}.get(separator, separator.encode())
    return between, {NUL: "a NUL byte", b"": NO_SEPARATOR}.get(between, separator)


def encoded(documents: Sequence[Document], tokenizer: Path, separator: str = NO_SEPARATOR) -> tuple[np.ndarray, str]:
    """The documents' tokens (uint32) by a `tokenizer.json`, each with the special tokens that it adds, and what ends
    one: by default the tokenizer's end token, where it adds none itself and has one.

    Kept in the cache folder under the hash of the tokenizer, its package's version, the text and the separator.
    """
    package = _tokenizers_package()
    definition = _read_tokenizer(tokenizer)
    key = hashlib.sha256(f"{package.__version__} {len(definition)} ".encode() + definition)
    for document in documents:
        key.update(f"{len(document.content)} ".encode() + document.content)
    loaded = _load_tokenizer(package, definition, tokenizer)
    end = _end_token(loaded, separator, tokenizer) if len(documents) > 1 else None
    key.update(b"" if end is None else f"end {end}".encode())
    name = f"tokens-{key.hexdigest()}.u32"
    content = cache.read(name)
    if content is None:
        content = _encode(loaded, documents, end).tobytes()
        cache.write(name, content)
    own = "the tokenizer's own tokens" if loaded.num_special_tokens_to_add(False) else NO_SEPARATOR
    return np.frombuffer(content, "<u4"), own if end is None else str(loaded.id_to_token(end))


def _end_token(tokenizer, separator: str, name: Path) -> int | None:
    """The id of what ends a document: none where the tokenizer marks documents itself."""
    if separator == AUTO_SEPARATOR:
        known = (tokenizer.token_to_id(token) for token in END_TOKENS)
        marked = tokenizer.num_special_tokens_to_add(False) > 0
        return None if marked else next((token for token in known if token is not None), None)
    if separator == NO_SEPARATOR:
        return None
    token = tokenizer.token_to_id(separator)
    if token is None:
        raise BadInput(f"data.separator: {separator!r} is no token of {name}; name one of its tokens, auto or none")
    return token


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


def _load_tokenizer(package, definition: bytes, name: Path):
    try:
        tokenizer = package.Tokenizer.from_buffer(definition)
    except Exception as error:  # the package raises the bare class
        raise BadInput(f"data.tokenizer: {name} is not a tokenizer.json ({error})") from None
    tokenizer.no_truncation()  # a tokenizer.json may carry both, made for classifiers
    tokenizer.no_padding()
    return tokenizer


def _encode(tokenizer, documents: Sequence[Document], end: int | None) -> np.ndarray:
    last = [] if end is None else [end]
    parts = [np.asarray([*tokenizer.encode(d.content.decode("utf-8")).ids, *last], "<u4") for d in documents]
    return np.concatenate(parts)
