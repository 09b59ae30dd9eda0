"""A user's task trains the same under every strategy, moves between them, and is refused in a line if it is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from jaxdp.config import Config, build, load, to_toml
from jaxdp.data.arrays import from_arrays
from jaxdp.errors import BadInput, Refused
from jaxdp.predict.advise import advise
from jaxdp.predict.compiled import compiled_check
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.preflight import preflight, require
from jaxdp.run.factory import make_run
from jaxdp.run.mesh_run import MeshRun
from jaxdp.workload import open_data, parameters, units_per_batch, user_task
from tests import task_cases
from tests.test_train import run as train_run

BATCH, STEPS, RATE, DECAY, CLIP = 8, 4, 0.05, 0.1, 0.5
TASKS = ("module", "list_of_dicts", "named_blocks")
STRATEGIES = ("ddp", "zero1", "fsdp", "hsdp", "ps")


def config(task: str, strategy: str = "ddp", **arguments: Any) -> Config:
    return build(
        {
            "task": {"function": f"tests.task_cases:{task}", **arguments},
            "optim": {"name": "adamw", "learning_rate": RATE, "warmup_steps": 0, "weight_decay": DECAY, "clip": CLIP}
            | {"schedule": "constant"},
            "train": {"global_batch": BATCH, "steps": STEPS, "compute_dtype": "float32"},
            "strategy": {"name": strategy, "min_shard_bytes": 0},
            "server": {"policy": "sync", "workers": 2},
        }
    )


def reference(task: str) -> tuple[list[float], float]:
    """Textbook steps on one device without jaxdp's step, optimizer or unshard: losses, and the held-out loss."""
    setting = config(task)
    made, data = getattr(task_cases, task)(), open_data(setting)

    def mean(params: Any, batch: Any) -> jax.Array:
        total, count = made.loss_sum(params, batch, lambda subtree, shards: shards)
        return total / count

    def is_matrix(path: Any, leaf: Any) -> bool:
        return leaf.ndim - ("layers" in jax.tree_util.keystr(path) and task == "named_blocks") >= 2

    mask = lambda params: jax.tree.map_with_path(is_matrix, params)  # noqa: E731
    tx = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(RATE, 0.9, 0.95, weight_decay=DECAY, mask=mask))
    params: Any = jax.jit(made.init_params)(jax.random.key(0))
    state, losses = tx.init(params), []
    step = jax.jit(jax.value_and_grad(mean))
    for index in range(STEPS):
        loss, grads = step(params, data.rows(index, 0, BATCH))
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    sums = [made.loss_sum(params, batch, lambda subtree, shards: shards) for batch in data.eval_batches(BATCH)]
    return losses, float(sum(total for total, _ in sums) / sum(count for _, count in sums))


@pytest.fixture(scope="module", params=TASKS)
def expected(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[float], float]]:
    yield request.param, *reference(request.param)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_task_trains_as_textbook_steps_do(strategy: str, expected: tuple[str, list[float], float]) -> None:
    task, losses, heldout = expected
    setting = config(task, strategy)
    run = make_run(setting, open_data(setting), jax.devices()[: 2 if strategy == "ps" else 4])
    try:
        run.compile()
        run.start()
        records = run.window(STEPS).records
        if strategy == "ps":  # two workers' halves of each batch
            found = [(first.loss + second.loss) / 2 for first, second in zip(records[::2], records[1::2], strict=True)]
        else:
            found = [record.loss for record in records]
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        assert run.evaluate() == pytest.approx(heldout, rel=1e-5)
        assert records[-1].tokens == STEPS * BATCH
    finally:
        run.close()


@pytest.mark.parametrize("task", TASKS)
def test_fsdp_cuts_a_task_and_the_check_knows_its_bytes(task: str) -> None:
    setting = config(task, "fsdp")
    report = preflight(setting, 4, memory_bytes=2**30)
    assert report.ok and report.memory_bytes is None and report.unknown
    run = MeshRun(setting, open_data(setting), jax.devices()[:4])
    run.start()
    held = sum(
        shard.data.nbytes for leaf in jax.tree.leaves(run.started.params) for shard in leaf.addressable_shards[:1]
    )
    assert held == sum(row["shard_bytes"] for row in report.parameters)
    assert held < sum(parameter.bytes for parameter in parameters(setting)) / 2


def test_blocks_are_gathered_layer_by_layer_and_never_cut_along_them() -> None:
    setting = config("named_blocks", "fsdp")
    rows = {row["parameter"]: row["spec"] for row in preflight(setting, 4).parameters}
    assert rows["encoder.layers.w"][0] is None and "data" in rows["encoder.layers.w"]
    compiled = compiled_check(setting, preflight(setting, 4))
    assert compiled.memory_bytes and not compiled.unknown and not compiled.findings and compiled.compiled
    gathers = next(row for row in compiled.compiled["collectives"] if row["kind"] == "all-gather")
    # Two leaves a layer, forward and backward; and two outside, once.
    assert gathers["count"] == 2 * 2 * task_cases.LAYERS + 2


def test_a_checkpoint_moves_between_strategies(tmp_path: Path) -> None:
    whole = train_run(config("module"), 2, tmp_path / "whole")
    train_run(config("module", "ddp"), 2, tmp_path / "moved", steps=1)
    train_run(config("module", "fsdp"), 4, tmp_path / "moved", steps=2, resume="auto")
    train_run(config("module", "ps"), 2, tmp_path / "moved", steps=3, resume="auto")
    last = train_run(config("module", "zero1"), 4, tmp_path / "moved", resume="auto")
    assert last.resumed_from == 3 and last.unit == "images" and last.tokens == STEPS * BATCH
    assert last.eval_loss == pytest.approx(whole.eval_loss, rel=1e-5)
    document = json.loads((tmp_path / "moved" / "run.json").read_text())
    assert "model" not in document["config"] and document["unit"] == "images"
    with pytest.raises(BadInput, match=r"task\.width"):
        train_run(config("module", width=16), 2, tmp_path / "moved", resume="auto")
    with pytest.raises(BadInput, match="task"):
        train_run(config("list_of_dicts"), 2, tmp_path / "moved", resume="auto")


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no module": ("tests.nowhere:task", {}, "no module tests.nowhere"),
    "no function": ("tests.task_cases:modul", {}, "did you mean module"),
    "not a reference": ("tests.task_cases", {}, "package.module:function"),
    "an unknown argument": ("tests.task_cases:module", {"widht": 3}, r"task\.widht.*did you mean width"),
    "its own failure": ("tests.task_cases:broken", {}, "RuntimeError: no such file"),
    "something else": ("tests.task_cases:no_task", {}, "returns int"),
    "a random stream": ("tests.task_cases:dropout", {}, "dropout.rngs"),
    "bfloat16 parameters": ("tests.task_cases:half_precision", {}, "bfloat16; parameters are float32"),
    "no such blocks": ("tests.task_cases:named_blocks", {"subtree": "decoder"}, "no subtree 'decoder'"),
    "blocks of unequal length": ("tests.task_cases:named_blocks", {"subtree": "encoder"}, "different lengths"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_trained_is_refused_in_a_line(case: str) -> None:
    function, arguments, message = WRONG[case]
    with pytest.raises(BadInput, match=message) as refused:
        parameters(build({"task": {"function": function, **arguments}}))
    assert "\n" not in str(refused.value)


def test_a_scan_over_undeclared_blocks_is_named() -> None:
    setting = config("named_blocks", "fsdp", subtree="")
    run = make_run(setting, open_data(setting), jax.devices()[:4])
    with pytest.raises(BadInput, match=r"Task\.blocks"):
        run.compile()


def test_what_only_the_built_in_transformer_has_is_refused() -> None:
    with pytest.raises(BadInput, match="fsdp_flat"):
        build({"task": "tests.task_cases:module", "strategy": {"name": "fsdp", "unit": "flat"}})
    with pytest.raises(BadInput, match="built-in transformer only"):
        advise(config("module"), load_hardware("h100x8"))
    with pytest.raises(Refused, match="batch_undivided"):
        require(preflight(config("module"), 3))


def test_arguments_add_to_a_plain_string(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('task = "tests.task_cases:module"\n[train]\nglobal_batch = 8\n')
    found = load([str(file)], ["task.width=16"])
    assert found.task is not None and found.task.arguments == {"width": 16}
    (tmp_path / "again.toml").write_text(to_toml(found))
    assert load([str(tmp_path / "again.toml")]) == found
    assert load([str(file)], ["task.width=16"], {"task": "tests.task_cases:module"}) == found
    other = load([str(tmp_path / "again.toml")], (), {"task": "tests.task_cases:list_of_dicts"})
    assert other.task is not None and other.task.arguments == {}
    assert units_per_batch(found) == 8 and user_task(build({})) is None


def test_arrays_are_shuffled_by_epochs_and_every_row_comes_once() -> None:
    source = from_arrays({"x": np.arange(20), "y": 2 * np.arange(20)}, heldout=0.25)(4, 7)
    stream = np.concatenate([source.rows(step, 0, 4)["x"] for step in range(8)])
    epochs = [stream[:15].tolist(), stream[15:30].tolist()]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1])
    heldout = list(source.eval_batches(4))
    kept = np.concatenate([batch["x"][batch["weight"] > 0] for batch in heldout])
    assert sorted({*epochs[0], *kept}) == list(range(20)) and all(len(batch["x"]) == 4 for batch in heldout)
    parts = [source.rows(6, start, 2) for start in (0, 2)]
    for name in ("x", "y", "weight"):
        np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), source.rows(6, 0, 4)[name])
    other = from_arrays({"x": np.arange(20)}, heldout=0.25)(4, 8)
    assert not np.array_equal(other.rows(0, 0, 4)["x"], source.rows(0, 0, 4)["x"])
    with pytest.raises(BadInput, match="one length"):
        from_arrays({"x": np.arange(3), "y": np.arange(4)})
    with pytest.raises(BadInput, match="held out"):
        from_arrays({"x": np.arange(3)}, heldout=0.1)
