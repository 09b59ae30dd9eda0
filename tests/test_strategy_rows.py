"""What is registered from outside the package works wherever a built-in row does; what is unknown nowhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

import jaxdp
from jaxdp.config import Config, build
from jaxdp.errors import BadInput
from jaxdp.job.stop import StopFlag
from jaxdp.policies import SERVER_POLICIES
from jaxdp.predict.advise import advise
from jaxdp.predict.compiled import examine
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.preflight import preflight
from jaxdp.registry import PLUGINS_VARIABLE, load_plugins
from jaxdp.run.bench import bench
from jaxdp.run.prepare import prepare
from jaxdp.run.train import train
from jaxdp.stragglers.models import DELAY_MODELS
from jaxdp.strategies.rows import STRATEGIES, all_strategies
from jaxdp.sweep.points import make_cells
from jaxdp.sweep.spec import load_spec

PLUGIN, TOY = "examples.own_strategy", "fsdp_blocks"
SERVER_PLUGINS = ["examples.own_policy", "examples.own_delay"]
ALL_PUSHES, COLD = "majority(percent=100)", "cold_start(extra_s=0.05,steps=4,worker=0)"
ROOT = Path(__file__).parents[1]
MODEL = {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 16, "vocab": 64}


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    load_plugins([PLUGIN, *SERVER_PLUGINS])
    yield
    STRATEGIES.unregister(TOY)  # other modules' tables are of the built-in rows
    SERVER_POLICIES.unregister("majority")
    DELAY_MODELS.unregister("cold_start")


def config(strategy: str = TOY, **sections: Any) -> Config:
    return build(
        {
            "plugins": [PLUGIN, *SERVER_PLUGINS],
            "model": MODEL,
            "data": {"corpus": "synthetic"},
            "optim": {"learning_rate": 3e-3, "warmup_steps": 2},
            "train": {"global_batch": 8, "steps": 6, "compute_dtype": "float32"},
            "strategy": {"name": strategy, "min_shard_bytes": 0},
            **sections,
        }
    )


def server_config(**sections: Any) -> Config:
    """The toy policy, which waits for all pushes here, under the toy delay."""
    return config("ps", server={"policy": ALL_PUSHES}, stragglers=COLD, **sections)


def test_bench_measures_it_and_its_own_formula(tmp_path: Path) -> None:
    """The formula is the row's own, the program's collectives are derived from its rule: they meet."""
    prepared = prepare([config()], 4, name="bench", run_dir=str(tmp_path / "run"))
    (result,) = bench(prepared, steps=2, warm_up=1, observe=lambda *_: None)
    document = result.to_json()
    assert document["strategy"] == TOY
    assert document["collective_bytes_per_device"] == pytest.approx(document["collective_bytes_minimum"], rel=0.01)
    assert {row["kind"] for row in document["collectives"]} == {"all-gather", "reduce-scatter", "all-reduce"}


def test_check_sees_what_it_leaves_whole_and_that_the_program_keeps_to_the_plan() -> None:
    report = preflight(config(), 4)
    whole = {row["parameter"] for row in report.parameters if row["bytes"] == row["shard_bytes"]}
    assert report.ok and whole == {"embed", "final_norm"}
    assert {finding.name for finding in report.findings} == {"replicated"}
    assert examine(config(), jax.devices()[:4]).findings == ()


def test_advice_lists_it_and_exhibits_only_when_asked() -> None:
    hardware = load_hardware("h100x8", 1)
    assert [row.strategy for row in advise(config("ddp"), hardware).rows] == all_strategies()
    assert "fsdp_flat" not in all_strategies() and TOY in all_strategies()
    assert "fsdp_flat" in [row.strategy for row in advise(config("fsdp_flat"), hardware).rows]


def test_a_checkpoint_moves_between_it_and_others(tmp_path: Path) -> None:
    def run(strategy: str, devices: int, folder: str, **options: Any) -> float | None:
        prepared = prepare(
            [config(strategy)], devices, name="train", run_dir=str(tmp_path / folder), resume="resume" in options
        )
        try:
            return train(prepared, observe=lambda *_: None, stop=StopFlag(), **options).loss
        finally:
            prepared.folder.release()

    whole = run("ddp", 2, "whole")
    run(TOY, 4, "moved", steps=2)
    assert run("fsdp", 2, "moved", resume="auto") == pytest.approx(whole, rel=1e-5)


def test_a_policy_and_a_delay_are_measured(tmp_path: Path) -> None:
    """Every update is made of all pushes of a version, none of them stale, and the first steps were held up."""
    (result,) = jaxdp.bench(server_config(), devices=2, steps=2, warm_up=1, run_dir=str(tmp_path / "run"))
    assert result.extra["staleness"]["max"] == 0
    assert result.extra["updates_per_second"] * 2 == pytest.approx(result.extra["worker_steps_per_second"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert rows[0]["step_time_s"] > 0.05


def test_a_policy_and_a_delay_are_checked_and_advised_on() -> None:
    assert jaxdp.check(server_config(), 4).ok
    with pytest.raises(BadInput, match="percent: expected a whole number from 1"):
        config("ps", server={"policy": "majority(percent=0)"})
    with pytest.raises(BadInput, match="extra_s is missing"):
        config("ddp", stragglers="cold_start(steps=4)")
    waiting = {row.strategy: row.cost.waiting_s for row in jaxdp.advise(server_config(), "h100x8").rows if row.runs}
    assert waiting["ddp"] > 0 and waiting[TOY] > 0


def test_a_policy_and_a_delay_are_simulated() -> None:
    """Worker 0 starts 10, 9, ... seconds late in its first steps: all pushes wait for it, half of them hardly ever."""
    strategies = ["ddp", *({"name": "ps", "policy": f"majority(percent={share})"} for share in (100, 50))]
    spec = "cold_start(extra_s=10,steps=10,worker=0)"
    keys = {"plugins": SERVER_PLUGINS, "stragglers": spec, "strategies": strategies}
    ddp, every, half = jaxdp.simulate(workers=4, steps=100, compute_s=1.0, **keys).results
    assert every.strategy.label == "ps-majority(100)"
    assert ddp.outcomes[0].virtual_time_s == pytest.approx(100 + sum(range(1, 11)))
    assert every.outcomes[0].virtual_time_s == pytest.approx(ddp.outcomes[0].virtual_time_s)
    assert half.outcomes[0].virtual_time_s == pytest.approx(100, rel=0.05)


def test_a_checkpoint_moves_between_a_policy_and_a_mesh(tmp_path: Path) -> None:
    whole = jaxdp.train(config("ddp"), devices=2, run_dir=str(tmp_path / "whole"))
    folder = str(tmp_path / "moved")
    jaxdp.train(server_config(), devices=2, run_dir=folder, steps=2)
    resumed = jaxdp.train(config("ddp"), devices=2, run_dir=folder, resume="auto")
    assert resumed.resumed_from == 2 and resumed.loss == pytest.approx(whole.loss, rel=1e-4)


def test_a_sweep_has_a_policy_and_a_delay_as_cells(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'name = "toys"\nstrategies = ["ps"]\ndevices = [2]\nscaling = "weak"\nconfig = ["tiny"]\n'
        f"[set]\nplugins = {json.dumps(SERVER_PLUGINS)}\n"
        f'[axes]\n"server.policy" = ["sync", "{ALL_PUSHES}"]\nstragglers = ["", "{COLD}"]\n'
    )
    cells = make_cells(load_spec(str(path)))
    assert {(cell.config.server.policy, cell.config.stragglers) for cell in cells} == {
        (policy, spec) for policy in ("sync", ALL_PUSHES) for spec in ("", COLD)
    }
    assert not any(cell.refusal for cell in cells)


def test_a_sweep_has_it_as_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        f'name = "toy"\nstrategies = ["ddp", "{TOY}"]\ndevices = [2]\nscaling = "weak"\nconfig = ["tiny"]\n'
        f'[set]\nplugins = ["{PLUGIN}"]\n'
    )
    cells = make_cells(load_spec(str(path)))
    assert [cell.config.strategy.name for cell in cells] == ["ddp", TOY]
    words = cells[1].arguments
    assert words[words.index("--strategy") + 1] == TOY and f'plugins=["{PLUGIN}"]' in words


def test_a_simulation_knows_it_by_what_it_sends() -> None:
    """Almost all of FSDP's three passes: here the message is all blocks."""
    flags = ["--workers", "4", "--compute-s", "1", "--message-bytes", "4000000000", "--nic-gbps", "8", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "cli", "sim", "--strategy", f"fsdp,{TOY}", *flags],
        env={**os.environ, PLUGINS_VARIABLE: PLUGIN},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    fsdp, toy = json.loads(done.stdout)["results"]
    assert (fsdp["strategy"], toy["strategy"]) == ("fsdp", TOY)
    assert toy["virtual_time_s"] == pytest.approx(fsdp["virtual_time_s"])


def test_a_servers_workers_may_train_by_it_if_its_row_says_so() -> None:
    assert config("ps", server={"worker_strategy": TOY}).server.worker_strategy == TOY
    with pytest.raises(BadInput, match=f"worker_strategy: hsdp does not work inside a worker; use .*{TOY}"):
        config("ps", server={"worker_strategy": "hsdp"})


def test_an_unknown_strategy_is_an_error_never_a_default() -> None:
    with pytest.raises(BadInput, match=r"strategy\.name: fsdq: no such strategy; did you mean fsdp\?"):
        config("fsdq")
    with pytest.raises(BadInput, match="no such strategy"):
        STRATEGIES["sharded"]


@pytest.mark.parametrize(
    ("strategy", "name"),
    [({"name": "fsdp", "unit": "flat"}, "fsdp_flat"), ({"name": "fsdp", "unit": "block"}, "fsdp")],
)
def test_the_older_spelling_of_the_flat_unit_is_its_row(strategy: dict[str, str], name: str) -> None:
    assert build({"strategy": strategy}) == build({"strategy": {"name": name}})
    for wrong in ({"name": "hsdp", "unit": "flat"}, {"name": "fsdp_flat", "unit": "block"}):
        with pytest.raises(BadInput, match=r"strategy\.unit"):
            build({"strategy": wrong})
