"""The synthetic source: its sampled tokens follow its matrix, and its known entropy is the matrix's."""

import math

import numpy as np
import pytest

from jaxdp import config
from jaxdp.data import synthetic
from jaxdp.data.corpora import Corpus, open_corpus


def source(seed: int = 0, **data) -> Corpus:
    return open_corpus(config.build({"data": {"corpus": "synthetic", **data}, "train": {"seed": seed}}))


def test_the_known_entropy_is_the_markov_chains():
    for seed in (0, 1):
        matrix = synthetic.transition_matrix(seed)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)
        values, vectors = np.linalg.eig(matrix.T)
        stationary = np.real(vectors[:, np.argmin(abs(values - 1))])
        stationary /= stationary.sum()
        rate = -sum(stationary[a] * matrix[a, b] * math.log(matrix[a, b]) for a in range(64) for b in range(64))
        known = source(seed=seed).best_loss_nats
        assert known == pytest.approx(rate, rel=1e-12)
        assert rate >= 2


def test_the_sampled_tokens_follow_the_matrix():
    sampled = source(heldout_sequences=50_000, heldout=0.2)
    pairs = np.zeros((64, 64))
    np.add.at(pairs, (sampled.train_tokens[:-1], sampled.train_tokens[1:]), 1)
    expected = pairs.sum(axis=1, keepdims=True) * synthetic.transition_matrix(0)
    chi_squared = ((pairs - expected) ** 2 / expected).sum()
    freedom = 64 * 63
    assert abs(chi_squared - freedom) < 6 * math.sqrt(2 * freedom)
    # A model fitted to the training split must come within sampling error of the known loss on the other.
    logs = np.log((pairs + 0.1) / (pairs + 0.1).sum(axis=1, keepdims=True))
    heldout_loss = -logs[sampled.heldout_tokens[:-1], sampled.heldout_tokens[1:]].mean()
    assert heldout_loss == pytest.approx(sampled.best_loss_nats, abs=0.01)
    assert sampled.unigram_entropy_nats == pytest.approx(math.log(64), abs=1e-3)


def test_successive_steps_are_independent_given_the_symbol_between():
    """First order: knowing the symbol before the last adds nothing."""
    tokens = source().train_tokens.astype(np.int64)
    places = np.argsort(synthetic._source(0)[0])[tokens]
    steps = np.diff(places) % 64
    observed = np.zeros((64, 64))
    np.add.at(observed, (steps[:-1], steps[1:]), 1)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0)) / observed.sum()
    chi_squared, freedom = ((observed - expected) ** 2 / expected).sum(), 63 * 63
    assert abs(chi_squared - freedom) < 6 * math.sqrt(2 * freedom)


def test_the_seed_is_the_whole_source():
    assert source(seed=3).sha256 == source(seed=3).sha256
    assert source(seed=3).sha256 != source(seed=4).sha256
