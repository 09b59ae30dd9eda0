"""A corpus: one stream of tokens, split into training text and a held-out tail (no JAX)."""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdp import cache
from jaxdp.config import Config
from jaxdp.data import synthetic, text, token_files
from jaxdp.data.text import NO_SEPARATOR
from jaxdp.errors import BadInput

SCANNED_TOKENS = 2**18  # at a time: fits a core's cache
REMEMBERED_BYTES = 2**26  # a larger file is scanned once, not at every start


@dataclass(frozen=True, eq=False)
class Corpus:
    """`vocab` is the smallest `model.vocab` that holds every token. Token arrays are 1-D uint8, uint16 or uint32."""

    name: str
    sha256: str  # of the whole stream's bytes, as stored
    vocab: int
    train_tokens: np.ndarray
    heldout_tokens: np.ndarray
    unigram_entropy_nats: float  # of the training split: what guessing by frequency alone would reach
    best_loss_nats: float | None  # the source's entropy, where it is known
    separator: str | None = None  # what stands between documents, where there are several


class Stream(NamedTuple):
    name: str
    tokens: np.ndarray
    file: Path | None = None  # that the tokens are mapped from
    best_loss_nats: float | None = None
    separator: str | None = None  # between documents, where there are several


def open_corpus(config: Config) -> Corpus:
    """The corpus that `config.data` names; raises `BadInput` with the file's name for what cannot be trained on."""
    stream = _open_stream(config)
    heldout = _heldout_count(stream, config)
    train_tokens, heldout_tokens = stream.tokens[:-heldout], stream.tokens[-heldout:]
    facts = _facts(stream, train_tokens, heldout_tokens, config.model.vocab)
    return Corpus(
        stream.name,
        facts["sha256"],
        facts["vocab"],
        train_tokens,
        heldout_tokens,
        facts["unigram_entropy_nats"],
        stream.best_loss_nats,
        stream.separator,
    )


def refuse_absent(config: Config) -> None:
    """Raises `BadInput` where a file that `config.data` names is missing or unreadable; reads nothing of it."""
    named = [("data.path", config.data.path), ("data.tokenizer", config.data.tokenizer)]
    for key, value in named:
        for file in text.paths_of(_user_path(key, value), key) if value else ():
            if not os.access(file, os.R_OK):
                raise BadInput(f"{key}: {file} cannot be read")


def _open_stream(config: Config) -> Stream:
    data = config.data
    if data.tokenizer and data.corpus in ("synthetic", "tokens"):
        raise BadInput(f"data.tokenizer: corpus {data.corpus!r} holds tokens, not text; leave it out")
    if data.corpus == "synthetic":
        tokens = synthetic.markov_tokens(config.train.seed)
        return Stream("synthetic", tokens, best_loss_nats=synthetic.entropy_rate_nats())
    if data.corpus == "tokens":
        path = _user_path("data.path", data.path)
        files = text.paths_of(path)
        tokens = token_files.open_shards(files, config.model.vocab)
        return Stream(str(path), tokens, files[0] if len(files) == 1 else None)
    if data.corpus == "files":
        path = _user_path("data.path", data.path)
        name, documents = str(path), text.file_documents(path, data.text_field)
        separator = data.separator
    else:
        name, documents, separator = "stdlib", text.stdlib_documents(), NO_SEPARATOR
    if data.tokenizer:
        tokens, named = text.encoded(documents, _user_path("data.tokenizer", data.tokenizer), separator)
    else:
        between, named = text.byte_separator(separator)
        tokens = text.byte_tokens(documents, between)
    return Stream(name, tokens, separator=named if len(documents) > 1 else None)


def _user_path(key: str, path: str | None) -> Path:
    try:
        return Path(path or "").expanduser()
    except RuntimeError:
        raise BadInput(f"{key}: {path} names no user's home folder") from None


def _heldout_count(stream: Stream, config: Config) -> int:
    """Tokens of the held-out tail: whole sequences, which share one token with the next, as in training."""
    context, batch, total = config.model.context, config.train.global_batch, len(stream.tokens)
    wanted = int((total * config.data.heldout - 1) // context)
    sequences = max(1, min(wanted, config.data.heldout_sequences))
    count = sequences * context + 1
    records = max(0, (total - count - 1) // context)
    if records < batch:
        raise BadInput(
            f"data: {stream.name} has {total} tokens, {count} of them for the held-out split, which leaves "
            f"{records} sequences of context {context} for batches of {batch}; "
            "give more text, or lower train.global_batch or model.context"
        )
    return count


def _facts(stream: Stream, train: np.ndarray, heldout: np.ndarray, vocab: int) -> dict:
    """`sha256`, `vocab` and `unigram_entropy_nats`, from the cache where a large file has not changed."""
    if stream.file is None or stream.tokens.nbytes < REMEMBERED_BYTES:
        return _scan(stream.name, train, heldout, vocab)
    status = stream.file.stat()
    identity = (stream.file.resolve(), status.st_size, status.st_mtime_ns, train.dtype.str, len(train), vocab)
    name = f"scan-{hashlib.sha256(repr(identity).encode()).hexdigest()}.json"
    kept = cache.read(name)
    if kept is not None:
        return json.loads(kept)
    facts = _scan(stream.name, train, heldout, vocab)
    cache.write(name, json.dumps(facts).encode())
    return facts


def _scan(name: str, train: np.ndarray, heldout: np.ndarray, vocab: int) -> dict:
    counts = np.zeros(vocab, np.int64)
    content = hashlib.sha256()
    largest, position = 0, 0
    for part in (train, heldout):
        for start in range(0, len(part), SCANNED_TOKENS):
            chunk = part[start : start + SCANNED_TOKENS]
            top = int(chunk.max())
            if top >= vocab:
                raise _beyond_vocab(name, chunk, position, vocab)
            largest = max(largest, top)
            content.update(chunk.data)
            if part is train:
                counts[: top + 1] += np.bincount(chunk)
            position += len(chunk)
    probabilities = counts[counts > 0] / len(train)
    entropy = math.fsum(-probabilities * np.log(probabilities))
    return {"sha256": content.hexdigest(), "vocab": largest + 1, "unigram_entropy_nats": entropy}


def _beyond_vocab(name: str, chunk: np.ndarray, position: int, vocab: int) -> BadInput:
    first = int(np.argmax(chunk >= vocab))
    return BadInput(
        f"data: {name} has token {chunk[first]} at position {position + first}, beyond model.vocab={vocab}; "
        "set model.vocab to the vocabulary of the tokens"
    )
