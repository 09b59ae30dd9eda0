"""Corpora: what each source yields, and that what cannot be trained on is refused with its file's name."""

import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import config
from jaxdp.data import token_files
from jaxdp.data.corpora import Corpus, open_corpus
from jaxdp.errors import BadInput
from jaxdp.install import install_command


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory, monkeypatch) -> Path:
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


def corpus(corpus: str, path: Any = None, *, vocab=256, context=8, batch=2, tokenizer=None, seed=0, **data) -> Corpus:
    data |= {"corpus": corpus}
    data |= {"path": str(path)} if path else {}
    data |= {"tokenizer": str(tokenizer)} if tokenizer else {}
    values = {
        "model": {"vocab": vocab, "context": context},
        "data": data,
        "train": {"global_batch": batch, "seed": seed},
    }
    return open_corpus(config.build(values))


def stream(of: Corpus) -> list[int]:
    return [*of.train_tokens.tolist(), *of.heldout_tokens.tolist()]


def refusal(*args, **kwargs) -> str:
    with pytest.raises(BadInput) as error:
        corpus(*args, **kwargs)
    message = str(error.value)
    assert "\n" not in message
    return message


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Text


def test_the_standard_library_is_real_text_and_the_same_every_time():
    first, second = corpus("stdlib"), corpus("stdlib")
    assert first.sha256 == second.sha256 == hashlib.sha256(bytes(stream(first))).hexdigest()
    assert 10**6 < len(first.train_tokens) < 10**7
    assert b"def __init__(self" in first.train_tokens.tobytes()
    assert 2.5 < first.unigram_entropy_nats < 4
    assert first.best_loss_nats is None


def test_corpora_are_opened_without_jax():
    code = (
        "import sys; from jaxdp.config import Config; from jaxdp.data import corpora, pipeline as data\n"
        "corpora.open_corpus(Config()); print([m for m in ('jax', 'grain', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_are_joined_in_order_of_path_and_hidden_ones_left_out(tmp_path):
    write(tmp_path / "b.txt", "second " * 20)
    write(tmp_path / "a" / "z.md", "first é " * 20)
    write(tmp_path / "empty.txt", "")
    write(tmp_path / ".git" / "blob", b"\0\xff")
    write(tmp_path / ".DS_Store", b"\0")
    text = "first é " * 20 + "\0" + "second " * 20
    assert bytes(stream(corpus("files", tmp_path))) == text.encode()
    assert bytes(stream(corpus("files", tmp_path / "*.txt"))) == ("second " * 20).encode()
    assert bytes(stream(corpus("files", tmp_path / "**" / "*.*"))) == text.encode()


def test_a_name_with_glob_characters_is_taken_literally_where_it_exists(tmp_path):
    write(tmp_path / "[a].txt", "literal " * 20)
    write(tmp_path / "a.txt", "matched " * 20)
    assert bytes(stream(corpus("files", tmp_path / "[a].txt"))).startswith(b"literal")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"text" * 50 + b"\0" + b"text", "not UTF-8 text (byte 200)"),
        (b"text" * 50 + b"\xff\xfe", "not UTF-8 text (byte 200)"),
        ("cut in a character: é".encode()[:-1], "not UTF-8 text (byte 20)"),
        (b"too short", "leaves 0 sequences"),
        (pickle.dumps({"a": 1}), "not UTF-8 text"),
    ],
)
def test_a_file_that_is_not_text_is_refused_by_name(tmp_path, content, said):
    message = refusal("files", write(tmp_path / "odd.txt", content))
    assert "odd.txt" in message and said in message


def test_a_bad_file_in_a_folder_is_the_one_named(tmp_path):
    write(tmp_path / "a.txt", "fine " * 100)
    write(tmp_path / "b.bin", b"\x89PNG\0")
    assert str(tmp_path / "b.bin") in refusal("files", tmp_path)


def test_missing_paths_are_refused_by_name(tmp_path):
    (tmp_path / "hollow").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for corpus_name in ("files", "tokens"):
        for name in ("nowhere.bin", "hollow", "*.none", "pipe", "loop", "x" * 5000, "nul\0.bin"):
            assert name in refusal(corpus_name, tmp_path / name)
    assert "~nobody-of-this-name" in refusal("files", "~nobody-of-this-name/text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused_by_name(tmp_path):
    for corpus_name in ("files", "tokens"):
        path = write(tmp_path / "locked.bin", "text" * 100)
        path.chmod(0)
        assert "locked.bin cannot be read" in refusal(corpus_name, path)


def test_an_error_while_reading_names_the_file(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(5, "Input/output error")

    text, tokens = write(tmp_path / "a.txt", "text" * 100), write(tmp_path / "a.u16.bin", "text" * 100)
    monkeypatch.setattr(Path, "read_bytes", fail)
    monkeypatch.setattr(np, "memmap", fail)
    assert "a.txt cannot be read (Input/output error)" in refusal("files", text)
    assert "a.u16.bin cannot be read (Input/output error)" in refusal("tokens", tokens)


# Files of tokens

TOKENS = np.arange(300) * 7 % 251


@pytest.mark.parametrize("dtype", ["u2", "u4"])
@pytest.mark.parametrize("name", ["x.npy", "x.bin", "x.u{bits}.bin"])
def test_token_files_are_read_back_and_memory_mapped(tmp_path, dtype, name):
    tokens = TOKENS.astype(dtype)
    path = tmp_path / name.format(bits=8 * tokens.itemsize)
    np.save(path, tokens) if path.suffix == ".npy" else tokens.tofile(path)
    read = corpus("tokens", path)
    assert stream(read) == TOKENS.tolist()
    assert read.train_tokens.dtype == tokens.dtype
    assert read.vocab == TOKENS.max() + 1
    assert read.sha256 == hashlib.sha256(tokens.tobytes()).hexdigest()
    base = read.train_tokens
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_a_plain_bin_of_a_large_vocabulary_is_uint32(tmp_path):
    tokens = (TOKENS * 400).astype("<u4")
    tokens.tofile(tmp_path / "x.bin")
    assert stream(corpus("tokens", tmp_path / "x.bin", vocab=128_000)) == tokens.tolist()


def test_truncated_token_files_are_refused_by_name(tmp_path):
    np.save(tmp_path / "x.npy", TOKENS.astype(np.uint16))
    TOKENS.astype("<u2").tofile(tmp_path / "x.u16.bin")
    TOKENS.astype("<u4").tofile(tmp_path / "x.u32.bin")
    TOKENS.astype("<u4").tofile(tmp_path / "x.bin")
    for name in ("x.npy", "x.u16.bin", "x.u32.bin", "x.bin"):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-1])
        message = refusal("tokens", path)
        assert name in message and "truncated" in message


@pytest.mark.parametrize(
    "array", [np.zeros(0, np.uint16), TOKENS.astype(np.int64), TOKENS.astype(">u2"), np.zeros((20, 20), np.uint16)]
)
def test_other_arrays_are_refused_by_name(tmp_path, array):
    np.save(tmp_path / "odd.npy", array)
    assert "odd.npy" in refusal("tokens", tmp_path / "odd.npy")


class Exploit:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_no_pickle_is_ever_run(tmp_path):
    evil = pickle.dumps(Exploit())
    write(tmp_path / "plain.npy", evil)
    np.save(tmp_path / "object.npy", np.array([Exploit()] * 300, object), allow_pickle=True)
    np.savez(tmp_path / "archive.npz", a=np.array([Exploit()], object))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    for name in ("plain.npy", "object.npy", "archive.npy"):
        assert name in refusal("tokens", tmp_path / name)


@pytest.mark.parametrize(
    "shape", ["(-1,)", "(4611686018427387904,)", "(99999999999999999999999,)", "('a',)", "(1e3,)", "x"]
)
def test_a_lying_header_is_refused_by_name(tmp_path, shape):
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    write(tmp_path / "lie.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(600))
    assert "lie.npy" in refusal("tokens", tmp_path / "lie.npy")


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=400), suffix=st.sampled_from([".npy", ".bin", ".u16.bin", ".u32.bin", ".txt"]))
def test_any_bytes_are_tokens_or_are_refused_with_the_name(tmp_path_factory, content, suffix):
    path = write(tmp_path_factory.mktemp("any") / f"any{suffix}", content)
    try:
        read = token_files.open_tokens(path, vocab=256)
    except BadInput as error:
        assert path.name in str(error)
    else:
        assert read.tobytes() == content


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.integers(0, 127), st.sampled_from(b"0123456789,()'{}[]<>|uifOVL-\0\xff"), min_size=1, max_size=3)
)
def test_a_damaged_header_is_refused_by_name_or_says_the_same(tmp_path_factory, damage):
    path = tmp_path_factory.mktemp("damaged") / "damaged.npy"
    tokens = TOKENS.astype(np.uint16)
    np.save(path, tokens)
    content = bytearray(path.read_bytes())
    for place, byte in damage.items():
        content[place] = byte
    path.write_bytes(content)
    try:
        assert token_files.open_tokens(path, vocab=256).tobytes() == tokens.tobytes()
    except BadInput as error:
        assert "damaged.npy" in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("place", [0, 123, 299])
def test_a_token_beyond_the_vocabulary_is_named_with_its_file_and_place(tmp_path, place):
    tokens = TOKENS.astype("<u4")
    tokens[place] = 4_000_000_000
    tokens.tofile(tmp_path / "x.u32.bin")
    message = refusal("tokens", tmp_path / "x.u32.bin")
    assert "x.u32.bin" in message and "token 4000000000" in message and f"position {place}," in message


def test_text_needs_a_vocabulary_that_holds_its_bytes(tmp_path):
    path = write(tmp_path / "a.txt", "plain text " * 20)
    assert corpus("files", path, vocab=128).vocab == ord("x") + 1
    assert "a.txt has token 120" in refusal("files", path, vocab=120)


def test_a_large_token_file_is_scanned_once_until_it_changes(tmp_path, monkeypatch, cache_home):
    monkeypatch.setattr("jaxdp.data.corpora.REMEMBERED_BYTES", 1)
    path = tmp_path / "x.u16.bin"
    TOKENS.astype("<u2").tofile(path)
    first = corpus("tokens", path)
    (scan,) = (cache_home / "jaxdp").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("jaxdp.data.corpora._scan", None)
        assert corpus("tokens", path).sha256 == first.sha256
    scan.write_bytes(b"\0" * 100)  # a damaged cache is not believed
    assert corpus("tokens", path).sha256 == first.sha256
    assert "token 250" in refusal("tokens", path, vocab=250)
    TOKENS[::-1].astype("<u2").tofile(path)
    os.utime(path, ns=(1, 1))
    assert corpus("tokens", path).sha256 != first.sha256


# The split


@settings(max_examples=100, deadline=None)
@given(
    total=st.integers(20, 3000),
    context=st.integers(1, 40),
    batch=st.integers(1, 8),
    share=st.floats(0.01, 0.49),
    most=st.integers(1, 20),
)
def test_the_heldout_tail_is_whole_sequences_and_the_rest_trains(tmp_path_factory, total, context, batch, share, most):
    path = tmp_path_factory.mktemp("split") / "x.u32.bin"
    np.arange(total, dtype="<u4").tofile(path)
    settings_ = {"vocab": total, "context": context, "batch": batch, "heldout": share, "heldout_sequences": most}
    try:
        split = corpus("tokens", path, **settings_)
    except BadInput as error:
        assert "x.u32.bin" in str(error)
        smallest_heldout = context + 1
        assert total - max(smallest_heldout, math.floor(total * share)) <= batch * context + context
        return
    assert stream(split) == list(range(total))
    sequences, rest = divmod(len(split.heldout_tokens) - 1, context)
    assert rest == 0 and 1 <= sequences <= most
    assert sequences == 1 or len(split.heldout_tokens) <= total * share
    assert len(split.train_tokens) >= batch * context + 1


@given(content=st.binary(min_size=60, max_size=400))
@settings(max_examples=50, deadline=None)
def test_the_unigram_entropy_is_that_of_the_training_split(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("entropy") / "x.npy"
    np.save(path, np.frombuffer(content, np.uint8))
    read = corpus("tokens", path)
    counts = Counter(read.train_tokens.tolist()).values()
    total = sum(counts)
    assert read.unigram_entropy_nats == pytest.approx(sum(c / total * math.log(total / c) for c in counts), abs=1e-12)


# Tokenizers

WORDS = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3, "[END]": 4, "[PAD]": 5}
WORD_TOKENIZER = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": {"Fixed": 900},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 5,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    },
    "added_tokens": [
        {
            "id": 4,
            "content": "[END]",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[END]", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"[END]": {"id": "[END]", "ids": [4], "tokens": ["[END]"]}},
    },
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"},
}


@pytest.fixture
def words(tmp_path) -> Path:
    return write(tmp_path / "tokenizer.json", json.dumps(WORD_TOKENIZER))


def test_a_tokenizer_encodes_each_document_whole_and_the_cache_is_used(tmp_path, words, cache_home, monkeypatch):
    pytest.importorskip("tokenizers")
    write(tmp_path / "text" / "a.txt", "the cat sat " * 20)
    write(tmp_path / "text" / "b.txt", "cat dog " * 20)
    expected = [1, 2, 3] * 20 + [4] + [2, 0] * 20 + [4]
    first = corpus("files", tmp_path / "text", vocab=6, tokenizer=words)
    assert stream(first) == expected
    (kept,) = (cache_home / "jaxdp").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("jaxdp.data.text._encode", None)
        assert corpus("files", tmp_path / "text", vocab=6, tokenizer=words).sha256 == first.sha256
    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    kept.write_bytes(damaged)
    assert stream(corpus("files", tmp_path / "text", vocab=6, tokenizer=words)) == expected
    # Another tokenizer of the same length is another tokenizer.
    write(words, words.read_text().replace('"cat": 2, "sat": 3', '"cat": 3, "sat": 2'))
    assert stream(corpus("files", tmp_path / "text", vocab=6, tokenizer=words))[:3] == [1, 3, 2]
    assert "has token 4 at position 60" in refusal("files", tmp_path / "text", vocab=4, tokenizer=words)


def test_bad_tokenizers_are_refused_by_name(tmp_path, words):
    pytest.importorskip("tokenizers")
    text = write(tmp_path / "a.txt", "the cat sat " * 20)
    for content in (b"", b"{}", b"\x80\x04.", b"not json"):
        bad = write(tmp_path / "bad.json", content)
        assert "bad.json is not a tokenizer.json" in refusal("files", text, tokenizer=bad)
    assert "gone.json" in refusal("files", text, tokenizer=tmp_path / "gone.json")
    assert "leave it out" in refusal("synthetic", tokenizer=words)


def test_a_missing_tokenizer_package_names_the_command(tmp_path, words, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    text = write(tmp_path / "a.txt", "the cat sat " * 20)
    assert install_command("tokenizers") in refusal("files", text, tokenizer=words)


# What people bring


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_the_header_of_llm_c_is_skipped_and_held_to_what_it_promises(tmp_path, magic, version, dtype):
    tokens = (TOKENS * 100).astype(dtype)
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path = write(tmp_path / "fineweb_train_000001.bin", header.tobytes() + tokens.tobytes())
    read = corpus("tokens", path, vocab=50_304)
    assert stream(read) == tokens.tolist() and read.train_tokens.dtype == np.dtype(dtype)
    write(path, header.tobytes() + tokens[:-1].tobytes())
    assert "its header promises 300" in refusal("tokens", path, vocab=50_304)


def test_shards_are_one_stream_in_order(tmp_path):
    for number in (2, 1, 3):
        (TOKENS[number * 50 :][:50]).astype("<u2").tofile(tmp_path / f"train_{number}.u16.bin")
    read = corpus("tokens", tmp_path / "train_*.bin")
    assert stream(read) == TOKENS[50:200].tolist()
    (TOKENS.astype("<u4")).tofile(tmp_path / "train_4.u32.bin")
    assert "different types" in refusal("tokens", tmp_path / "train_*.bin")


def test_two_byte_tokens_are_not_taken_for_four_byte_ones(tmp_path):
    (TOKENS * 200).astype("<u2").tofile(tmp_path / "x.bin")
    assert "name it .u16.bin" in refusal("tokens", tmp_path / "x.bin", vocab=128_000)
    (tmp_path / "x.bin").rename(tmp_path / "x.u16.bin")
    assert stream(corpus("tokens", tmp_path / "x.u16.bin", vocab=128_000)) == (TOKENS * 200).tolist()


def test_lines_of_json_are_documents(tmp_path):
    lines = [{"text": "the first, é\n"}, {"text": "the second " * 20, "url": "x"}]
    path = write(tmp_path / "a.jsonl", "\n".join(json.dumps(line) for line in lines) + "\n\n")
    read = corpus("files", path)
    assert bytes(stream(read)) == "\0".join(line["text"] for line in lines).encode()
    assert read.separator == "a NUL byte"
    assert bytes(stream(corpus("files", path, separator="none"))) == "".join(line["text"] for line in lines).encode()
    assert bytes(stream(corpus("files", path, separator="\n--\n"))).count(b"\n--\n") == 1
    assert "a.jsonl, line 1: has no text in 'content' (it has text); set data.text_field" in refusal(
        "files", path, text_field="content"
    )
    write(path, '{"text": "a"}\nplain\n')
    assert "a.jsonl, line 2: is no JSON object" in refusal("files", path)


def test_documents_end_with_the_tokenizers_end_token(tmp_path):
    pytest.importorskip("tokenizers")
    plain = {**WORD_TOKENIZER, "post_processor": None}
    plain["added_tokens"] = [{**WORD_TOKENIZER["added_tokens"][0], "content": "<|endoftext|>"}]
    words = write(tmp_path / "plain.json", json.dumps(plain))
    write(tmp_path / "text" / "a.txt", "the cat sat " * 20)
    write(tmp_path / "text" / "b.txt", "cat dog " * 20)
    apart = corpus("files", tmp_path / "text", vocab=7, tokenizer=words)
    assert stream(apart) == [1, 2, 3] * 20 + [6] + [2, 0] * 20 + [6]
    assert apart.separator == "<|endoftext|>"
    fused = corpus("files", tmp_path / "text", vocab=7, tokenizer=words, separator="none")
    assert stream(fused) == [1, 2, 3] * 20 + [2, 0] * 20
    assert "is no token of" in refusal("files", tmp_path / "text", vocab=7, tokenizer=words, separator="<nothing>")


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbf" + b"plain text " * 30)
    assert bytes(stream(corpus("files", path))) == b"plain text " * 30
