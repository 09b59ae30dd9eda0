"""The layers hold: imports point down, and what must answer at once loads no JAX."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What each room may import, besides itself. `jaxdp` stands for its top-level modules.
TOP = {
    "config",
    "records",
    "errors",
    "device_memory",
    "units",
    "install",
    "strict_json",
    "timeline",
    "cache",
    "task",
    "parameter",
    "policies",
    "registry",
    "suggest",
    "versions",
}
BELOW_CONFIG = ("hlo", "stragglers", "strategies")  # rooms that the config's values are held against
BELOW = {
    "stragglers": set(),
    "strategies": {"hlo"},
    "data": set(),
    "models": {"data"},
    "optim": set(),
    "workload": {"models", "data"},
    "recipe": {"optim", "workload"},
    "hlo": set(),
    "mesh": {"models", "data", "hlo", "strategies", "stragglers", "optim", "recipe", "workload"},
    "server": {"models", "data", "mesh", "strategies", "stragglers", "optim", "recipe", "workload"},
    "predict": {"models", "data", "hlo", "strategies", "mesh", "stragglers", "recipe", "workload"},
    "job": set(),
    "run": {
        "models",
        "data",
        "hlo",
        "strategies",
        "mesh",
        "server",
        "predict",
        "job",
        "stragglers",
        "recipe",
        "workload",
    },
    "api": {"predict", "job", "run", "stragglers"},
    "sweep": {"models", "data", "stragglers", "strategies", "predict", "job", "run", "workload"},
    "report": {"models", "strategies", "predict", "stragglers"},
}
NO_JAX = [
    "jaxdp",
    "jaxdp.api",
    "sims",
    "sims.run",
    "cli.bench",
    "cli.sim",
    "cli.main",
    "jaxdp.config",
    "jaxdp.stragglers.delays",
    "jaxdp.models.attention_form",
    "jaxdp.models.shapes",
    "jaxdp.task",
    "jaxdp.workload",
    "jaxdp.data.corpora",
    "jaxdp.strategies.rules",
    "jaxdp.strategies.collectives",
    "jaxdp.predict.advise",
    "jaxdp.predict.cost",
    "jaxdp.predict.hardware",
    "jaxdp.predict.preflight",
    "jaxdp.server.core",
    "jaxdp.policies",
    "jaxdp.run.folder",
    "jaxdp.run.manifest",
    "jaxdp.job.stop",
    "jaxdp.job.launch",
    "jaxdp.job.watchdog",
    "jaxdp.job.processes",
    "jaxdp.job.scheduler",
    "jaxdp.job.agreement",
    "jaxdp.job.attribution",
    "cli.launch",
    "jaxdp.sweep.run",
    "cli.sweep",
    "cli.report",
    "jaxdp.report.page",
    "jaxdp.report.analysis.write",
    "sims.results",
    "sims.server",
    "sims.barrier",
    "sims.findings.campaign",
]
HEAVY = ["jax", "flax", "optax", "grain", "orbax", "scipy", "matplotlib", "ray"]


def modules(package: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / package).rglob("*.py")) if "configs" not in path.parts)


def files(name: str) -> list[Path]:
    """A room's modules, or the one of that name."""
    return [*modules(f"jaxdp/{name}")] or [ROOT / "jaxdp" / f"{name}.py"]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_jaxdp_knows_neither_sims_nor_cli() -> None:
    """Apart from `import jaxdp` itself, the facade over all of them."""
    for path in set(modules("jaxdp")) - {ROOT / "jaxdp" / "__init__.py"}:
        assert not {name for name in imports(path) if name.split(".")[0] in ("sims", "cli")}, path
    for path in modules("sims"):
        assert not {name for name in imports(path) if name.split(".")[0] == "cli"}, path


@pytest.mark.parametrize("room", BELOW)
def test_a_room_imports_only_what_lies_below(room: str) -> None:
    for path in files(room):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "jaxdp" and len(parts) > 1:
                assert parts[1] in {room, *BELOW[room], *TOP}, f"{path.relative_to(ROOT)} imports {name}"


def test_the_top_level_modules_import_no_room() -> None:
    for path in [path for name in TOP for path in files(name)]:
        for name in imports(path):
            parts = name.split(".")
            assert parts[0] != "jaxdp" or len(parts) == 1 or parts[1] in {*TOP, *BELOW_CONFIG}, f"{path} imports {name}"


@pytest.mark.parametrize("room", BELOW_CONFIG)
def test_what_a_config_is_checked_against_knows_no_config(room: str) -> None:
    """A type for the checker alone is allowed."""
    for path in files(room):
        outside = path.read_text().replace(
            "if TYPE_CHECKING:\n    from jaxdp.config", "if TYPE_CHECKING:\n    from nowhere"
        )
        names = {alias.module or "" for alias in ast.walk(ast.parse(outside)) if isinstance(alias, ast.ImportFrom)}
        assert not {name for name in names if name.startswith(("jaxdp.config", "jaxdp.data", "jaxdp.models"))}, path


@pytest.mark.parametrize("module", NO_JAX)
def test_what_must_answer_at_once_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_shipped_configs_are_those_of_the_top_level() -> None:
    assert (ROOT / "jaxdp" / "configs").resolve() == ROOT / "configs"
