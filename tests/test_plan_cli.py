"""`jaxdp check` and `advise` as a user meets them: documents, tables, figures, exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from cli.advise import advise
from cli.check import check
from jaxdp.errors import BadInput, JaxdpError, Refused

app = typer.Typer()
app.command()(check)
app.command()(advise)
FLAT = ["--set", "strategy.unit=flat", "--set", "model.layers=6", "--set", "train.global_batch=60"]


def run(*arguments: str, error: type[JaxdpError] | None = None) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if error is None:
        assert result.exception is None, result.exception
    else:
        assert isinstance(result.exception, error)
    return result.stdout


def test_check_prints_one_document():
    document = json.loads(run("check", "--config", "nano", "--strategy", "fsdp", "--devices", "4", "--json"))
    assert document["ok"]
    assert document["findings"] == []
    assert {row["parameter"] for row in document["parameters"]} >= {"embed", "blocks.qkv"}


def test_a_sweep_shows_which_counts_are_safe(tmp_path):
    figure = tmp_path / "cuts.svg"
    sweep = ["check", "--strategy", "fsdp", "--devices", "2:6", *FLAT]
    documents = json.loads(run(*sweep, "--json", "--figure", str(figure), error=Refused))
    assert {d["devices"]: d["ok"] for d in documents} == {2: True, 3: True, 4: False, 5: False, 6: True}
    assert figure.read_text().lstrip().startswith("<?xml")
    assert figure.with_suffix(".csv").read_text().splitlines()[0] == "devices,cut_at_block,splits_block"
    assert "0 1:1 2|3 4:4 5" in run(*sweep, error=Refused)


def test_a_figure_that_cannot_be_written_is_one_error():
    run("check", "--config", "nano", "--figure", "/proc/nowhere/cuts.svg", error=JaxdpError)


def test_allow_lets_a_finding_pass():
    arguments = ["check", "--strategy", "fsdp", "--devices", "4", *FLAT]
    run(*arguments, error=Refused)
    assert json.loads(run(*arguments, "--allow", "block_split", "--json"))["ok"]
    run(*arguments, "--allow", "block_spilt", error=BadInput)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--devices", "0"], BadInput),
        (["--devices", "8:2"], BadInput),
        (["--devices", "two"], BadInput),
        (["--devices", "1:99999"], BadInput),
        (["--devices", "2:3", "--compile"], BadInput),
        (["--strategy", "hdsp"], BadInput),
        (["--hardware", "h99"], BadInput),
        (["--topology", "a100:2x4"], BadInput),
        (["--devices", "3"], Refused),
        (["--config", "llama3-70b", "--hardware", "h100", "--devices", "8", "--strategy", "ddp"], Refused),
    ],
)
def test_check_refuses_in_one_line(arguments, error):
    run("check", *arguments, error=error)


def test_check_compiles_and_counts():
    document = json.loads(run("check", "--strategy", "ddp", "--devices", "2", "--compile", "--json"))
    assert document["ok"]
    assert [row["kind"] for row in document["compiled"]["collectives"]] == ["all-reduce"]
    assert document["how"]["memory_bytes"] == "compiled"


def test_advise_prints_a_recommendation_and_draws(tmp_path):
    figure = tmp_path / "advice.svg"
    text = run("advise", "--config", "gpt2-xl", "--hardware", "h100x8", "--figure", str(figure))
    assert "recommendation: ddp" in text
    assert "communication budget" in text
    assert figure.is_file()
    assert figure.with_suffix(".csv").is_file()


def test_advise_prints_one_document():
    arguments = ["--config", "gpt2-xl", "--hardware", "h100x8", "--hosts", "2", "--nic-gbps", "100", "--json"]
    document = json.loads(run("advise", *arguments, "--stragglers", "persistent(factor=4,worker=0)"))
    assert {"recommendation", "reason", "strategies", "crossovers"} <= set(document)
    assert (document["devices"], document["hosts"]) == (16, 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--hardware", "h99"],
        ["--hardware", "h100", "--nic-gbps", "-1"],
        ["--hardware", "h100", "--stragglers", "slow(worker=0)"],
        ["--hardware", "missing.toml"],
    ],
)
def test_advise_refuses_bad_input(arguments):
    run("advise", *arguments, error=BadInput)


def test_a_data_file_that_is_missing_is_found_before_the_run(tmp_path):
    lost = ["check", "--set", "data.corpus=files", "--set", f"data.path={tmp_path / 'lost.txt'}", "--json"]
    (finding,) = json.loads(run(*lost, error=Refused))["findings"]
    assert finding["name"] == "data" and "lost.txt does not exist" in finding["message"]
    run(*lost, "--allow", "data")
    (tmp_path / "lost.txt").write_text("there")
    assert json.loads(run(*lost))["ok"]
