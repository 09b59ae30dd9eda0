"""The run folder keeps to itself, and its JSON is strict and survives crashes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.run.folder import fresh_run, open_run, remove, safe_name
from jaxdp.strict_json import JsonLines, from_json, keep_lines, plain, read_lines, to_json, write_json


def test_a_new_folder_is_created_with_its_parents(tmp_path: Path):
    with open_run(tmp_path / "a" / "b") as folder:
        folder.write_json("run.json", {"x": 1})
        folder.write_json("figures/table.json", [])
    assert json.loads((tmp_path / "a/b/run.json").read_text()) == {"x": 1}
    assert (tmp_path / "a/b/figures/table.json").is_file()


def test_a_folder_with_a_run_needs_resume_or_overwrite(tmp_path: Path):
    with open_run(tmp_path) as folder:
        folder.write_json("run.json", {})
        (folder.file("checkpoints") / "00000001").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"holds another run.*--resume auto.*--overwrite"):
        open_run(tmp_path)
    with open_run(tmp_path, resume=True):
        assert (tmp_path / "checkpoints/00000001").is_dir()
    with open_run(tmp_path, overwrite=True):
        assert [p.name for p in tmp_path.iterdir()] == [".jaxdp-run"]
    with pytest.raises(BadInput, match="only one"):
        open_run(tmp_path, resume=True, overwrite=True)


def test_a_refused_or_empty_start_leaves_the_folder_usable(tmp_path: Path):
    open_run(tmp_path / "run").release()
    open_run(tmp_path / "run").release()
    open_run(tmp_path / "run", resume=True).release()


@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_with_someone_elses_files_is_never_touched(tmp_path: Path, how: dict):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(BadInput, match=r"thesis\.tex"):
        open_run(tmp_path, **how)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_overwriting_removes_links_and_not_what_they_point_to(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").touch()
    with open_run(tmp_path / "run") as folder:
        folder.write_json("run.json", {})
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    open_run(tmp_path / "run", overwrite=True).release()
    assert (tmp_path / "outside" / "precious").is_file()
    assert not (tmp_path / "run" / "link").is_symlink()


@pytest.mark.parametrize("bad", ["a file", "below a file", "dangling link", "too long"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, bad: str):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    path = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "run",
        "dangling link": tmp_path / "link",
        "too long": tmp_path / ("x" * 300),
    }[bad]
    with pytest.raises(BadInput, match="cannot be written") as error:
        open_run(path)
    assert "\n" not in str(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(BadInput, match="Permission denied"):
        open_run(tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc accepts no folders, of root's either")
def test_a_file_system_without_room_for_runs_is_refused():
    with pytest.raises(BadInput, match="cannot be written"):
        open_run(Path("/proc/run"))


def test_two_processes_do_not_write_to_one_run(tmp_path: Path):
    code = f"from jaxdp.run.folder import open_run; from pathlib import Path; open_run(Path({str(tmp_path)!r}))"
    with open_run(tmp_path):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert second.returncode != 0
        assert "another process is writing" in second.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../../x", "/etc/x", "a/../../x", "a//b", "~", ".hidden", "a\\b", "a\nb", "a\0b", "-rf", "é"],
)
def test_names_that_lead_anywhere_else_are_refused(tmp_path: Path, name: str):
    with open_run(tmp_path / "run") as folder, pytest.raises(BadInput):
        folder.file(name)
    with pytest.raises(BadInput):
        fresh_run(name, tmp_path)


@given(st.text(max_size=40))
def test_a_safe_name_is_one_component(name: str):
    try:
        safe_name(name)
    except BadInput:
        return
    assert Path("/runs", name).resolve().parent == Path("/runs").resolve()
    assert "\n" not in name


@pytest.mark.parametrize("target", ["..", "/etc", "../elsewhere/deep"])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, target: str):
    with open_run(tmp_path / "run") as folder:
        (tmp_path / "run" / "checkpoints").symlink_to(target)
        with pytest.raises(BadInput, match="link out of the run folder"):
            folder.file("checkpoints")
        with pytest.raises(BadInput, match="link out of the run folder"):
            folder.write_json("checkpoints/x.json", {})
        (tmp_path / "run" / "circle").symlink_to("circle")
        with pytest.raises(BadInput):
            folder.lines("circle")


def test_a_link_that_stays_inside_is_fine(tmp_path: Path):
    with open_run(tmp_path) as folder:
        folder.file("inner").mkdir()
        (tmp_path / "link").symlink_to("inner")
        folder.write_json("link/x.json", 1)
    assert (tmp_path / "inner/x.json").is_file()


def test_fresh_runs_never_share_a_folder(tmp_path: Path):
    folders = [fresh_run("bench-ddp", tmp_path) for _ in range(5)]
    assert len({folder.path for folder in folders}) == 5
    for folder in folders:
        folder.release()


def test_removing_nothing_is_nothing(tmp_path: Path):
    remove(tmp_path / "nothing")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(json_like)
def test_written_json_is_strict_and_only_what_is_not_finite_is_lost(value: object):
    def expected(value: object) -> object:
        if isinstance(value, float) and (math.isnan(value) or math.isinf(value)):
            return None
        if isinstance(value, list):
            return [expected(item) for item in value]
        if isinstance(value, dict):
            return {key: expected(item) for key, item in value.items()}
        return value

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(to_json(value), parse_constant=refuse) == expected(value)


def test_arrays_paths_and_tuples_become_plain():
    values = {
        "a": np.array([1.0, np.nan, np.inf]),
        "b": np.float32(0.5),
        "c": Path("x"),
        "d": (np.int64(3), np.bool_(1)),
    }
    assert plain(values) == {"a": [1.0, None, None], "b": 0.5, "c": "x", "d": [3, True]}
    with pytest.raises(TypeError, match="object has no JSON form"):
        plain({"a": object()})


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "[" * 100_000, "{", "", b"\xff"])
def test_parsing_refuses_what_is_not_strict(text: str | bytes):
    with pytest.raises(ValueError):
        from_json(text)


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path):
    write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"new": object()})
    assert json.loads((tmp_path / "x.json").read_text()) == {"old": 1}
    with pytest.raises(JaxdpError, match="not written"):
        write_json(tmp_path / "x.json" / "y.json", 1)
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.fixture(scope="module")
def log_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@given(st.lists(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=9)), max_size=5), st.data())
def test_a_log_cut_anywhere_keeps_every_whole_line(log_folder: Path, rows: list[dict], data: st.DataObject):
    content = "".join(to_json(row) + "\n" for row in rows).encode()
    cut = data.draw(st.integers(0, len(content)))
    path = log_folder / "steps.jsonl"
    path.write_bytes(content[:cut])
    whole = content[:cut].count(b"\n")
    assert read_lines(path) == rows[:whole]
    with JsonLines(path) as log:
        log.append({"after": "the crash"})
    assert read_lines(path) == [*rows[:whole], {"after": "the crash"}]


def test_a_log_drops_the_rows_past_a_checkpoint(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    keep_lines(path, bool)
    assert not path.exists()
    with JsonLines(path) as log:
        for step in range(6):
            log.append({"step": step, "loss": float("nan")})
    keep_lines(path, lambda row: row["step"] <= 3)
    assert read_lines(path) == [{"step": step, "loss": None} for step in range(4)]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(JaxdpError, match=r"steps\.jsonl:2"):
        read_lines(path)


def test_a_log_on_a_full_disk_fails_in_one_line_and_stays_whole(tmp_path: Path):
    code = """
import resource, signal, sys
from pathlib import Path
from jaxdp.errors import JaxdpError
from jaxdp.strict_json import JsonLines
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
with JsonLines(Path(sys.argv[1])) as log:
    try:
        while True:
            log.append({"text": "x" * 300})
    except JaxdpError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(error)
    log.append({"text": "room again"})
"""
    path = tmp_path / "steps.jsonl"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert "a line was not written" in done.stdout and done.stdout.count("\n") == 1
    assert read_lines(path)[-1] == {"text": "room again"}


def test_the_folder_and_the_manifest_need_no_jax():
    code = """
import sys
import jaxdp.run.folder, jaxdp.run.manifest, jaxdp.job.stop, jaxdp.strict_json
slow = {"jax", "orbax", "flax", "numpy"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", code], check=True)
