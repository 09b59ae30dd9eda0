"""The flags of config keys: what the schema declares is what `--help` says and what a command receives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from cli.options import Keys, with_options
from jaxdp.config import Config, ServerConfig
from jaxdp.errors import BadInput


@dataclass(frozen=True)
class Pot:
    depth_m: float = field(default=0.5, metadata={"description": "How deep it is."})
    seeds: tuple[int, ...] = field(default=(), metadata={"description": "One number for each."})
    plants: int = field(default=3, metadata={"description": "What grows in it.", "range": ">=1"})


@dataclass(frozen=True)
class Own:
    steps: Annotated[int, typer.Option(min=1, help="Steps.")] = 2


received: list[tuple[Mapping[str, Any], Mapping[str, Any], Own]] = []


@with_options
def garden(
    keys: Annotated[Mapping[str, Any], Keys(Config, "strategy.name", "stragglers", "server")],
    pot: Annotated[Mapping[str, Any], Keys(Pot, "depth_m", "seeds", "plants")],
    own: Own,
) -> None:
    """Example: garden"""
    received.append((keys, pot, own))


app = typer.Typer()
app.command()(garden)


def run(*words: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Own]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return received.pop()


def test_a_command_receives_the_keys_that_were_set_and_its_own_options() -> None:
    words = ("--strategy", "ps", "--server-shards", "2", "--no-pipeline", "--seeds", "1,2", "--steps", "5")
    keys, pot, own = run(*words)
    assert keys == {"strategy.name": "ps", "server.shards": 2, "server.pipeline": False}
    assert (pot, own) == ({"seeds": (1, 2)}, Own(5))
    assert run() == ({}, {}, Own(2))


@pytest.mark.parametrize("name", ["--stragglers", "--delays", "--unevenness"])
def test_a_delay_spec_has_one_name_and_two_hidden_ones(name: str) -> None:
    assert run(name, "pace(seconds=1)")[0] == {"stragglers": "pace(seconds=1)"}
    with pytest.raises(BadInput, match="--stragglers: is there twice"):
        run("--stragglers", "a", "--delays" if name == "--stragglers" else name, "b")


def test_help_says_what_the_schema_does() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "250"}).output
    for name, key in ServerConfig.model_fields.items():
        assert (key.description or "nothing").rstrip(".") in text, name
    for words in (
        "threads|ray",
        "(default: threads)",
        "INT>=1",
        "FLOAT>0",
        "How deep it is (default: 0.5).",
        "X[,X...]",
    ):
        assert words in text
    assert "--delays" not in text and "--unevenness" not in text


def test_a_number_that_is_none_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match="--seeds x: expected a number"):
        run("--seeds", "x")
