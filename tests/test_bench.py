"""What a bench measures and says: windows, stragglers, races to a loss, timelines, and unlike settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxdp.config import Config, build
from jaxdp.data.pipeline import open_data
from jaxdp.errors import BadInput
from jaxdp.records import BenchResult, quantile, step_time
from jaxdp.report.tables import differences
from jaxdp.run.bench import bench, window_sizes
from jaxdp.run.mesh_run import RUN_AHEAD, MeshRun
from jaxdp.run.prepare import prepare

PACE = "pace(seconds=0.2),persistent(worker=0,factor=3)"


def settings(strategy: str, **sections: Any) -> Config:
    return build(
        {
            "model": {"layers": 1, "width": 16, "heads": 2, "ffn": 32, "context": 16, "vocab": 64},
            "optim": {"learning_rate": 1e-2, "warmup_steps": 2, "schedule": "constant"},
            "train": {"global_batch": 8, "steps": 400},
            "strategy": {"name": strategy},
            "data": {"corpus": "synthetic"},
            **sections,
        }
    )


def run(folder: Path, configs: list[Config], devices: int, **options: Any) -> list[BenchResult]:
    prepared = prepare(configs, devices, name="bench", run_dir=str(folder))
    options = {"steps": 10, "warm_up": 2, "observe": lambda *_: None, **options}
    return bench(prepared, **options)


def test_a_window_runs_only_a_few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """More programs than a CPU client admits to a device wait for each other for ever."""
    config = settings("ddp")
    run = MeshRun(config, open_data(config), jax.devices()[:2])
    run.compile()
    run.start()
    compiled, wait = run.compiled, jax.block_until_ready
    launched: list[Any] = []
    done = 0

    def launch(state: Any, batch: Any) -> Any:
        assert len(launched) - done < RUN_AHEAD
        state, metrics = compiled(state, batch)
        launched.append(metrics)
        return state, metrics

    def wait_for(value: Any) -> Any:
        nonlocal done
        done = max([done, *(index + 1 for index, metrics in enumerate(launched) if metrics is value)])
        return wait(value)

    monkeypatch.setattr(run, "compiled", launch)
    monkeypatch.setattr(jax, "block_until_ready", wait_for)
    assert len(run.window(3 * RUN_AHEAD).records) == len(launched) == 3 * RUN_AHEAD


def test_under_stragglers_the_barrier_waits_and_the_server_does_not(tmp_path: Path) -> None:
    """Pace .2 s, one of two workers three times slower: DDP takes .6 s a step, the server 2/(1/.2 + 1/.6) = .3 s.

    A busy machine only adds to that, so the lower bounds are sharp.
    """
    configs = [settings(name, stragglers=PACE) for name in ("ddp", "ps")]
    ddp, ps = run(tmp_path / "run", configs, 2, steps=10, trace=True)
    assert 0.6 <= ddp.step_time_s.median < 0.9
    assert 0.27 <= ps.step_time_s.median < 0.75 * ddp.step_time_s.median
    assert ddp.extra["intended_step_s"] == pytest.approx([0.6, 0.2])
    assert ddp.extra["realised_step_s"] == pytest.approx([0.6, 0.2], rel=0.3)
    # A push is an update of half a batch; rates and step times are of the same windows.
    assert ps.extra["updates_per_second"] == pytest.approx(2 / ps.step_time_s.median, rel=0.1)
    assert ps.extra["policy"] == "async" and ps.extra["staleness"]["mean"] > 0
    assert ps.extra["bytes_pulled"] > 0 and len(ps.extra["idle_share"]) == 2
    assert ps.collective_bytes_minimum == ps.collective_bytes_per_device == 2 * ddp.memory.parameter_bytes_per_device
    assert any("stragglers" in note for note in ddp.notes)
    for name, lanes in (("ddp", {"compute"}), ("ps", {"compute", "NIC in", "NIC out", "apply"})):
        events = json.loads((tmp_path / "run" / name / "trace.json").read_text())["traceEvents"]
        assert {event["cat"] for event in events if event["ph"] == "X"} == lanes
        assert min(event["ts"] for event in events if event["ph"] == "X") == 0
    pushes = [json.loads(line) for line in (tmp_path / "run" / "ps" / "steps.jsonl").read_text().splitlines()]
    assert {"worker", "sequence", "version", "staleness", "applied"} <= set(pushes[0])


def test_a_race_to_a_loss_reports_its_time(tmp_path: Path) -> None:
    (won,) = run(tmp_path / "won", [settings("ddp")], 1, steps=200, until_loss=4.1)
    assert won.extra["time_to_loss_s"] > 0 and won.extra["steps_to_loss"] < 200
    (lost,) = run(tmp_path / "lost", [settings("ddp")], 1, steps=10, until_loss=0.5)
    assert lost.extra == {"time_to_loss_s": None, "steps_to_loss": None}


def test_what_cannot_straggle_is_refused(tmp_path: Path) -> None:
    for spec, told in (("fail(mtbf_s=1,restart_s=1)", "fail"), ("persistent(worker=7,factor=2)", "worker")):
        with pytest.raises(BadInput, match=told):
            run(tmp_path / told, [settings("ddp", stragglers=spec)], 2)


@pytest.mark.parametrize(("steps", "least"), [(1, 1), (7, 1), (10, 1), (23, 1), (20, 5), (4, 5), (1003, 1)])
def test_windows_cover_the_steps(steps: int, least: int) -> None:
    sizes = window_sizes(steps, least)
    assert sum(sizes) == steps and max(sizes) - min(sizes) <= 1 and len(sizes) <= 10
    assert min(sizes) >= min(least, steps)


def test_quantiles_are_numpys() -> None:
    import numpy as np

    values = [0.3, 0.1, 0.25, 0.9, 0.11]
    for share in (0, 0.1, 0.5, 0.9, 1):
        assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)))
    assert (step_time(values).median, step_time(values).n) == (0.25, 5)


def test_unlike_settings_are_pointed_out(tmp_path: Path) -> None:
    (one,) = run(tmp_path / "one", [settings("ddp")], 1, steps=1, warm_up=1)
    other = replace(one, strategy="fsdp", settings={**one.settings, "remat": "dots"})
    assert differences([one, one]) == []
    assert differences([one, other]) == ["the strategies differ in remat: ddp block, fsdp dots"]
