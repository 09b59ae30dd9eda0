"""Advice on presets: the study's findings with their conditions, crossovers, and documents of strict JSON."""

import json
import subprocess
import sys

import pytest

from jaxdp.config import Config, load
from jaxdp.errors import BadInput
from jaxdp.predict.advise import advise
from jaxdp.predict.hardware import load_hardware
from jaxdp.stragglers.delays import parse

SLOW_WORKER = "persistent(factor=4,worker=0)"


def advised(name: str, hardware: str, hosts: int | None = None, nic: float | None = None, spec: str = "", **sets):
    config = load([name], [f"{key.replace('__', '.')}={value}" for key, value in sets.items()])
    return advise(config, load_hardware(hardware, hosts, nic), parse(spec) if spec else None)


def held(advice) -> dict[str, bool]:
    return {finding["finding"]: finding["holds"] for finding in advice.findings}


def row(advice, strategy):
    return next(row for row in advice.rows if row.strategy == strategy)


def test_what_fits_takes_ddp():
    advice = advised("gpt2-xl", "h100x8")
    assert advice.recommendation == "ddp"
    assert held(advice) == {"F1": True, "F2": False, "F3": True, "F6": True}


def test_what_does_not_fit_takes_fsdp():
    advice = advised("llama3-8b", "h100x8", hosts=4)
    assert advice.recommendation == "fsdp"
    assert not row(advice, "ddp").fits
    assert "memory" in row(advice, "ddp").bottleneck
    assert held(advice)["F1"]
    assert not held(advice)["F3"]


def test_a_tiny_model_loses_under_fsdp():
    """F2: below the crossover FSDP is 2-3 times slower or worse, and the crossover is a larger model."""
    advice = advised("nano", "h100x8", hosts=4)
    assert advice.recommendation == "ddp"
    assert held(advice)["F2"]
    assert row(advice, "ddp").tokens_per_second > 2 * row(advice, "fsdp").tokens_per_second
    crossover = next(c for c in advice.crossovers if c.name == "fsdp_faster_than_ddp")
    assert crossover.value is None or crossover.value > 1e6


def test_uneven_workers_take_the_server_and_the_rival_is_named():
    advice = advised("gpt2-xl", "h100x8", spec=SLOW_WORKER)
    assert advice.recommendation == "ps"
    assert held(advice)["F6"]
    assert "time to loss" in advice.reason
    assert "in proportion to speed" in advice.reason
    rival = next(row for row in advice.rows if not row.runs)
    assert rival.tokens_per_second > row(advice, "ps").tokens_per_second
    slowdowns = {c.name: c.value for c in advice.crossovers if c.unit == "times slower"}
    assert 1 < (slowdowns["server_beats_synchronous"] or 0) < 4
    assert slowdowns["server_beats_work_by_speed"] is None


def test_nothing_fits_says_so():
    advice = advised("llama3-70b", "rtx4090x2")
    assert advice.recommendation is None
    assert "nothing fits" in advice.reason


def test_uneven_groups_fit_by_the_smallest_memory(tmp_path):
    path = tmp_path / "hardware.toml"
    path.write_text('[[hosts]]\npreset="h100"\ndevices=4\n[[hosts]]\npreset="rtx4090"\ndevices=4\n')
    advice = advised("1b", str(path))
    assert row(advice, "ddp").usable_bytes < 24e9
    assert row(advice, "fsdp").cost.waiting_s > 0
    assert any(not row.runs for row in advice.rows)


def test_a_slower_network_never_speeds_anything_up():
    fast, slow = (advised("1b", "h100x8", hosts=4, nic=nic) for nic in (400.0, 10.0))
    for quick, late in zip(fast.rows, slow.rows, strict=True):
        assert quick.tokens_per_second >= late.tokens_per_second
    assert "network" in row(slow, "ddp").bottleneck


def test_exchange_rate_covers_its_four_dimensions():
    advice = advised("small", "h100x8")
    names = {each["dimension"] for each in advice.exchange}
    assert names == {"layers", "width", "vocab", "tokens_per_device"}
    for each in advice.exchange:
        assert each["per_byte"] == pytest.approx(each["bytes_saved"] / each["bytes_sent"])
        assert each["per_exposed_byte"] >= each["per_byte"] * 0.999


CASES = [
    ("nano", "tpu-v5ex4", None, "lognormal(sigma=0.2)"),
    ("nano", "h100", None, ""),
    ("1b", "l40sx8", 2, ""),
    ("tiny", "b200x8", 4, "exponential(mean_s=0.01)"),
]


@pytest.mark.parametrize(("name", "hardware", "hosts", "spec"), CASES)
def test_the_document_is_strict_json_and_adds_up(name, hardware, hosts, spec):
    advice = advised(name, hardware, hosts, spec=spec)
    document = json.loads(json.dumps(advice.to_json(), allow_nan=False))
    assert document["recommendation"] in (None, *(each["strategy"] for each in document["strategies"] if each["fits"]))
    for each in document["strategies"]:
        parts = each["step_time_s"]
        assert parts["total"] == pytest.approx(sum(parts[p] for p in ("compute", "exposed_communication", "waiting")))
        assert min(parts.values()) >= 0
        tokens = each["global_batch"] * advice.config.model.context
        assert each["tokens_per_second"] == pytest.approx(tokens / parts["total"])
        assert each["fits"] == (each["bytes_per_device"] <= each["usable_bytes_per_device"])


def test_a_worker_that_is_not_there_is_bad_input():
    with pytest.raises(BadInput, match="no worker 9"):
        advised("nano", "h100x8", spec="persistent(factor=2,worker=9)")


def test_an_advice_imports_no_jax():
    code = (
        "import sys; from jaxdp.config import Config; from jaxdp.predict.advise import advise;"
        "from jaxdp.predict.hardware import load_hardware; advise(Config(), load_hardware('h100x8'));"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_default_config_is_valid():
    assert advise(Config(), load_hardware("h100x8")).recommendation == "ddp"
