"""That training learns: real text below its unigram entropy, a known source to near its entropy."""

from pathlib import Path

import pytest

from jaxdp.config import load
from jaxdp.job.stop import StopFlag
from jaxdp.run.prepare import prepare
from jaxdp.run.train import train

pytestmark = pytest.mark.slow


def eval_loss(folder: Path, strategy: str, *overrides: str) -> tuple[float, dict[str, float]]:
    config = load(["tiny"], overrides, {"strategy.name": strategy})
    prepared = prepare([config], 2, name="train", run_dir=str(folder))
    summary = train(prepared, observe=lambda *_: None, stop=StopFlag())
    assert summary.step == 200 and summary.eval_loss is not None
    return summary.eval_loss, prepared.data.describe()


@pytest.mark.parametrize("strategy", ["fsdp", "ps"])
def test_tiny_learns_more_of_the_stdlib_than_how_often_bytes_occur(strategy: str, tmp_path: Path) -> None:
    found, data = eval_loss(tmp_path / "run", strategy)
    assert found < data["unigram_entropy_nats"]


def test_tiny_comes_within_five_percent_of_the_markov_sources_entropy(tmp_path: Path) -> None:
    found, data = eval_loss(tmp_path / "run", "ddp", "data.corpus=synthetic", "model.vocab=64")
    assert data["best_loss_nats"] < found < 1.05 * data["best_loss_nats"]
