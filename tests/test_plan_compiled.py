"""The compiled check: sound programs raise nothing, a program that leaves its strategy's plan is refused."""

import re
from importlib import metadata

import jax
import pytest

from jaxdp.config import Config, build
from jaxdp.errors import BadInput, Refused
from jaxdp.mesh.gpu_targets import GPU_TARGETS, GpuTarget, target_config
from jaxdp.mesh.topology import require_libtpu, topology_devices
from jaxdp.predict.compiled import _finding, compiled_check, examine
from jaxdp.predict.discrepancies import Discrepancy
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.preflight import preflight, require
from jaxdp.predict.traffic import phases
from jaxdp.strategies.collectives import summarise
from jaxdp.strategies.rules import Cut

MODEL = {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "context": 16, "vocab": 64}


def config(strategy: str, dtype: str = "float32") -> Config:
    return build(
        {
            "model": MODEL,
            "train": {"global_batch": 16, "compute_dtype": dtype},
            "strategy": {"name": strategy, "min_shard_bytes": 0},
        }
    )


def test_a_sound_program_has_no_findings_and_known_memory():
    sound = config("fsdp", "bfloat16")
    report = compiled_check(sound, preflight(sound, 4))
    assert report.findings == ()
    assert report.compiled is not None
    assert report.memory_bytes == report.compiled["memory"]["total"] > 0
    assert {row["kind"] for row in report.compiled["collectives"]} >= {"all-gather", "reduce-scatter"}


@pytest.mark.parametrize(
    "strategy", ["hsdp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp", "zero1", "fsdp"))]
)
def test_the_predicted_volume_is_the_programs(strategy):
    """Within 1 %: what the cost model charges a device for is what the compiled program sends."""
    program = examine(config(strategy), jax.devices()[:4])
    _, sent = summarise(program.collectives)
    predicted = phases(config(strategy), load_hardware("h100x4"), "float32").moved_bytes
    assert program.findings == ()
    assert sent == pytest.approx(predicted, rel=0.01)


def test_an_fsdp_program_without_gathers_is_refused():
    """The replicated rule compiled under FSDP's name: gathers are missing, the whole reduction is unplanned."""
    wrong = config("fsdp")
    ddp = config("ddp").strategy.rule
    report = compiled_check(wrong, preflight(wrong, 4), rule=ddp)
    assert any("all-gather" in finding.message for finding in report.findings)
    with pytest.raises(Refused, match="unplanned_collective"):
        require(report)


@pytest.mark.slow
def test_one_leaf_left_whole_shows_in_the_program():
    wrong = config("fsdp")
    sound = wrong.strategy.rule

    def rule(parameter, axis_sizes):
        return Cut() if parameter.path == "blocks.qkv" else sound(parameter, axis_sizes)

    findings = examine(wrong, jax.devices()[:4], rule=rule).findings
    assert {finding.name for finding in findings} == {"unplanned_collective"}


@pytest.mark.parametrize(("problem", "severity"), [("rewritten", "warning"), ("bytes", "error"), ("missing", "error")])
def test_what_the_compiler_made_of_sound_shards_does_not_stop_a_run(problem, severity):
    found = _finding(Discrepancy(problem, "all-reduce", ("blocks.qkv",), "backward", 0, 8, "what it does"))
    assert found.severity == severity and found.remedy


@pytest.mark.parametrize("name", ["v5e", "v5e:2", "2x4", "h100:2x4", "v5e:2x4; rm"])
def test_a_topology_must_be_a_tpu_slice(name):
    with pytest.raises(BadInput, match="TPU slice"):
        topology_devices(name)


@pytest.mark.parametrize(
    ("found", "words"), [(None, "needs libtpu"), ("0.0.421", "which needs 0.0.42.*"), ("0.0.42.1", "")]
)
def test_a_libtpu_of_another_jax_is_refused(monkeypatch, found, words):
    def version(package):
        if package == "libtpu" and found is None:
            raise metadata.PackageNotFoundError(package)
        return found if package == "libtpu" else "0.10.2"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda _: ['libtpu==0.0.42.*; extra == "tpu"', "numpy>=2.0"])
    if not words:
        require_libtpu("--topology v5e:2x4")
        return
    with pytest.raises(BadInput, match=re.escape(words)):
        require_libtpu("--topology v5e:2x4")


def test_a_parameter_server_has_no_program_to_check():
    server = config("ps")
    with pytest.raises(BadInput, match="worker_strategy"):
        compiled_check(server, preflight(server, 4))


@pytest.mark.parametrize(
    ("name", "message"), [("h10x8", "did you mean h100?"), ("h100x", "host of GPUs"), ("", "GPUs")]
)
def test_a_gpu_that_is_not_known_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(BadInput, match=message.replace("?", r"\?")):
        topology_devices(name)


@pytest.mark.parametrize("target", GPU_TARGETS.values(), ids=GPU_TARGETS)
def test_a_gpus_description_carries_its_numbers(target: GpuTarget) -> None:
    text = target_config(target)
    for value in (target.cores, target.memory, target.bandwidth, target.l2_cache, target.clock_ghz, target.sm[0]):
        assert f": {value}" in text
    assert target.kind in text and text.count("{") == text.count("}")
