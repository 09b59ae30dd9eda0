"""Checkpoints of a run: asynchronous Orbax saves, each proved by a manifest, restored on any mesh.

    with Checkpoints(folder.file("checkpoints")) as checkpoints:
        restored = checkpoints.restore("auto", target)      # target: the state's shapes, dtypes and shardings
        checkpoints.save(step, state, {"model": ...})        # the caller may donate `state` at once

Arrays are stored in a flat table from a leaf's path to its value, so that neither the strategy nor the
classes of an optimizer's state are part of the format.

In a run over many processes every one makes the same calls. Each writes its own shards; process 0 alone looks
at the folder, decides, and commits.
"""

import contextlib
import functools
import logging
import os
import re
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxdp.errors import BadInput, JaxdpError
from jaxdp.job import processes
from jaxdp.run import manifest as manifests
from jaxdp.run.folder import remove
from jaxdp.run.manifest import Manifest, step_folder
from jaxdp.strict_json import plain, sync_folder
from jaxdp.task import by_path

log = logging.getLogger(__name__)

UNFINISHED = re.compile(r"(saving|removing)-\d{8,}")  # what a killed process leaves behind


class Restored(NamedTuple):
    step: int
    state: Any
    metadata: dict[str, Any]


class Checkpoints:
    """The checkpoints in `directory`, of which the newest `keep` are kept; close it to learn how the last save ended.

    A directory belongs to one run at a time (the run folder's claim sees to it), so what killed saves left
    behind is removed at the start. One save runs at a time. A save that failed raises `JaxdpError` from the
    next `save`, `wait` or `close`; the checkpoints before it stay.
    """

    def __init__(self, directory: Path, *, keep: int = 3):
        if keep < 1:
            raise BadInput(f"keep: {keep} checkpoints leave nothing to resume from; at least 1")
        self.directory = Path(directory).absolute()
        self._keep = keep
        self._newest = -1  # the step that this run restored or saved last
        self._pending: Future[int] | None = None
        _quiet_orbax()
        # Uncompressed: floats hardly compress, and zstd doubles the time of a save and of a restore.
        together = _together()
        handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=together)
        self._orbax = ocp.AsyncCheckpointer(handler, multiprocessing_options=together)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        processes.on_first(self._tidy)

    def steps(self) -> list[int]:
        return manifests.steps(self.directory)

    def latest_good(self) -> int | None:
        """The newest step whose files all verify, or None if there is no checkpoint; raises if none is whole."""
        found = manifests.latest_good(self.directory)
        return None if found is None else found[0]

    def save(self, step: int, state: Any, metadata: Mapping[str, Any], *, finite: bool = True) -> bool:
        """Copies `state` off the devices, then writes it in the background; says whether a save was begun.

        Nothing is saved if `finite` is False (the newest checkpoint stays the last good one), or if `step`
        is already saved. Steps of an abandoned continuation (newer than the one that was restored) are
        removed once a checkpoint of this one is committed.
        """
        self.wait()
        if not finite:
            log.warning("step %d is not finite and not saved", step)
            return False
        if step == self._newest:
            return False
        leaves = by_path(state)
        described = {path: _described(leaf) for path, leaf in leaves.items()}
        partial = self.directory / f"saving-{step:08d}"
        processes.on_first(lambda: self._make_room(step, partial))
        try:
            self._orbax.save(partial / "state", args=ocp.args.PyTreeSave(leaves))
        except Exception as error:
            raise self._failure(step, partial, error) from error
        self._pending = self._worker.submit(self._commit, step, partial, plain(metadata), described)
        return True

    def restore(
        self,
        step: int | Literal["auto"],
        target: Any,
        *,
        must_match: Mapping[str, Any] | None = None,
    ) -> Restored | None:
        """The state saved at `step`, bit for bit, laid out as `target` asks; "auto" takes the newest good one.

        `target` is the state or its `jax.ShapeDtypeStruct`s with shardings: any mesh, device count and
        strategy; a leaf without a sharding comes back as a NumPy array. Every file is verified first: a
        damaged one raises naming it, or makes "auto" fall back with a warning. None if "auto" finds no
        checkpoint. Other leaves, shapes or dtypes, or metadata other than `must_match`, are refused.
        """
        self.wait()
        leaves = by_path(target)
        found = processes.on_first(lambda: self._matching(step, leaves, must_match or {}))
        if found is None:
            return None
        number, metadata = found
        folder = step_folder(self.directory, number)
        layout = {path: _restore_args(leaf) for path, leaf in leaves.items()}
        try:
            arrays = self._orbax.restore(
                folder / "state", args=ocp.args.PyTreeRestore(item=dict(leaves), restore_args=layout)
            )
        except Exception as error:
            raise JaxdpError(f"{folder}: not restored ({_reason(error)})") from error
        self._newest = number
        state = jax.tree.unflatten(jax.tree.structure(target), [arrays[path] for path in leaves])
        return Restored(number, state, metadata)

    def wait(self) -> None:
        """Returns once the save under way is committed; raises `JaxdpError` if it failed."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            step = pending.result()
            processes.on_first(lambda: None)  # which gets here once it has committed the step
            self._newest = step

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        try:
            if self._pending is not None:
                self._pending.result()  # without agreement: the other processes may be elsewhere
        except JaxdpError as failure:
            log.error("%s", failure)  # what ended the run matters more
        finally:
            self._shut()

    def _shut(self) -> None:
        self._worker.shutdown()
        self._orbax.close()

    def _tidy(self) -> None:
        """Removes what killed saves left behind."""
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                if UNFINISHED.fullmatch(path.name):
                    remove(path)

    def _make_room(self, step: int, partial: Path) -> None:
        self._refuse_step(step)
        try:
            remove(partial)
            partial.mkdir(parents=True)
        except OSError as error:
            raise self._failure(step, partial, error) from error

    def _refuse_step(self, step: int) -> None:
        if step < max(self._newest, 0):
            raise ValueError(f"step {step} is older than the newest checkpoint, {self._newest}")
        if self._newest < 0 and self.steps():
            raise BadInput(
                f"{self.directory}: holds another run's checkpoints; continue it with --resume auto, "
                "or replace it with --overwrite"
            )

    def _commit(self, step: int, partial: Path, metadata: dict[str, Any], leaves: dict[str, str]) -> int:
        try:
            self._orbax.wait_until_finished()
            if processes.is_first():
                manifests.seal(partial, metadata, leaves)
                self._retire(step)
                partial.rename(step_folder(self.directory, step))
                sync_folder(self.directory)
                self._prune(step)
        except Exception as error:
            raise self._failure(step, partial, error) from error
        return step

    def _prune(self, step: int) -> None:
        known = self.steps()
        kept = [other for other in known if other <= step][-self._keep :]
        for other in known:
            if other not in kept:
                self._retire(other)

    def _retire(self, step: int) -> None:
        """Removes a committed step, if there is one, such that no moment shows a part of it under its number."""
        folder = step_folder(self.directory, step)
        if folder.exists():
            removing = self.directory / f"removing-{step:08d}"
            remove(removing)
            folder.rename(removing)
            remove(removing)

    def _matching(
        self, step: int | Literal["auto"], leaves: Mapping[str, Any], must_match: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]] | None:
        """The step to restore, proved whole and of these leaves, with its metadata."""
        found = self._verified(step)
        if found is None:
            return None
        number, manifest = found
        folder = step_folder(self.directory, number)
        manifests.refuse_other(manifest.metadata, must_match, folder)
        wanted = {path: _described(leaf) for path, leaf in leaves.items()}
        manifests.refuse_other({"state": manifest.leaves}, {"state": wanted}, folder)
        return number, manifest.metadata

    def _verified(self, step: int | Literal["auto"]) -> tuple[int, Manifest] | None:
        if step == "auto":
            return manifests.latest_good(self.directory)
        return step, manifests.verify(manifests.existing(self.directory, step))

    def _failure(self, step: int, partial: Path, error: Exception) -> JaxdpError:
        """Gives the disk its room back, and says what is left."""
        with contextlib.suppress(OSError):
            remove(partial)
        there = self.steps()
        stay = f"older checkpoints stay: {', '.join(map(str, there))}" if there else "there is no older one"
        return JaxdpError(f"{self.directory}: step {step} was not saved ({_reason(error)}); {stay}")


def _together() -> ocp.options.MultiprocessingOptions:
    """Orbax over all processes: named, so that it meets through JAX's coordination service, not by collectives."""
    everyone = set(range(processes.count())) if processes.count() > 1 else None
    return ocp.options.MultiprocessingOptions(active_processes=everyone)


@functools.cache
def _quiet_orbax() -> None:
    """Leaves a failed write to be told once, by `wait`, in one line.

    Orbax logs five tracebacks for it, then closes its event loop, about which every other write under way
    complains as an exception that nobody can catch.
    """
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    report = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report(unraisable)

    sys.unraisablehook = hook


def _described(leaf: Any) -> str:
    return f"{np.dtype(leaf.dtype).name}[{','.join(map(str, leaf.shape))}]"


def _restore_args(leaf: Any) -> ocp.RestoreArgs:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding, global_shape=leaf.shape)


def _reason(error: Exception) -> str:
    """One line; TensorStore's errors hide the system's own behind a page of paths."""
    if isinstance(error, JaxdpError):
        return str(error)
    code = error.errno if isinstance(error, OSError) else None
    if hidden := re.search(r"os_error_code='(\d+)'", str(error)):
        code = int(hidden[1])
    return os.strerror(code) if code else f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.200}"
