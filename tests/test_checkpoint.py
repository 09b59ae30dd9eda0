"""Checkpoints: bit-exact on any layout, proved by their manifest, and never lost to a crash."""

import functools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.run import manifest as manifests
from jaxdp.run.checkpoint import Checkpoints
from jaxdp.run.manifest import Damaged, step_folder
from tests import saver

SAVER = Path(saver.__file__)


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any


def mesh(devices: int) -> jax.sharding.Mesh:
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def host_state(seed: int = 0) -> State:
    """A real optimizer's state in NumPy, with the odd values that a conversion would change."""
    draw = np.random.default_rng(seed)
    params = {
        "embed": draw.standard_normal((16, 8), dtype=np.float32),
        "blocks": {"qkv": draw.standard_normal((2, 8, 24), dtype=np.float32)},
        "final_norm": np.array([np.nan, -0.0, 1e-45, np.inf, 1.0, -np.inf, 3e38, 0.0], np.float32),
    }
    state = State(np.int32(seed).reshape(()), params, optax.adamw(1e-3, mu_dtype=jnp.bfloat16).init(params))
    return jax.tree.map(np.array, state)


def spread(state: Any, devices: int, sharded: bool) -> Any:
    """`state` on a mesh; sharded leaves are cut along the first dim that the devices divide."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, _sharding(leaf, devices, sharded)), state)


def target(state: Any, devices: int, sharded: bool) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_sharding(leaf, devices, sharded)), state
    )


def _sharding(leaf: Any, devices: int, sharded: bool) -> NamedSharding:
    cut = next((dim for dim, size in enumerate(leaf.shape) if sharded and size % devices == 0), None)
    spec = PartitionSpec() if cut is None else PartitionSpec(*[None] * cut, "data")
    return NamedSharding(mesh(devices), spec)


def assert_same_bits(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(map(np.asarray, jax.tree.leaves(got)), map(np.asarray, jax.tree.leaves(want)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 10, 20 and 30 of a run: read it or copy it."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, spread(host_state(step), 8, sharded=True), {"step": step, "model": {"width": 8}})
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


LAYOUTS = [(8, True), (8, False), (2, True), (1, False), None]  # devices and whether sharded; None: NumPy


@pytest.mark.parametrize("there", LAYOUTS)
def test_a_state_is_restored_bit_for_bit_on_any_layout(tmp_path: Path, there: tuple[int, bool] | None):
    want = host_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, spread(want, *there) if there else want, {})
        for here in LAYOUTS:
            asked = target(want, *here) if here else want
            restored = checkpoints.restore(0, asked)
            assert restored is not None
            assert_same_bits(restored.state, want)
            for leaf, spec in zip(jax.tree.leaves(restored.state), jax.tree.leaves(asked), strict=True):
                assert leaf.sharding == spec.sharding if here else isinstance(leaf, np.ndarray)


@pytest.mark.parametrize(("devices", "sharded"), [(1, False), (8, False), (8, True)])
def test_a_state_donated_right_after_every_save_is_saved_as_it_was(tmp_path: Path, devices: int, sharded: bool):
    @functools.partial(jax.jit, donate_argnums=0)
    def train_step(state: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * 3 + 1, state)

    state = spread({"a": np.ones((512, 64), np.float32), "b": np.arange(8)}, devices, sharded)
    want = {}
    with Checkpoints(tmp_path, keep=6) as checkpoints:
        for step in range(6):
            want[step] = jax.tree.map(lambda leaf: np.array(leaf, copy=True), state)
            checkpoints.save(step, state, {})
            state = train_step(state)
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(6):
            restored = checkpoints.restore(step, want[step])
            assert restored is not None
            assert_same_bits(restored.state, want[step])


def test_host_arrays_changed_right_after_a_save_are_saved_as_they_were(tmp_path: Path):
    server = {"params": np.zeros((1024, 1024), np.float32)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, server, {})
        server["params"] += 1
        checkpoints.wait()
        restored = checkpoints.restore(0, server)
    assert restored is not None
    assert not restored.state["params"].any()


def test_the_newest_are_kept_and_the_metadata_come_back_strict(tmp_path: Path):
    metadata = {"tokens": 5, "best_loss": float("nan"), "model": {"width": 8}}
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest_good() is None
        assert checkpoints.restore("auto", host_state()) is None
        for step in range(1, 6):
            assert checkpoints.save(step, host_state(step), metadata)
            metadata["tokens"] += 1
        assert not checkpoints.save(5, host_state(5), metadata)
        assert checkpoints.steps() == [4, 5]
        restored = checkpoints.restore(4, host_state())
    assert restored is not None
    assert restored.metadata == {"tokens": 8, "best_loss": None, "model": {"width": 8}}


def test_what_is_not_finite_never_becomes_the_last_good_one(tmp_path: Path):
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(1, host_state(1), {})
        assert not checkpoints.save(2, host_state(2), {}, finite=False)
        assert checkpoints.latest_good() == 1


def test_a_run_that_did_not_resume_does_not_mix_its_checkpoints_with_others(copy: Path):
    with Checkpoints(copy) as checkpoints, pytest.raises(BadInput, match="--resume auto"):
        checkpoints.save(1, host_state(), {})
    assert manifests.steps(copy) == [10, 20, 30]


@pytest.mark.parametrize("new", [15, 20, 25, 30])
def test_going_back_abandons_the_later_steps_only_once_a_new_one_is_committed(copy: Path, new: int):
    with Checkpoints(copy) as checkpoints:
        checkpoints.restore(10, host_state())
        assert checkpoints.steps() == [10, 20, 30]
        checkpoints.save(new, host_state(99), {"again": True})
        with pytest.raises(ValueError, match="older than the newest"):
            checkpoints.save(new - 1, host_state(), {})
        kept = [step for step in (10, 20) if step < new]
        assert checkpoints.steps() == [*kept, new]
        restored = checkpoints.restore("auto", host_state())
    assert restored is not None
    assert (restored.step, restored.metadata) == (new, {"again": True})


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_flipped_bit_is_found_and_its_file_named(saved: Path, data: st.DataObject):
    folder = step_folder(saved, 20)
    path = data.draw(st.sampled_from(files(folder)))
    bit = data.draw(st.integers(0, 8 * path.stat().st_size - 1))
    flip(path, bit)
    try:
        with pytest.raises(Damaged, match=path.name):
            manifests.verify(folder)
    finally:
        flip(path, bit)
    manifests.verify(folder)


def test_every_bit_of_a_manifest_counts(saved: Path):
    folder = step_folder(saved, 20)
    path = folder / manifests.MANIFEST
    content = path.read_bytes()
    try:
        for bit in range(0, 8 * len(content), 61):  # coprime to 8: every bit of a byte has its turn
            place = bit // 8
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit % 8]) + content[place + 1 :])
            with pytest.raises(Damaged):
                manifests.read(folder)
    finally:
        path.write_bytes(content)


def damage(folder: Path, how: str) -> Path:
    """Damages one file of the folder and returns it."""
    path = max(files(folder / "state"), key=lambda path: path.stat().st_size)
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "emptied":
        os.truncate(path, 0)
    elif how == "grown":
        path.write_bytes(path.read_bytes() + b"x")
    elif how == "flipped":
        flip(path, 8 * (path.stat().st_size // 2))
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "no manifest":
        path = folder / manifests.MANIFEST
        path.unlink()
    return path


@pytest.mark.parametrize("how", ["missing", "truncated", "emptied", "grown", "flipped", "a folder", "no manifest"])
def test_damage_fails_an_explicit_step_and_makes_auto_fall_back_aloud(
    copy: Path, how: str, caplog: pytest.LogCaptureFixture
):
    path = damage(step_folder(copy, 30), how)
    said = {"flipped": "SHA-256 differs", "missing": "missing", "a folder": "missing", "no manifest": "missing"}
    with Checkpoints(copy) as checkpoints:
        with pytest.raises(Damaged, match=f"{path}: .*{said.get(how, 'bytes instead of')}"):
            checkpoints.restore(30, host_state())
        restored = checkpoints.restore("auto", host_state())
        assert restored is not None
        assert_same_bits(restored.state, host_state(20))
        assert checkpoints.latest_good() == 20
    assert any(record.levelname == "WARNING" and str(path) in record.getMessage() for record in caplog.records)


def test_auto_with_nothing_whole_is_an_error_and_not_a_new_start(copy: Path):
    for step in (10, 20, 30):
        damage(step_folder(copy, step), "flipped")
    with Checkpoints(copy) as checkpoints, pytest.raises(JaxdpError, match="none of its checkpoints is whole"):
        checkpoints.restore("auto", host_state())


def test_a_step_that_is_not_there_names_those_that_are(saved: Path):
    with (
        Checkpoints(saved) as checkpoints,
        pytest.raises(BadInput, match="no checkpoint of step 25; there are 10, 20, 30"),
    ):
        checkpoints.restore(25, host_state())


def forge(folder: Path, **changes: Any) -> None:
    """Replaces parts of a manifest under a correct seal, as an attacker could."""
    found = manifests.read(folder)
    parts = {"metadata": found.metadata, "leaves": found.leaves, "files": found.files} | changes
    (folder / manifests.MANIFEST).write_bytes(manifests._canonical(manifests.Manifest(**parts)))


@pytest.mark.parametrize("name", ["../../secret", "{absolute}", "state/../../../secret", "a\0b", "link", "state"])
def test_a_manifest_that_points_elsewhere_is_refused(copy: Path, tmp_path: Path, name: str):
    secret = tmp_path / "secret"
    secret.write_text("x")
    folder = step_folder(copy, 30)
    (folder / "link").symlink_to(secret)
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of "x"
    forge(folder, files={name.format(absolute=secret): {"bytes": 1, "sha256": digest}})
    with pytest.raises(Damaged, match=r"leads out|missing"):
        manifests.verify(folder)


@pytest.mark.parametrize("files", [{}, {"state/_METADATA": {}}, {"a": {"bytes": 1}}])
def test_a_manifest_without_sense_is_refused(copy: Path, files: dict):
    forge(step_folder(copy, 30), files=files)
    with pytest.raises(Damaged):
        manifests.verify(step_folder(copy, 30))


@pytest.mark.parametrize(
    "content", [b"[]", b"{}", b"null", b'"format"', b'{"a": ' * 700 + b"1" + b"}" * 700, b"[" * 10**6]
)
def test_any_other_content_of_a_manifest_is_damage(copy: Path, content: bytes):
    folder = step_folder(copy, 30)
    for text in (content, b'{"format": 1, "leaves": {}, "files": {"a": {}}, "metadata": ' + content + b"}"):
        (folder / manifests.MANIFEST).write_bytes(text)
        with pytest.raises(Damaged):
            manifests.verify(folder)


def test_a_checkpoint_that_is_a_link_out_of_the_run_is_refused(saved: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    step_folder(tmp_path / "run", 30).symlink_to(step_folder(saved, 30))
    with Checkpoints(tmp_path / "run") as checkpoints, pytest.raises(Damaged, match="leads out"):
        checkpoints.restore(30, host_state())


def test_another_model_is_refused_with_every_differing_key_and_without_jax(saved: Path):
    code = """
import sys
from pathlib import Path
from jaxdp.errors import BadInput
from jaxdp.run import manifest
step, found = manifest.peek(Path(sys.argv[1]), "auto")
try:
    manifest.refuse_other(found.metadata, {"model": {"width": 16, "layers": 2}, "step": 30}, Path("here"))
except BadInput as error:
    print(step, error)
assert "jax" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code, saved], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("30 here:")
    assert "model.layers is absent there and 2 here; model.width is 8 there and 16 here. Give" in done.stdout


def _other_targets() -> dict[str, Any]:
    state = host_state()
    return {
        r"state.params.embed is float32\[16,8\] there and bfloat16\[16,8\] here": state._replace(
            params={**state.params, "embed": state.params["embed"].astype(jnp.bfloat16)}
        ),
        r"state.params.embed is float32\[16,8\] there and float64\[16,8\] here": state._replace(
            params={**state.params, "embed": state.params["embed"].astype(np.float64)}
        ),
        r"state.params.embed is float32\[16,8\] there and float32\[8,16\] here": state._replace(
            params={**state.params, "embed": state.params["embed"].T}
        ),
        r"state.params.head is absent there": state._replace(params={**state.params, "head": np.ones(3)}),
        r"state.opt_state.0.mu.embed is bfloat16\[16,8\] there and absent here": state._replace(opt_state=()),
    }


@pytest.mark.parametrize("message", _other_targets())
def test_other_leaves_shapes_and_dtypes_are_refused_by_name(saved: Path, message: str):
    with Checkpoints(saved) as checkpoints, pytest.raises(BadInput, match=message):
        checkpoints.restore("auto", _other_targets()[message])


def test_metadata_that_must_match_are_compared_before_reading_arrays(saved: Path):
    with Checkpoints(saved) as checkpoints:
        with pytest.raises(BadInput, match=r"model.width is 8 there and 9 here"):
            checkpoints.restore("auto", host_state(), must_match={"model": {"width": 9}})
        assert checkpoints.restore("auto", host_state(), must_match={"model": {"width": 8}}) is not None


def test_nothing_is_ever_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle")

    for name in ("load", "loads", "dump", "dumps", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, host_state(1), {})
        assert checkpoints.restore(1, host_state()) is not None


def test_leaves_that_share_a_path_are_not_confused(tmp_path: Path):
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(BadInput, match="same path"):
        checkpoints.save(0, {"a.b": np.ones(2), "a": {"b": np.zeros(2)}}, {})


def test_objects_are_not_saved(tmp_path: Path):
    with pytest.raises(JaxdpError, match="step 0 was not saved"), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": np.array([object()])}, {})
    assert manifests.steps(tmp_path) == []


def start(how: str, folder: Path, before: list[str] | None = None) -> subprocess.Popen[str]:
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}
    command = [*(before or []), sys.executable, str(SAVER), how, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def kill_while_saving(folder: Path, moments: int) -> None:
    draw = random.Random(0)
    last = -1
    for _ in range(moments):
        process = start("loop", folder)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.readline()
        time.sleep(draw.uniform(0, 0.5))
        process.kill()
        printed, _ = process.communicate()
        begun = max([last + 1, *map(int, printed.split())])
        with Checkpoints(folder) as checkpoints:
            assert not [path.name for path in folder.iterdir() if not path.name.isdigit()]
            newest = checkpoints.latest_good()
            if newest is None:
                assert begun == 0
                continue
            assert newest == checkpoints.steps()[-1]
            assert max(begun - 1, last) <= newest <= begun + 1
            restored = checkpoints.restore(newest, saver.state(newest))
            assert restored is not None
            assert_same_bits(restored.state, saver.state(newest))
            last = newest
    assert last >= 0


def test_a_process_killed_while_saving_loses_no_committed_step(tmp_path: Path):
    kill_while_saving(tmp_path, moments=5)


@pytest.mark.slow
def test_a_process_killed_at_fifty_moments_loses_no_committed_step(tmp_path: Path):
    kill_while_saving(tmp_path, moments=50)


def test_left_overs_of_killed_saves_are_removed_and_nothing_else(copy: Path):
    (copy / "saving-00000040" / "state.orbax-checkpoint-tmp").mkdir(parents=True)
    (copy / "removing-00000001").mkdir()
    (copy / "notes").mkdir()
    (copy / "00000050x").mkdir()
    Checkpoints(copy).close()
    assert sorted(path.name for path in copy.iterdir()) == ["00000010", "00000020", "00000030", "00000050x", "notes"]


def assert_starved(process: subprocess.Popen[str], reason: str) -> None:
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1, errors
    assert reason in errors and "was not saved" in errors
    assert errors.count("\n") == 1, errors


def test_a_full_disk_is_an_error_in_one_line_and_older_checkpoints_stay(tmp_path: Path):
    assert_starved(start("starved", tmp_path), "File too large")
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore("auto", saver.state(0))
    assert restored is not None
    assert_same_bits(restored.state, saver.state(0))
    assert [path.name for path in tmp_path.iterdir()] == ["00000000"]


def own_mounts() -> bool:
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


@pytest.mark.skipif(not own_mounts(), reason="needs a mount namespace")
def test_a_really_full_file_system_is_an_error_in_one_line(tmp_path: Path):
    script = f'mount -t tmpfs -o size=10m tmpfs {tmp_path} && exec "$@"'
    process = start("filled", tmp_path, ["unshare", "-m", "sh", "-c", script, "sh"])
    assert_starved(process, "No space left on device")


def test_a_failed_save_surfaces_once_and_saving_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, host_state(1), {})
        checkpoints.wait()
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "seal", full)
            checkpoints.save(2, host_state(2), {})
            with pytest.raises(JaxdpError, match=r"step 2 was not saved.*No space left.*stay: 1"):
                checkpoints.save(3, host_state(3), {})
        checkpoints.save(2, host_state(2), {})
        checkpoints.save(3, host_state(3), {})
        checkpoints.wait()
        assert checkpoints.steps() == [1, 2, 3]


def test_an_error_of_the_run_is_not_hidden_by_that_of_its_last_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifests, "seal", lambda *_: json.loads("{"))
    with pytest.raises(ZeroDivisionError), Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, host_state(1), {})
        raise ZeroDivisionError


def test_a_folder_that_cannot_be_written_fails_in_one_line(tmp_path: Path):
    (tmp_path / "file").touch()
    with (
        Checkpoints(tmp_path / "file" / "checkpoints") as checkpoints,
        pytest.raises(JaxdpError, match="Not a directory"),
    ):
        checkpoints.save(1, host_state(1), {})
