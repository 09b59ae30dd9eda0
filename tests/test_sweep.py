"""A sweep's file, its cells and what is told from how a cell's process ended; no process is started here."""

import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxdp.config import load, shipped_names
from jaxdp.errors import BadInput
from jaxdp.predict.preflight import preflight
from jaxdp.records import SweepRow
from jaxdp.run import oom
from jaxdp.sweep.outcome import outcome
from jaxdp.sweep.points import SweepPoint, in_order, make_cells
from jaxdp.sweep.run import remaining_s
from jaxdp.sweep.spec import SHIPPED_SWEEPS, load_spec

HEAD = 'name = "t"\nstrategies = ["ddp", "fsdp"]\ndevices = [1, 2]\nscaling = "weak"\n'

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return str(path)

    return write


def cells_of(source: str) -> list[SweepPoint]:
    return make_cells(load_spec(source))


BAD = [
    ("name = ", "not TOML"),
    (HEAD + "step = 3\n", "step: unknown key; did you mean steps?"),
    (HEAD + '[launch]\ncomand = "x"\n', "did you mean launch.command?"),
    (HEAD + '[launch]\ncommand = "srun -n {procs}"\n', "{procs}; known: {devices}, {processes}"),
    (HEAD + '[launch]\ncommand = "srun {0"\n', "launch.command"),
    (HEAD + '[launch]\ncommand = "srun \'x"\n', "launch.command"),
    (HEAD + '[launch]\ncommand = "x"\ndevices_per_process = 2\n', "does not divide 1 devices"),
    (HEAD + "[launch]\ncommand = 3\n", "launch.command"),
    (HEAD.replace("weak", "week"), "scaling"),
    (HEAD.replace('"t"', '"../../t"'), "name"),
    (HEAD.replace('scaling = "weak"', ""), "scaling: field required"),
    (HEAD.replace("[1, 2]", "[]"), "devices"),
    (HEAD.replace("[1, 2]", "[0]"), "devices"),
    (HEAD.replace("[1, 2]", "4"), "devices"),
    (HEAD + "repeats = 0\n", "repeats"),
    (HEAD + "timeout_s = 0\n", "timeout_s"),
    (HEAD.replace("fsdp", "fdsp"), "fdsp"),
    (HEAD + 'config = ["nanno"]\n', "did you mean nano?"),
    (HEAD + 'allow = ["all"]\n', "no such finding"),
    (HEAD + 'hardware = "h1000"\n', "no such preset"),
    (HEAD + "[set]\nmodel.widht = 64\n", "did you mean model.width?"),
    (HEAD + "[axes]\nmodel.widht = [64]\n", "did you mean model.width?"),
    (HEAD + '[axes]\n"model.width" = [64, 66]\n', "model.width=66 devices=1 strategy=ddp"),
    (HEAD + '[axes]\n"model.width" = 64\n', "axes.model.width: expected a list"),
    (HEAD + '[axes]\n"model.width" = []\n', "axes.model.width: expected a list"),
    (HEAD + '[axes]\n"strategy.name" = ["ps"]\n', "strategy.name is set by strategies already"),
    (HEAD + '[axes]\n"devices" = [1]\n', "devices is set by devices already"),
    (
        HEAD + "[set]\nmodel.width = 64\n[axes]\nmodel.width = [64]\n",
        "axes.model.width: model.width is set by set already",
    ),
    (
        HEAD + '[[axes.x]]\nname = "a"\nmodel.width = 64\n[axes]\nmodel.width = [32]\n',
        "model.width is set by axes.x already",
    ),
    (HEAD + '[set]\nstrategy.name = "ps"\n', "set: strategy.name is set by strategies"),
    (HEAD + '[axes]\nstragglers = ["slow(factor=3)"]\n', "stragglers"),
    (HEAD + '[axes]\n"model.width" = [64, 64]\n', "64 stands there twice"),
    (
        HEAD + '[[axes.size]]\nname = "a"\nmodel.width = 64\n[[axes.size]]\nname = "a"\nmodel.width = 128\n',
        "axes.size: 'a' stands there twice",
    ),
    (HEAD + '[[axes.size]]\n"model.width" = 64\n', "needs a name"),
    (HEAD + '[[axes.size]]\nname = "small"\n', "at least one config key"),
    (HEAD + '[set]\ndata.corpus = "files"\ndata.path = "/no/such/file.txt"\n', "/no/such/file.txt"),
    (HEAD + "[axes]\ntrain.seed = [" + ",".join(map(str, range(2501))) + "]\n", "at most 10000"),
    (HEAD.replace("[1, 2]", "[3, 4]"), "multiple of 3"),
]


@pytest.mark.parametrize(("text", "told"), BAD)
def test_a_wrong_file_is_one_line(text: str, told: str, write: Write) -> None:
    with pytest.raises(BadInput) as caught:
        cells_of(write(text))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_combination_is_a_cell_and_strategies_are_adjacent(write: Write) -> None:
    axes = '[axes]\nstragglers = ["", "persistent(factor=2)"]\n\n[[axes.size]]\nname = "s"\nmodel.width = 32\n'
    axes += '\n[[axes.size]]\nname = "l"\n"model.width" = 128\n"model.ffn" = 512\n'
    cells = cells_of(write(HEAD + axes))
    assert len(cells) == 2 * 2 * 2 * 2
    assert [list(cell.values.values()) for cell in cells[:5]] == [
        ["", "s", 1, "ddp"],
        ["", "s", 1, "fsdp"],
        ["", "s", 2, "ddp"],
        ["", "s", 2, "fsdp"],
        ["", "l", 1, "ddp"],
    ]
    assert list(cells[0].values) == ["stragglers", "size", "devices", "strategy"]
    assert (cells[4].config.model.width, cells[4].config.model.ffn) == (128, 512)
    assert cells[-1].config.stragglers == "persistent(factor=2)"


def test_every_other_repeat_runs_backwards(write: Write) -> None:
    cells = cells_of(write(HEAD))
    runs = in_order(cells, 3)
    assert [run.repeat for run in runs] == [0] * 4 + [1] * 4 + [2] * 4
    assert [run.cell for run in runs] == [*cells, *reversed(cells), *cells]
    assert len({run.key for run in runs}) == 12


@pytest.mark.parametrize(("scaling", "batches"), [("weak", [24, 48, 96]), ("strong", [24, 24, 24])])
def test_the_global_batch_grows_with_the_devices_under_weak_scaling_only(
    scaling: str, batches: list[int], write: Write
) -> None:
    text = (
        f'name = "t"\nstrategies = ["ddp"]\ndevices = [2, 4, 8]\nscaling = "{scaling}"\nset.train.global_batch = 24\n'
    )
    assert [cell.config.train.global_batch for cell in cells_of(write(text))] == batches


def config_of(arguments: tuple[str, ...]) -> Any:
    """What `jaxdp bench` makes of a cell's arguments."""
    given = list(pairwise(arguments))
    strategy = next(value for flag, value in given if flag == "--strategy")
    return load(
        [value for flag, value in given if flag == "--config"],
        [value for flag, value in given if flag == "--set"],
        {"strategy.name": strategy},
    )


@pytest.mark.parametrize("name", shipped_names(SHIPPED_SWEEPS))
def test_shipped_sweeps_have_no_refused_cell_and_commands_that_say_the_whole_config(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    for cell in make_cells(spec):
        assert cell.refusal is None
        assert config_of(cell.arguments) == cell.config
        assert ("--devices", str(cell.devices)) in pairwise(cell.arguments)


def test_the_study_has_24_cells() -> None:
    assert len(cells_of("study")) == 24


def test_a_command_says_awkward_values_and_a_users_file_whole(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[model]\nlayers = 2\n[data]\ncorpus = "files"\npath = "12"\n')
    (tmp_path / "12").write_text("words " * 5000)
    text = HEAD + f'config = ["tiny", "{tmp_path}/mine.toml"]\n[set]\ndata.path = "{tmp_path}/12"\noptim.clip = 0\n'
    for cell in cells_of(write(text + 'strategy.round_latency_s = 1e-3\nstragglers = "pace(seconds=0.5)"\n')):
        assert config_of(cell.arguments) == cell.config
    assert "--config" in cell.arguments and "tiny" in cell.arguments
    assert str(tmp_path / "mine.toml") not in cell.arguments


def test_a_task_and_its_arguments_are_swept(write: Write) -> None:
    text = HEAD + '[set]\ntask = "tests.task_cases:module"\n[axes]\n"task.width" = [4, 8]\n'
    cells = cells_of(write(text))
    assert {cell.config.task and cell.config.task.arguments["width"] for cell in cells} == {4, 8}
    assert all(config_of(cell.arguments) == cell.config and cell.refusal is None for cell in cells)


def test_a_key_depends_on_what_is_measured_and_on_nothing_else(write: Write) -> None:
    def keys(text: str) -> set[str]:
        return {run.key for run in in_order(cells_of(write(text)), 1)}

    same = keys(HEAD)
    assert len(same) == 4
    assert keys(HEAD + "timeout_s = 5\nrepeats = 3\nallow = ['replicated']\n") == same
    for more in ("steps = 5\n", "warmup = 1\n", "set.train.seed = 1\n", 'launch.command = "mpirun -n {processes}"\n'):
        assert not keys(HEAD + more) & same


def test_cells_that_a_check_refuses_are_told_with_its_reason(write: Write) -> None:
    text = HEAD.replace("[1, 2]", "[1, 3]").replace("weak", "strong")
    refused = [(cell.devices, cell.refusal) for cell in cells_of(write(text)) if cell.refusal]
    assert [devices for devices, _ in refused] == [3, 3]
    assert all("batch_undivided" in str(reason) for _, reason in refused)
    text = HEAD + 'set.stragglers = "persistent(worker=1,factor=2)"\n'
    assert [cell.devices for cell in cells_of(write(text)) if cell.refusal] == [1, 1]


def test_hardware_adds_predictions_and_checks_memory(write: Write) -> None:
    text = 'name = "t"\nconfig = ["gpt2"]\nstrategies = ["ddp"]\ndevices = [2, 4, 8, 16, 12]\nscaling = "weak"\n'
    text += "set.train.global_batch = 16\n"
    cells = cells_of(write(text + 'hardware = "h100x8"\n'))
    assert cells[4].predicted is None  # twelve devices don't come out as hosts of eight
    steps = [cell.predicted["step_time_s"]["total"] for cell in cells[:4] if cell.predicted]
    assert len(set(steps)) == 4 and min(steps) == steps[0]  # the fewest devices exchange least
    assert cells_of(write(text))[0].predicted is None
    text = text.replace('"gpt2"', '"llama3-70b"').replace("[2, 4, 8, 16, 12]", "[8]")
    assert "memory" in str(cells_of(write(text + 'hardware = "rtx4090x8"\n'))[0].refusal)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ('command = "srun -N {hosts} -n {processes}"\nprocesses_per_host = 2', "srun -N 2 -n 4 PYTHON bench"),
        (
            "command = \"mpirun -n {processes} -x 'A=b c'\"\ndevices_per_process = 2",
            "mpirun -n 2 -x A=b c PYTHON bench",
        ),
        (
            'command = "jaxdp launch -n {processes} --devices-per-process {devices_per_process} --"',
            "PYTHON launch -n 4 --devices-per-process 1 -- bench",
        ),
    ],
)
def test_a_launcher_goes_before_the_command(launch: str, words: str, write: Write) -> None:
    text = HEAD.replace("[1, 2]", "[4]") + f"[launch]\n{launch}\n"
    assert " ".join(cells_of(write(text))[0].command(["PYTHON"])).startswith(f"{words} --config nano --strategy ddp")


def own_oom_line() -> str:
    config = load(["nano"])
    try:
        with oom.named("training", config, preflight(config, 4)):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 bytes.")
    except oom.OutOfMemory as error:
        return f"error: {error}"


ENDS = [
    (0, "", 0, "ok", None),
    (1, own_oom_line(), 0, "oom", "ddp ran out of memory while training"),
    (1, "error: unexpected JaxRuntimeError: RESOURCE_EXHAUSTED: Out of", 0, "oom", "RESOURCE_EXHAUSTED"),
    (1, "error: unexpected MemoryError: ", 0, "oom", "MemoryError"),
    (137, "rank 1| error: fsdp ran out of memory while compiling\nlaunch: rank 1 failed", 0, "oom", "fsdp ran out"),
    (-signal.SIGABRT, "terminate called ...\nwhat():  std::bad_alloc", 0, "oom", "bad_alloc"),
    (-signal.SIGKILL, "", 1, "oom", "by the kernel"),
    (-signal.SIGKILL, "", None, "oom", "most likely"),
    (137, "", None, "oom", "most likely"),
    (-signal.SIGKILL, "", 0, "error", "signal 9"),
    (-signal.SIGSEGV, "\nlast words\n\n", 0, "error", "Segmentation fault"),
    (3, "error: memory: needs 9 GiB", 0, "refused", "memory: needs 9 GiB"),
    (2, "error: --devices 8: only 2 gpu device(s) here", 0, "refused", "--devices 8"),
    (2, "mpirun: not enough slots", 0, "error", "exit code 2: mpirun: not enough slots"),
    (1, "W allocator ran out of memory, not a failure\nerror: the loss is nan", 0, "error", "the loss is nan"),
    (1, "", 0, "error", "it said nothing"),
]


@pytest.mark.parametrize(("code", "said", "kills", "status", "told"), ENDS)
def test_how_a_process_ended_tells_what_became_of_it(
    code: int, said: str, kills: int | None, status: str, told: str | None
) -> None:
    found = outcome(code, b'[{"strategy": "ddp"}]', said, kills)
    assert found.status == status
    assert (found.result is not None) == (status == "ok")
    assert found.reason is None if told is None else told in str(found.reason)


@pytest.mark.parametrize("printed", [b"", b"[]", b"{}", b"[1]", b'[{"x": NaN}]', b"[{}, {}]", b"Hello"])
def test_a_process_that_ends_well_without_one_result_has_failed(printed: bytes) -> None:
    assert outcome(0, printed, "", 0).status == "error"


def test_what_is_left_is_estimated_from_a_cells_own_time_or_the_average(write: Write) -> None:
    cells = cells_of(write(HEAD))
    first, second, *rest = in_order(cells, 2)
    row = SweepRow(first.key, first.cell.values, 0, "weak", 16, "ok", seconds=10.0)
    other = SweepRow(second.key, second.cell.values, 0, "weak", 16, "ok", seconds=30.0)
    assert remaining_s([], rest) is None
    assert remaining_s([row, other], rest) == pytest.approx(4 * 20 + 10 + 30)
    assert remaining_s([row, other], []) == 0


def test_a_row_reads_back_and_says_what_is_wrong_with_it() -> None:
    row = SweepRow("a.0", {"devices": 1, "strategy": "ddp"}, 0, "weak", 16, "refused", "too large")
    assert SweepRow.from_json(row.to_json()) == row
    with pytest.raises(ValueError, match="extra, status"):
        SweepRow.from_json({key: value for key, value in row.to_json().items() if key != "status"} | {"extra": 1})
