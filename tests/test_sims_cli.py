"""`jaxdp sim` as a user meets it: documents, files, errors of one line, and what it loads."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from cli.sim import sim
from jaxdp.errors import BadInput
from sims import scenario
from sims.published import EXPERIMENTS

TRACES = Path(__file__).parents[1] / "sims" / "data"
app = typer.Typer()
app.command()(sim)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def results(*arguments: object) -> list[dict[str, Any]]:
    found = invoke(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)["results"]


def refusal(*arguments: object) -> str:
    """The one line of a refusal."""
    found = invoke(*arguments)
    assert isinstance(found.exception, BadInput), found.output
    assert "\n" not in str(found.exception)
    return str(found.exception)


FIELDS = {
    "strategy",
    "workers",
    "steps",
    "virtual_time_s",
    "updates_per_second",
    "worker_steps_per_second",
    "tokens_per_second",
    "slowdown",
    "gain_over_ddp",
    "staleness",
    "idle_share",
    "wasted_share",
    "time_to_loss_s",
}


def test_results_have_their_fields_and_agree_with_each_other() -> None:
    flags = ("--workers", 8, "--compute-s", 0.5, "--stragglers", "persistent(factor=4,worker=0)", "--steps", 400)
    ddp, ps = results("--strategy", "ddp,ps", *flags)
    for row in (ddp, ps):
        assert row.keys() >= FIELDS
        assert row["staleness"].keys() == {"mean", "p50", "p99", "max"}
        assert len(row["idle_share"]) == 8
        assert row["tokens_per_second"] == pytest.approx(row["worker_steps_per_second"] * 1024 / 8)
    assert (ddp["strategy"], ps["strategy"]) == ("ddp", "ps")
    assert ddp["worker_steps_per_second"] == pytest.approx(4)
    assert ddp["updates_per_second"] == pytest.approx(0.5)
    assert ddp["virtual_time_s"] == pytest.approx(800)
    assert ddp["gain_over_ddp"] == 1
    assert ps["gain_over_ddp"] == pytest.approx((4 * 7 + 1) / 8 * 4 / 4, rel=0.01)
    assert ps["updates_per_second"] == pytest.approx(ps["worker_steps_per_second"])


def test_options_reach_the_strategies_that_read_them() -> None:
    rows = results(
        *("--strategy", "ddp,backup,local_sgd,ps", "--policy", "ssp", "--bound", 2, "--backups", 1, "--period", 4),
        *("--server-shards", 2, "--workers", 4, "--compute-s", 1, "--steps", 40, "--correction", "lr_over_staleness"),
    )
    assert [row["label"] for row in rows] == ["ddp", "backup(1)", "local_sgd(4)", "ps-ssp(2)+lr_over_staleness x2"]
    assert rows[3]["options"] == {"bound": 2, "policy": "ssp", "correction": "lr_over_staleness", "server_shards": 2}


def test_several_seeds_give_intervals_that_hold_the_truth() -> None:
    (row,) = results("--strategy", "ddp", "--stragglers", "exponential(mean_s=1)", "--seeds", 8, "--steps", 500)
    half = row["ci95"]["virtual_time_s"]
    assert 0 < half < 0.05 * row["virtual_time_s"]
    assert abs(row["virtual_time_s"] / 500 - 2.718) < 2 * half / 500


REFUSALS = {
    ("--compute-s", "-1"): "compute_s",
    ("--compute-s", "x"): "--compute-s x",
    ("--compute-s", "1,2"): "2 times for 8 workers",
    (): "nothing takes any time",
    ("--stragglers", "normal(sigma=1)", "--compute-s", "1"): "unknown model 'normal'",
    ("--stragglers", "persistent(factor=2,worker=8)"): "no worker 8",
    ("--strategy", "ddpp", "--compute-s", "1"): "name",
    ("--strategy", "ddp,ddp", "--compute-s", "1"): "different strategies",
    ("--strategy", "backup", "--backups", "8", "--compute-s", "1"): "8 is too many for 8 workers",
    ("--strategy", "backup", "--compute-s", "1"): "backups: backup needs it",
    ("--strategy", "ps", "--bound", "3", "--compute-s", "1"): "it is for ps with policy ssp",
    ("--strategy", "ps", "--policy", "ssp", "--compute-s", "1"): "bound: ps-ssp needs it",
    ("--strategy", "ps", "--policy", "softsync", "--group", "9", "--compute-s", "1"): "group: 9",
    ("--strategy", "ddp", "--policy", "async", "--compute-s", "1"): "policy: nothing in ddp",
    ("--workers", "0", "--compute-s", "1"): "workers",
    ("--steps", "0", "--compute-s", "1"): "steps",
    ("--latency-s", "-1", "--compute-s", "1"): "latency_s",
    ("--stragglers", "persistent(factor=1000000),pareto(mean_s=1e9,alpha=1.0001)"): "146 years",
    ("--compute-s", "1e-12"): "no time passed",
    ("--stragglers", "fail(mtbf_s=0.001,restart_s=0)", "--compute-s", "1"): "never survives",
    ("--latency-s", "nan", "--compute-s", "1"): "latency_s",
    ("--nic-gbps", "0", "--compute-s", "1"): "nic_gbps",
    ("--set", "worker=4", "--compute-s", "1"): "did you mean workers?",
    ("--set", "worker", "--compute-s", "1"): "expected section.key=value",
    ("stragler",): "did you mean straggler?",
    ("--config", "nowhere.toml"): "nowhere.toml",
    ("straggler", "--config", "noisy"): "not both",
    ("replay",): "needs a trace",
    ("replay", "nowhere.csv"): "nowhere.csv",
    ("straggler", "file.csv"): "only `jaxdp sim replay` takes a file",
    ("--until-loss", "2", "--compute-s", "1"): "add --gradients",
    ("--hardware", "h1000x8"): "no such preset",
    ("--hardware", "h100x8", "--workers", "4"): "has 8 devices",
    ("--hosts", "2", "--compute-s", "1"): "give hardware too",
    ("--run", "nowhere"): "found none",
    ("--gradients", "--strategy", "local_sgd", "--period", "2", "--compute-s", "1"): "no real training",
}


@pytest.mark.parametrize("arguments", REFUSALS, ids=" ".join)
def test_bad_input_is_refused_in_one_line(arguments: tuple[str, ...]) -> None:
    assert REFUSALS[arguments] in refusal(*arguments)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    for content, words in (
        ("workers = ", "not TOML"),
        ("[[strategies]]\nname = 'ps'\nbond = 2", "did you mean bound?"),
        ("workers = '8'", "workers"),
        ("strategies = []", "strategies"),
    ):
        path.write_text(content)
        assert words in refusal("--config", path)


@pytest.mark.parametrize("name", scenario.shipped_names())
def test_shipped_simulations_load_and_print_themselves(name: str, tmp_path: Path) -> None:
    printed = invoke(name, "--print-config")
    assert printed.exit_code == 0
    path = tmp_path / "printed.toml"
    path.write_text(printed.stdout)
    assert scenario.load([str(path)], {}, {}) == scenario.load([name], {}, {})
    assert name in scenario.headline(scenario.find(name))


def test_later_files_and_overrides_win(tmp_path: Path) -> None:
    path = tmp_path / "more.toml"
    path.write_text("workers = 6\nsteps = 30\nseeds = 1")
    rows = results("--config", "straggler", "--config", path, "--set", "steps=40", "--workers", 5)
    assert {(row["workers"], row["steps"]) for row in rows} == {(5, 40)}
    assert len(rows) == 6


def test_list_names_everything() -> None:
    shown = invoke("list").stdout
    for name in (*EXPERIMENTS, *scenario.shipped_names()):
        assert name in shown
    document = json.loads(invoke("list", "--json").stdout)
    assert set(document["experiments"]) == set(EXPERIMENTS)


def test_a_run_folder_holds_results_figures_and_timelines(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = ("straggler", "--steps", 60, "--seeds", 1, "--run-dir", folder)
    assert invoke(*flags, "--trace").exit_code == 0
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    figures = ("throughput_against_slowdown", "idle_share", "staleness")
    assert names >= {"results.json", "results.csv", "trace-ddp.json", "trace-ps-ssp-4.json"}
    assert names >= {f"figures/{figure}.{kind}" for figure in figures for kind in ("svg", "png", "csv")}
    assert "--overwrite" in refusal(*flags)
    before = (folder / "results.json").read_bytes()
    assert invoke(*flags, "--overwrite").exit_code == 0
    assert (folder / "results.json").read_bytes() == before
    header, *lines = (folder / "results.csv").read_text().splitlines()
    assert header.startswith("strategy,label,workers,steps")
    assert len(lines) == 6


def test_replay_finds_what_is_known_of_the_traces() -> None:
    known = {
        "SE": {"ddp": 0.793, "backup(1)": 0.820, "backup(2)": 0.821, "backup(4)": 0.793},
        "AR": {"ddp": 0.582, "backup(1)": 0.981, "backup(2)": 0.657},
    }
    gains, slowdowns = {"SE": 1.261, "AR": 1.944}, {"SE": 1.261, "AR": 1.718}
    for trace, expected in known.items():
        report = json.loads(invoke("replay", TRACES / f"{trace}.csv", "--json").stdout)
        rows = {row["label"]: row for row in report["results"]}
        for label, value in expected.items():
            assert rows[label]["useful_throughput"] == pytest.approx(value, rel=0.01)
        assert rows["ps-async"]["gain_over_ddp"] == pytest.approx(gains[trace], rel=0.01)
        assert report["slowdown"] == pytest.approx(slowdowns[trace], rel=0.01)
    assert report["costs"][0]["slowdown_alone"] == pytest.approx(1.718, rel=0.01)
    assert all(cost["slowdown_alone"] < 1.001 for cost in report["costs"][1:])
    assert "1.718" in invoke("replay", TRACES / "AR.csv").stdout


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "parameter-server-idle"])
def test_published_experiments_come_out_as_published(name: str) -> None:
    report = json.loads(invoke(name, "--json").stdout)
    differs = [check["quantity"] for check in report["checks"] if check["agrees"] is False]
    # the one that doesn't: 2.40 at period 4 where 2.57 to 2.68 was measured
    assert differs == (["128 workers, 1 % stalls"] if name == "hierarchical-sgd" else [])
    shown = invoke(name).stdout
    assert all(check["quantity"] in shown for check in report["checks"])


@pytest.mark.slow
def test_the_bound_removes_idle_time_as_published() -> None:
    checks = json.loads(invoke("parameter-server-idle", "--json").stdout)["checks"]
    assert all(check["agrees"] is not False for check in checks)


def test_a_simulation_loads_nothing_heavy() -> None:
    code = """
import sys
from typer.testing import CliRunner
import typer
from cli.sim import sim
app = typer.Typer()
app.command()(sim)
for arguments in (["straggler", "--steps", "20", "--json"], ["list"], ["measured-traces"], ["--compute-s", "-1"]):
    CliRunner().invoke(app, arguments)
heavy = {"jax", "jaxlib", "flax", "optax", "scipy", "matplotlib", "orbax", "grain", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compute_times_come_from_the_cost_model() -> None:
    two_hosts = ("--hardware", "h100x8", "--hosts", 2, "--train", "small", "--steps", 5)
    ddp, fsdp = results(*two_hosts, "--strategy", "ddp,fsdp")
    assert ddp["workers"] == 16
    assert ddp["slowdown"] > 1  # communication takes its time
    assert fsdp["virtual_time_s"] < ddp["virtual_time_s"]  # it overlaps its gathers, DDP's reduction nothing
    (slower,) = results(*two_hosts, "--strategy", "ddp", "--nic-gbps", 1)
    assert slower["virtual_time_s"] > 10 * ddp["virtual_time_s"]


def test_compute_times_come_from_a_measured_run(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps({"step": k, "step_time_s": s}) + "\n" for k, s in enumerate([9, 0.5, 0.25])))
    for given in (tmp_path, steps):
        (row,) = results("--run", given, "--strategy", "ddp", "--steps", 10)
        assert row["virtual_time_s"] == pytest.approx(5)
    steps.write_text("{}")
    assert "step_time_s" in refusal("--run", tmp_path)
