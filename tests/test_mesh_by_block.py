"""Gradients that are summed a block at a time: the same training, the plan's collectives, and inside the loop."""

import jax
import numpy as np
import pytest

from jaxdp.config import build, load
from jaxdp.errors import BadInput
from jaxdp.hlo.collectives import collectives
from jaxdp.mesh.compile import build_step, compile_step
from jaxdp.mesh.layout import logical
from jaxdp.predict.compiled import examine
from jaxdp.predict.cost import mesh_cost
from jaxdp.predict.hardware import load_hardware
from jaxdp.predict.preflight import preflight
from jaxdp.predict.sharding import shards
from jaxdp.predict.traffic import phases, planned_collectives
from jaxdp.run.mesh_run import MeshRun
from jaxdp.workload import open_data
from tests.mesh_cases import batch, config, largest_difference, reference, rows_for

STEPS = 4


def by_block(strategy: str, **keys):
    case = config(strategy, **keys)
    return case.model_copy(update={"strategy": case.strategy.model_copy(update={"reduce": "block"})})


@pytest.mark.parametrize(
    ("strategy", "devices", "optimizer", "accumulation"),
    [
        ("ddp", 8, "adamw", 1),
        ("ddp", 5, "sgd", 1),
        ("hsdp", 8, "adamw", 1),
        ("hsdp", 6, "sgd", 1),
        ("ddp", 4, "sgd", 2),
    ],
)
def test_trains_as_one_device_does(strategy: str, devices: int, optimizer: str, accumulation: int) -> None:
    rows = rows_for(devices)
    case = by_block(strategy, optimizer=optimizer, accumulation=accumulation, dropout=0.1, rows=rows)
    _, layout, functions = build_step(case, jax.devices()[:devices])
    state, found = functions.init(3), []
    for step in range(STEPS):
        state, metrics = functions.step(state, functions.put(batch(step, rows)))
        found.append((float(metrics.loss), float(metrics.grad_norm)))
    expected, params = reference(config(optimizer=optimizer, dropout=0.1, rows=rows), seed=3, steps=STEPS)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    stored = logical(jax.device_get(state.params), layout.params)
    assert largest_difference(stored, params) < (1e-5 if optimizer == "sgd" else 1e-3)


@pytest.mark.parametrize("strategy", ["ddp", "hsdp"])
def test_the_program_keeps_to_the_plan_and_sums_inside_the_loop(strategy: str) -> None:
    case = by_block(strategy)
    report = preflight(case, 8)
    program = examine(case, jax.devices()[:8], 1)
    assert report.ok and not program.findings
    text = compile_step(case, jax.devices()[:8]).as_text()
    sums = [one for one in collectives(text) if one.kind == "all-reduce" and one.count and one.bytes > 64]
    assert {one.count for one in sums} == {1, case.model.layers}
    moved = [
        sum(c.count * c.bytes for c in planned_collectives(one, shards(one, 8), "float32") if c.kind == "all-reduce")
        for one in (case, config(strategy))
    ]
    assert moved[0] == moved[1]  # not a byte more than at the end


def test_a_prediction_hides_what_the_backward_pass_outlasts() -> None:
    values = {"train": {"global_batch": 256}, "strategy": {"name": "ddp"}}
    end = build(values | {"model": {"layers": 24, "width": 2048, "heads": 16, "ffn": 8192, "context": 1024}})
    block = end.model_copy(update={"strategy": end.strategy.model_copy(update={"reduce": "block"})})
    hardware = load_hardware("h100x8", 2)
    costs = [mesh_cost(one, hardware) for one in (end, block)]
    assert costs[1].exposed_communication_s < 0.5 * costs[0].exposed_communication_s
    assert costs[1].moved_bytes == costs[0].moved_bytes
    assert phases(block, hardware, "bfloat16").end_s < phases(end, hardware, "bfloat16").end_s


def test_lateness_cannot_be_injected_before_sums_that_have_begun() -> None:
    case = load(["nano"], ["strategy.reduce=block", "stragglers=pace(seconds=1)"])
    with pytest.raises(BadInput, match=r"use strategy\.reduce=end"):
        MeshRun(case, open_data(case), jax.devices()[:2])
