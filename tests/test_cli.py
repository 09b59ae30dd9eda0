"""The command line as a user meets it: one line for every mistake, the right exit code, and no JAX before its time."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxdp.config import build, load, shipped_names, to_toml
from jaxdp.errors import BadInput

ROOT = Path(__file__).parents[1]

# Runs the command in this process's Python and reports whether JAX had been imported when it ended.
PROBE = """
import sys
from cli.main import main
try:
    main()
finally:
    print("jax" in sys.modules, file=open({seen!r}, "w"))
"""


def run(*arguments: str, seen: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROBE.format(seen=str(seen or os.devnull)), *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, **(env or {})}
    )


BAD = [
    (("--set", "model.heads=3"), "model.heads"),
    (("--set", "model.hedas=4"), "did you mean model.heads"),
    (("--set", "optim.learning_rate=fast"), "optim.learning_rate"),
    (("--set", "optim.learning_rate=-1"), "optim.learning_rate"),
    (("--set", "train.steps=0"), "train.steps"),
    (("--set", "train.accumulation=3"), "accumulation"),
    (("--set", "model=4"), "section"),
    (("--set", "train.steps"), "section.key=value"),
    (("--set", "data.corpus=/some/path"), "data.corpus"),
    (("--set", "data.corpus=files"), "data.path"),
    (("--set", "data.corpus=files", "--set", "data.path=/no/such/file.txt"), "/no/such/file.txt"),
    (("--config", "nanno"), "did you mean nano"),
    (("--config", "no/such.toml"), "no such file"),
    (("--set", "model.width=99999999999999"), "model.width"),
    (("--set", f"model.width={2**40}", "--set", "model.heads=3"), "model.heads"),
    (("--policy", "ssp", "--bound", "3"), "--strategy ps"),
    (("--strategy", ""), "names no strategy"),
    (("--strategy", "fdsp"), "fdsp"),
    (("--strategy", "ddp,ddp"), "twice"),
    (("--devices", "zero"), "--devices"),
    (("--steps", "0"), "--steps"),
    (("--allow", "everything"), "everything"),
    (("--no-such-flag",), "--no-such-flag"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_exit_2_before_jax(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    strategy = () if "--strategy" in arguments else ("--strategy", "ddp")
    done = run("bench", *strategy, *arguments, "--run-dir", str(tmp_path / "run"), seen=tmp_path / "seen")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ")
    assert told in done.stderr
    assert (tmp_path / "seen").read_text() == "False\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [("bench", "--strategy", "ddp"), ("sweep", "quick"), ("sim", "healthy")])
def test_an_empty_run_dir_is_not_taken_for_none(command: tuple[str, ...]) -> None:
    done = run(*command, "--run-dir", "")
    assert done.returncode == 2 and done.stderr.startswith("error: --run-dir ''")


def test_a_check_that_refuses_exits_3_before_jax(tmp_path: Path) -> None:
    done = run("bench", "--strategy", "fsdp", "--devices", "3", seen=tmp_path / "seen")
    assert done.returncode == 3
    assert "batch_undivided" in done.stderr and len(done.stderr.splitlines()) == 1
    assert (tmp_path / "seen").read_text() == "False\n"


def test_debug_shows_where() -> None:
    assert "Traceback" in run("bench", "--set", "model.heads=3", "--debug").stderr


def test_help_and_version() -> None:
    done = run("--help")
    assert done.returncode == 0 and "bench" in done.stdout and "train" in done.stdout
    assert re.fullmatch(r"jaxdp \d+\.\d+\.\d+\n", run("--version").stdout)


def test_print_config_reads_back(tmp_path: Path) -> None:
    done = run("bench", "--config", "tiny", "--set", "optim.learning_rate=2e-5", "--strategy", "fsdp", "--print-config")
    (tmp_path / "printed.toml").write_text(done.stdout)
    expected = load(["tiny"], ["optim.learning_rate=2e-5", "strategy.name=fsdp"])
    assert load([str(tmp_path / "printed.toml")]) == expected


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_configs_load_and_open_with_their_command(name: str) -> None:
    assert build({}) != load([name]) or name == "nano"
    lines = (ROOT / "configs" / f"{name}.toml").read_text().splitlines()
    assert lines[0].startswith(f"# {name}: ") and lines[1].startswith("# jaxdp ")


def test_toml_round_trip_of_awkward_strings(tmp_path: Path) -> None:
    config = build({"data": {"corpus": "files", "path": 'a "quoted" \\ path'}})
    (tmp_path / "c.toml").write_text(to_toml(config))
    assert load([str(tmp_path / "c.toml")]) == config


def test_later_configs_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text("[train]\nseed = 5\nsteps = 7\n")
    config = load(["nano", str(tmp_path / "more.toml")], ["train.steps=8"], {"train.seed": 9, "strategy.name": None})
    assert (config.train.seed, config.train.steps, config.strategy.name) == (9, 8, "ddp")


def test_a_bad_toml_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[train\n")
    with pytest.raises(BadInput, match=r"bad\.toml.*not TOML"):
        load([str(tmp_path / "bad.toml")])


def test_bench_prints_one_document_and_records_it(tmp_path: Path) -> None:
    done = run(
        *("bench", "--strategy", "ddp,fsdp", "--steps", "4", "--warmup", "1", "--devices", "2", "--json"),
        *("--run-dir", str(tmp_path / "run")),
    )
    assert done.returncode == 0, done.stderr
    ddp, fsdp = json.loads(done.stdout)
    for found in (ddp, fsdp):
        assert found["devices"] == 2 and found["platform"] == "cpu" and found["mfu_percent"] is None
        tokens = found["tokens_per_second"] * found["step_time_s"]["median"]
        assert tokens == pytest.approx(16 * 64)  # all microbatches of all devices
        assert found["tokens_per_second_per_device"] * 2 == pytest.approx(found["tokens_per_second"])
        folder = Path(found["run_dir"])
        assert json.loads((folder / "summary.json").read_text()) == found
        steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps] == list(range(5))
        assert steps[-1]["loss"] == found["loss"]["last"]
        assert json.loads((folder / "run.json").read_text())["config"]["strategy"]["name"] == found["strategy"]
    assert ddp["loss"]["first"] == pytest.approx(fsdp["loss"]["first"], rel=1e-6)
    assert ddp["collectives"][0]["kind"] == "all-reduce"
    assert fsdp["memory"]["parameter_bytes_per_device"] < 0.6 * ddp["memory"]["parameter_bytes_per_device"]
    assert ddp["memory"]["parameter_bytes_per_device"] == 4 * 213_568
