"""`import jaxdp`: lazy, and as its page says."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jaxdp
from jaxdp.errors import BadInput

PAGE = Path(__file__).parents[1] / "docs" / "library.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_snippets_of_the_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, snippet in enumerate(SNIPPETS):
        exec(compile(snippet, f"{PAGE.name}, snippet {number}", "exec"), namespace)
    assert (tmp_path / "mine" / "checkpoints").is_dir()


def test_the_page_names_everything_there_is() -> None:
    assert all(f"`jaxdp.{name}" in PAGE.read_text() for name in jaxdp.__all__)
    assert dir(jaxdp) == jaxdp.__all__


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = """
import sys, jaxdp
assert not {"pydantic", "numpy", "jax"} & set(sys.modules)
config = jaxdp.load("nano", ["strategy.name=fsdp"])
assert jaxdp.check(config, 4).ok and jaxdp.advise(config, "h100x8").recommendation
jaxdp.simulate("straggler", steps=20)
jaxdp.bench, jaxdp.train, jaxdp.Task
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_simulation_starts_from_a_scenario_and_refuses_in_one_line() -> None:
    first = jaxdp.simulate(workers=4, compute_s=1.0, steps=20, strategies=["ddp"])
    again = jaxdp.simulate(first.scenario, steps=40)
    assert again.results[0].outcomes[0].virtual_time_s == 2 * first.results[0].outcomes[0].virtual_time_s
    refused: list[tuple[dict[str, Any], str]] = [
        ({"compute_s": 1.0, "wrokers": 4}, "did you mean workers"),
        ({"compute_s": 1.0, "until_loss": 2.0}, "belong to real gradients"),
        ({"compute_s": 1.0, "strategies": [4]}, r"strategies\[0\]"),
    ]
    for keys, message in refused:
        with pytest.raises(BadInput, match=message):
            jaxdp.simulate(**keys)


def test_what_is_not_there_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'recommend'"):
        jaxdp.recommend  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    for resume in ("auto", "often"):
        with pytest.raises(BadInput, match="--resume"):
            jaxdp.train(jaxdp.load(), resume=resume, run_dir="x" if resume == "often" else None)
