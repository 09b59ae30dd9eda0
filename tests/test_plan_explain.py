"""`advise --explain`, the error bands, other stacks, and the command that an advice ends in."""

import json
import shlex
from dataclasses import replace

import pytest

import jaxdp
from jaxdp.config import load
from jaxdp.device_memory import SHARE
from jaxdp.errors import BadInput
from jaxdp.predict.advise import advise
from jaxdp.predict.calibrated.bands import band
from jaxdp.predict.evaluate import evaluate, possible
from jaxdp.predict.explain import explain
from jaxdp.predict.hardware import load_hardware


@pytest.mark.parametrize("stack", ["jaxdp", "torch-fsdp", "nanotron", "megatron", "maxtext"])
@pytest.mark.parametrize("hosts", [1, 4])
def test_the_parts_of_a_step_add_up(stack: str, hosts: int) -> None:
    config, hardware = load(["1b"], ["train.accumulation=2"]), load_hardware("h100x8", hosts, None, stack)
    for name in possible(config, hardware):
        cost = evaluate(config, hardware, name).cost
        assert sum(cost.parts.values()) == pytest.approx(cost.total_s, rel=1e-9), name
        assert min(cost.parts.values()) >= -1e-12


def test_probed_hardware_has_parts_that_add_up_too() -> None:
    hardware = load_hardware("h100x8", 2)
    probed = replace(hardware, groups=tuple(replace(group, device="") for group in hardware.groups))
    for name in possible(load(["1b"]), probed):
        cost = evaluate(load(["1b"]), probed, name).cost
        assert sum(cost.parts.values()) == pytest.approx(cost.total_s, rel=1e-9), name


def test_an_explanation_names_what_differs_and_a_change_that_helps() -> None:
    advice = advise(load(["gpt2-xl"]), load_hardware("a100-80gx8"))
    explanation = explain(advice)
    assert explanation is not None
    rows = {row.strategy: row.cost for row in advice.rows}
    assert explanation.total_s == pytest.approx([rows[name].total_s for name in explanation.strategies])
    shows = {kind: pair for kind, pair in explanation.seconds.items() if kind in ("all-reduce", "all-gather")}
    ddp = explanation.strategies.index("ddp")
    assert shows["all-reduce"][ddp] > shows["all-reduce"][1 - ddp]
    assert shows["all-gather"][ddp] == 0 < shows["all-gather"][1 - ddp]
    remedy = explanation.remedy
    assert remedy is not None and remedy.gain > 1.01
    first = explanation.strategies[0]
    changed = evaluate(load(["gpt2-xl"], [remedy.change]), advice.hardware, first)
    before = evaluate(load(["gpt2-xl"]), advice.hardware, first)
    assert changed.fits and changed.tokens_per_second / before.tokens_per_second == pytest.approx(remedy.gain)


def test_a_difference_within_the_band_is_level_and_the_simpler_one_is_taken() -> None:
    advice = advise(load(["gpt2-xl"]), load_hardware("a100-80gx8"))
    fastest = max((row for row in advice.rows if row.fits), key=lambda row: row.tokens_per_second)
    assert fastest.strategy != "ddp" and advice.recommendation == "ddp" and "level with" in advice.reason
    assert all(one.low < 0 < one.high and one.rows > 50 for one in advice.bands)


def test_a_band_says_where_it_comes_from() -> None:
    inside = band("torch-fsdp", "h100", "fsdp", {"parameters": 7e9, "context": 2048, "devices": 8})
    assert "extrapolated" not in inside.text and "published runs" in inside.text
    beyond = band("torch-fsdp", "h100", "fsdp", {"parameters": 7e9, "context": 2048, "devices": 10**6})
    assert "devices outside their range: extrapolated" in beyond.text
    assert "untested" in band("jaxdp", "h100", "ddp", {}).text


def test_the_command_runs_what_was_predicted() -> None:
    origin = ["--config", "llama3-8b", "--set", "train.steps=5"]
    advice = jaxdp.advise(load(["llama3-8b"], ["train.steps=5"]), "h100x8", hosts=4, origin=origin)
    assert advice.command is not None
    words = shlex.split(advice.command)
    assert words[:3] == ["srun", "--ntasks=4", "--ntasks-per-node=1"]
    overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    run = load(["llama3-8b"], overrides, {"strategy.name": words[words.index("--strategy") + 1]})
    report = jaxdp.check(run, 32, hosts=4, hardware="h100x8")
    assert report.ok, "check and advise count the same memory"
    assert json.dumps(advice.to_json())


def test_the_share_of_memory_is_the_run_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = load_hardware("h100x8")
    assert hardware.usable_bytes == int(SHARE * hardware.memory_bytes)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert hardware.usable_bytes == hardware.memory_bytes // 2
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "half")
    with pytest.raises(BadInput, match="expected a share"):
        advise(load(["nano"]), hardware)


def test_another_stack_is_known_or_refused() -> None:
    with pytest.raises(BadInput, match="known: "):
        load_hardware("h100x8", stack="pytorch")
    advice = jaxdp.advise(load(["1b"]), "h100x8", stack="nanotron")
    assert advice.command is None and {row.strategy for row in advice.rows} <= {"ddp", "zero1", "fsdp", "hsdp"}
