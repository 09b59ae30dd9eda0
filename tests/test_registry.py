"""Rows by name, and the modules from outside the package that add some."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from jaxdp.errors import BadInput
from jaxdp.registry import PLUGINS_VARIABLE, Registry, load_plugins


class Fruit(NamedTuple):
    name: str


def test_rows_keep_their_order_and_an_unknown_name_is_refused_with_the_nearest() -> None:
    fruits = Registry("fruit", [Fruit("pear"), Fruit("apple")])
    plum = fruits.register(Fruit("plum"))
    assert list(fruits) == ["pear", "apple", "plum"]
    assert (fruits["plum"], len(fruits), "fig" in fruits) == (plum, 3, False)
    with pytest.raises(BadInput, match="appel: no such fruit; did you mean apple"):
        fruits["appel"]
    with pytest.raises(BadInput, match="fruit plum: is registered already"):
        fruits.register(Fruit("plum"))
    fruits.unregister("pear")
    assert list(fruits) == ["apple", "plum"]


@pytest.mark.parametrize("by_variable", [True, False])
def test_plugins_are_imported_from_the_current_folder(
    by_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"orchard_{by_variable}".lower()
    (tmp_path / f"{name}.py").write_text("import os\nos.environ['ORCHARD'] = __name__\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHARD", "")
    if by_variable:
        monkeypatch.setenv(PLUGINS_VARIABLE, f" {name} ,")
    load_plugins([] if by_variable else [name])
    assert os.environ["ORCHARD"] == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "plugins: no module orchard; name one"),
        ("import no_such_module_at_all", "needs no_such_module_at_all"),
        ("1 / 0", "fails to load: ZeroDivisionError"),
    ],
)
def test_a_plugin_that_does_not_load_is_bad_input(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "orchard"
    if text:
        name = f"orchard_{len(text)}"
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(BadInput, match=message):
        load_plugins([name])
