"""Real training in virtual time: the curves of the server in lockstep are DDP's, and runs repeat to the byte."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cli.sim import sim
from jaxdp.errors import BadInput
from sims.curve import Curve, Point, Training, time_to_loss
from sims.gradients import TrainingSetup, best_of_grid, train
from sims.outcome import Outcome
from sims.scenario import Scenario, build
from sims.strategy import Strategy

SMALL = """
[model]
layers = 1
width = 16
heads = 2
ffn = 32
context = 16
[data]
corpus = "synthetic"
[train]
global_batch = 8
[optim]
warmup_steps = 2
learning_rate = 0.01
"""
DDP, ASYNC = Strategy(name="ddp"), Strategy(name="ps")


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    path = tmp_path_factory.mktemp("configs") / "small.toml"
    path.write_text(SMALL)
    return TrainingSetup(scenario(str(path)), 0)


@pytest.fixture(scope="module")
def ddp(setup: TrainingSetup) -> tuple[Point, ...]:
    return train(setup, DDP)[1]


@pytest.fixture(scope="module")
def free(setup: TrainingSetup) -> tuple[Outcome, tuple[Point, ...]]:
    return train(setup, ASYNC)


def scenario(path: str, **more: Any) -> Scenario:
    values = {"workers": 4, "steps": 12, "delays": "pace(seconds=1),persistent(factor=4,worker=0)", "train": path}
    return build({**values, **more})


def losses(points: tuple[Point, ...]) -> list[float]:
    return [point.loss for point in points]


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(name="ps", policy="sync"),
        pytest.param(Strategy(name="ps", policy="ssp", bound=0, server_shards=3), marks=pytest.mark.slow),
        pytest.param(Strategy(name="ps", policy="backup", backups=0), marks=pytest.mark.slow),
    ],
    ids=lambda strategy: strategy.label,
)
def test_in_lockstep_the_loss_curve_is_that_of_ddp(
    setup: TrainingSetup, ddp: tuple[Point, ...], strategy: Strategy
) -> None:
    expected = ddp
    _, found = train(setup, strategy)
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5)
    np.testing.assert_allclose([p.virtual_time_s for p in found], [p.virtual_time_s for p in expected], rtol=1e-9)
    assert [p.tokens for p in found] == [p.tokens for p in expected] == [128 * step for step in range(1, 13)]
    assert losses(expected)[-1] < losses(expected)[0]


def test_the_same_seed_trains_the_same_to_the_bit(
    setup: TrainingSetup, free: tuple[Outcome, tuple[Point, ...]]
) -> None:
    assert train(setup, ASYNC)[1] == free[1]


@pytest.mark.slow
def test_a_worker_alone_trains_like_ddp(setup: TrainingSetup) -> None:
    alone = TrainingSetup(replace(setup.scenario, workers=1), 0)
    np.testing.assert_allclose(losses(train(alone, ASYNC)[1]), losses(train(alone, DDP)[1]), rtol=1e-5)


def test_asynchronous_training_is_faster_and_stale(
    ddp: tuple[Point, ...], free: tuple[Outcome, tuple[Point, ...]]
) -> None:
    outcome, points = free
    assert points[-1].virtual_time_s < 0.4 * ddp[-1].virtual_time_s
    assert max(outcome.staleness) > 3
    assert losses(points)[-1] < losses(points)[0]


@pytest.mark.parametrize("correction", ["lr_over_staleness", "delay_compensation"])
def test_corrections_change_the_training_and_not_its_times(
    setup: TrainingSetup, free: tuple[Outcome, tuple[Point, ...]], correction: Any
) -> None:
    plain = free[1]
    _, corrected = train(setup, Strategy(name="ps", correction=correction))
    assert [p.virtual_time_s for p in corrected] == [p.virtual_time_s for p in plain]
    assert losses(corrected) != losses(plain)
    assert all(map(math.isfinite, losses(corrected)))


def test_small_batches_make_n_updates_a_step(setup: TrainingSetup, ddp: tuple[Point, ...]) -> None:
    _, points = train(setup, Strategy(name="ddp_small_batch"))
    assert [p.tokens for p in points] == [128 * step for step in range(1, 13)]
    assert losses(points)[-1] < losses(ddp)[-1]  # four times as many updates of these few


def test_an_outage_loses_a_gradient_and_no_more(setup: TrainingSetup) -> None:
    failing = replace(setup.scenario, stragglers="pace(seconds=1),fail(mtbf_s=4,restart_s=2,worker=1)")
    lossy = TrainingSetup(failing, 0)
    lossy.__dict__["initial"] = setup.initial
    outcome, points = train(lossy, Strategy(name="ps", policy="softsync", group=2))
    assert outcome.wasted > 0
    assert len(points) >= 10
    assert all(map(math.isfinite, losses(points)))


def test_the_grid_keeps_the_rate_that_ends_lowest(setup: TrainingSetup) -> None:
    grid = (0.01, 1e-5, 100.0)
    gridded = TrainingSetup(replace(setup.scenario, learning_rates=grid), 0)
    _, training = best_of_grid(gridded, ASYNC)
    assert training.learning_rate == 0.01
    assert set(training.ends) == set(grid)
    assert training.ends[0.01] < training.ends[1e-5]


@pytest.mark.slow
def test_the_learning_rate_of_the_grid_reaches_the_mesh_step(setup: TrainingSetup, ddp: tuple[Point, ...]) -> None:
    _, hardly = train(setup, DDP, learning_rate=1e-6)
    assert losses(hardly)[0] == losses(ddp)[0]
    assert losses(hardly)[-1] > losses(ddp)[-1] + 0.05


def test_a_batch_the_workers_do_not_divide_is_refused(setup: TrainingSetup) -> None:
    with pytest.raises(BadInput, match="global_batch"):
        TrainingSetup(replace(setup.scenario, workers=3), 0)


def test_the_command_repeats_to_the_byte(setup: TrainingSetup, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(sim)
    flags = ["--gradients", "--train", setup.scenario.train, "--strategy", "ps", "--workers", "4", "--steps", "8"]
    flags += ["--compute-s", "1", "--stragglers", "lognormal(sigma=.3)", "--until-loss", "4.5", "--json", "--quiet"]
    documents = []
    for name in ("one", "two"):
        found = CliRunner().invoke(app, [*flags, "--run-dir", str(tmp_path / name)])
        assert found.exit_code == 0, found.output
        documents.append(json.loads(found.stdout))
    one, two = tmp_path / "one", tmp_path / "two"
    assert (one / "losses.csv").read_bytes() == (two / "losses.csv").read_bytes()
    assert (one / "results.json").read_bytes() == (two / "results.json").read_bytes()
    assert (one / "figures" / "loss.svg").exists()
    for row in documents[0]["results"]:
        assert row["loss"]["last"] < row["loss"]["first"]
        assert row["time_to_loss_s"] is None or 0 < row["time_to_loss_s"] <= row["virtual_time_s"]


def test_points_gather_a_global_batch_of_tokens() -> None:
    curve = Curve(100)
    for update in range(1, 9):
        curve.add(float(update), 25 * update, loss_sum=25.0 * update, valid=25.0)
    assert curve.points == [Point(4.0, 100, 2.5), Point(8.0, 200, 6.5)]


def test_time_to_loss_is_of_the_smoothed_curve() -> None:
    points = [Point(float(i), i, loss) for i, loss in enumerate([5, 5, 0, 5, 5, 3, 2, 2, 2, 2])]
    assert time_to_loss(points, 3.0) == 6.0
    assert time_to_loss(points, 1.0) is None
    assert Training(0.1, (Point(1.0, 1, math.nan),)).final_loss == math.inf
