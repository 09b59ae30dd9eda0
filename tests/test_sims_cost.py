"""One cost model: the simulator without delays takes the steps that the adviser predicts."""

import pytest

from jaxdp.config import load
from jaxdp.errors import BadInput
from jaxdp.predict.evaluate import evaluate, possible
from jaxdp.predict.hardware import load_hardware
from jaxdp.stragglers.delays import parse
from sims.results import compare
from sims.run import simulate
from sims.scenario import build, to_toml
from sims.scenario import load as load_scenario
from sims.strategy import known_strategies

NETWORKS = [("h100x8", 1), ("h100x8", 4), ("a100-80gx4", 3), ("rtx4090", 8), ("l40sx8", 2), ("tpu-v5ex8", 2)]


def both(train: str, hardware: str, hosts: int, delays: str = "", nic_gbps: float | None = None):
    """(strategy, simulated seconds of a step, predicted seconds) of all strategies that the devices allow."""
    config, machines = load([train]), load_hardware(hardware, hosts, nic_gbps)
    names = [name for name in possible(config, machines) if name in known_strategies()]
    values = {"hardware": hardware, "hosts": hosts, "train": train, "steps": 40, "delays": delays}
    values |= {"nic_gbps": nic_gbps} if nic_gbps else {}
    scenario = build(values | {"strategies": [{"name": name} for name in names]})
    for result in compare(scenario):
        outcome, name = result.outcomes[0], result.strategy.name
        row = evaluate(config, machines, name, parse(delays) if delays else None)
        assert result.to_json()["tokens_per_second"] == pytest.approx(row.tokens_per_second, rel=0.01), name
        yield name, scenario.workers / outcome.useful_per_second, row.cost.total_s


@pytest.mark.parametrize(("hardware", "hosts"), NETWORKS)
@pytest.mark.parametrize("train", ["small", "1b", "llama3-8b"])
def test_simulated_and_predicted_steps_are_the_same(train, hardware, hosts):
    for name, simulated_s, predicted_s in both(train, hardware, hosts):
        assert simulated_s == pytest.approx(predicted_s, rel=0.01), name


def test_they_agree_with_a_slower_network_and_a_slower_worker():
    for name, simulated_s, predicted_s in both("small", "h100x8", 4, "persistent(factor=3,worker=0)", 25):
        assert simulated_s == pytest.approx(predicted_s, rel=0.01), name


def test_what_is_stated_beside_hardware_wins_and_is_kept(tmp_path):
    file = tmp_path / "case.toml"
    stated = {"hardware": "h100x8", "hosts": 2, "train": "small", "nic_gbps": 10.0, "latency_s": 1e-3}
    slow = build(stated | {"compute_s": 0.5})
    file.write_text(to_toml(slow))
    assert load_scenario([str(file)], {}, {}) == slow
    assert "message_bytes" not in file.read_text()
    quick = build({key: stated[key] for key in ("hardware", "hosts", "train")})
    seconds = [compare(scenario)[0].outcomes[0].virtual_time_s for scenario in (slow, quick)]
    assert seconds[0] > 1000 * 0.5
    changed = simulate(quick, nic_gbps=10.0, latency_s=1e-3, compute_s=0.5).scenario
    assert changed == slow
    assert seconds[1] < seconds[0] / 10


def test_what_the_cost_model_cannot_say_is_refused():
    bare = {"compute_s": 1.0, "strategies": [{"name": "hsdp"}]}
    for values, reason in (
        (bare, "give hardware"),
        ({"hardware": "h100x8", "message_bytes": 5}, "leave it out"),
        ({"hardware": "h100x8", "workers": 4}, "has 8 devices"),
    ):
        with pytest.raises(BadInput, match=reason):
            build(values)


def test_a_task_is_refused_not_taken_for_the_built_in_transformer(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('task = "examples.own_model:task"\n')
    with pytest.raises(BadInput, match="knows the built-in transformer only"):
        build({"hardware": "h100x8", "train": str(file)})
