"""The pipeline's laws: batches are a function of seed and step, and each record is used once an epoch."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import config
from jaxdp.data.batch import Batch
from jaxdp.data.corpora import Corpus
from jaxdp.data.pipeline import Data, open_data

CONTEXT = 6


def corpus_of(train: int, heldout: int = 2 * CONTEXT + 1) -> Corpus:
    """Every token is its own place in the stream, so that a batch says where it was read."""
    tokens = np.arange(train + heldout, dtype=np.uint32)
    return Corpus("numbers", "0" * 64, train + heldout, tokens[:train], tokens[train:], 1.0, None)


def data_of(records: int = 50, batch: int = 8, seed: int = 0, heldout: int = 2 * CONTEXT + 1) -> Data:
    values = {"model": {"context": CONTEXT}, "train": {"global_batch": batch, "seed": seed}}
    return open_data(config.build(values), corpus_of(records * CONTEXT + 3, heldout))


def assert_equal(one: Batch, other: Batch) -> None:
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def concatenated(parts: list[Batch]) -> Batch:
    return Batch(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def test_a_batch_holds_windows_of_the_text_and_their_successors():
    data = data_of()
    batch = data.batch(3)
    ids = data.record_ids(3)
    for row, record in enumerate(ids):
        first = record * CONTEXT
        assert batch.inputs_BxT[row].tolist() == list(range(first, first + CONTEXT))
        assert batch.targets_BxT[row].tolist() == list(range(first + 1, first + CONTEXT + 1))
    assert batch.positions_B.tolist() == list(range(24, 32))
    assert (batch.weights_BxT == 1).all()
    dtypes = [field.dtype.name for field in batch]
    assert dtypes == ["int32", "int32", "float32", "uint32"]
    assert all(field.flags.c_contiguous and isinstance(field, np.ndarray) for field in batch)


@settings(max_examples=60, deadline=None)
@given(step=st.integers(0, 10**12), cuts=st.lists(st.integers(0, 8), max_size=6), seed=st.integers(0, 2**31 - 1))
def test_the_slices_of_devices_and_workers_make_up_the_batch(step, cuts, seed):
    data = data_of(seed=seed)
    edges = [0, *sorted(cuts), 8]
    parts = [data.rows(step, start, end - start) for start, end in pairwise(edges)]
    assert_equal(concatenated(parts), data.batch(step))


@settings(max_examples=40, deadline=None)
@given(records=st.integers(1, 40), batch=st.integers(1, 9), epoch=st.integers(0, 100), seed=st.integers(0, 99))
def test_an_epoch_takes_each_record_exactly_once(records, batch, epoch, seed):
    data = data_of(records=records, batch=batch, seed=seed)
    first, last = epoch * records // batch, ((epoch + 1) * records - 1) // batch
    taken = np.concatenate([data.record_ids(step) for step in range(first, last + 1)])
    begin = epoch * records - first * batch
    assert sorted(taken[begin : begin + records]) == list(range(records))


def epoch_of(seed: int, epoch: int, records: int = 200) -> list[int]:
    data = data_of(records=records, batch=records, seed=seed)
    return data.record_ids(epoch).tolist()


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    orders = [epoch_of(seed, epoch) for seed in range(6) for epoch in range(6)]
    assert len({tuple(order) for order in orders}) == len(orders)
    # Two independent orders of n records agree in about one place, and neighbours rarely stay neighbours.
    for one, other in pairwise(orders):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 12
        assert sum(b - a == 1 for a, b in pairwise(one)) < 12


def test_the_same_seed_is_the_same_stream_read_from_any_step():
    forwards = [data_of(seed=5).batch(step) for step in range(20)]
    data = data_of(seed=5)
    for step in reversed(range(20)):
        assert_equal(data.batch(step), forwards[step])
    assert data_of(seed=6).record_ids(0).tolist() != data.record_ids(0).tolist()


def test_the_order_of_records_is_the_one_that_checkpoints_count_on():
    """If this fails, a new Grain shuffles otherwise: a resumed run would see other data. Say so in the release."""
    data = data_of(records=1000, batch=8, seed=0)
    assert data.record_ids(0).tolist() == [233, 815, 962, 246, 407, 428, 821, 490]
    assert data.record_ids(1000).tolist() == [853, 948, 905, 926, 662, 495, 249, 559]


def test_threads_may_read_at_once():
    data = data_of(records=1000, batch=64)
    alone = [data.record_ids(step).tolist() for step in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda step: data.record_ids(step).tolist(), range(40)))
    assert together == alone


def test_training_never_sees_heldout_tokens():
    data = data_of(records=50, batch=50, heldout=5 * CONTEXT + 1)
    trained = {int(t) for field in data.batch(0)[:2] for t in field.ravel()}
    evaluated = {int(t) for batch in data.eval_batches(3) for field in batch[:2] for t in field[batch.weights_BxT > 0]}
    assert len(trained) == 50 * CONTEXT + 1 and len(evaluated) == 5 * CONTEXT + 1
    assert not trained & evaluated


@settings(max_examples=40, deadline=None)
@given(sequences=st.integers(1, 30), batch_size=st.integers(1, 12))
def test_evaluation_covers_every_heldout_target_once_in_equal_batches(sequences, batch_size):
    data = data_of(heldout=sequences * CONTEXT + 1)
    batches = list(data.eval_batches(batch_size))
    assert {batch.inputs_BxT.shape for batch in batches} == {(batch_size, CONTEXT)}
    whole = concatenated(batches)
    valid = whole.weights_BxT > 0
    assert whole.targets_BxT[valid].tolist() == data.corpus.heldout_tokens[1:].tolist()
    assert whole.inputs_BxT[valid].tolist() == data.corpus.heldout_tokens[:-1].tolist()
    assert len(batches) == -(-sequences // batch_size)


def test_ten_sequences_in_batches_of_four_give_the_exact_mean():
    data = data_of(heldout=10 * CONTEXT + 1)

    def loss(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.sin(inputs) ** 2 + targets % 7  # uneven, and nonzero on padding

    heldout = data.corpus.heldout_tokens.astype(np.int64)
    exact = loss(heldout[:-1], heldout[1:]).mean()
    batches = list(data.eval_batches(4))
    total = sum((loss(b.inputs_BxT, b.targets_BxT) * b.weights_BxT).sum() for b in batches)
    assert [b.weights_BxT.sum() / CONTEXT for b in batches] == [4, 4, 2]
    assert total / sum(b.weights_BxT.sum() for b in batches) == pytest.approx(exact, rel=1e-12)


def test_rows_outside_the_batch_are_an_error():
    data = data_of()
    for step, start, count in ((-1, 0, 8), (0, -1, 2), (0, 7, 2), (0, 0, -1)):
        with pytest.raises(ValueError, match="outside a batch of 8"):
            data.rows(step, start, count)
    with pytest.raises(ValueError, match="a batch of 0"):
        list(data.eval_batches(0))


def test_positions_wrap_at_32_bits():
    assert data_of().batch(2**29).positions_B.tolist() == list(range(8))


def test_the_description_is_strict_json_and_true(tmp_path):
    path = tmp_path / "x.u16.bin"
    np.arange(1000, dtype="<u2").tofile(path)
    values = {
        "model": {"context": 10, "vocab": 1000},
        "data": {"corpus": "tokens", "path": os.fspath(path), "heldout": 0.1},
        "train": {"global_batch": 4},
    }
    data = open_data(config.build(values))
    said = data.describe()
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    # 100 tokens are held out, whole sequences of 10 and one token more: 91; the other 909 hold 90 sequences.
    assert (said["heldout_tokens"], said["heldout_sequences"]) == (91, 9)
    assert (said["train_tokens"], said["train_sequences"]) == (909, 90)
    assert (said["corpus"], said["dtype"], said["vocab"]) == (str(path), "uint16", 1000)
    assert said["unigram_entropy_nats"] == pytest.approx(np.log(909))


def test_opening_the_data_starts_no_backend():
    code = (
        "from jaxdp.config import Config; from jaxdp.data.pipeline import open_data; open_data(Config()).batch(0)\n"
        "from jax._src.xla_bridge import backends_are_initialized; print(backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
