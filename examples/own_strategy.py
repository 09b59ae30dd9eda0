"""A strategy of your own: blocks are sharded as under FSDP, while embedding, head and last norm stay whole.

Import this module as a plugin and the strategy works in every command, with nothing else to write:

    jaxdp bench --set 'plugins=["examples.own_strategy"]' --strategy fsdp,fsdp_blocks --devices 4
    JAXDP_PLUGINS=examples.own_strategy jaxdp sim --strategy ddp,fsdp_blocks --workers 8 --compute-s 1

Run as a script it compares the prediction with DDP's and FSDP's.
"""

from collections.abc import Mapping

from jaxdp.parameter import GRADIENT_BYTES, Parameter
from jaxdp.strategies.rows import Strategy, register
from jaxdp.strategies.rules import DATA_AXIS, Cut, RuleOptions, ShardRule, cut_by
from jaxdp.strategies.volume import Step


def only_blocks(cut: Cut, options: RuleOptions) -> ShardRule:
    in_blocks = cut_by(cut, options)

    def rule(parameter: Parameter, axis_sizes: Mapping[str, int]) -> Cut:
        return in_blocks(parameter, axis_sizes) if parameter.in_blocks else Cut()

    return rule


def least_bytes(step: Step) -> float:
    """Blocks: two gathers and a reduce-scatter a microbatch. The rest: one all-reduce a step."""
    gathers = 2 * step.block_parameters * step.compute_dtype_bytes
    scatters = step.block_parameters * GRADIENT_BYTES
    outside = 2 * step.root_parameters * GRADIENT_BYTES
    return step.share(DATA_AXIS) * (step.accumulation * (gathers + scatters) + outside)


FSDP_BLOCKS = register(
    Strategy(
        name="fsdp_blocks",
        summary="blocks sharded, what lies outside them whole",
        cut=Cut(params=DATA_AXIS, optimizer=DATA_AXIS),
        rule=only_blocks,
        least_bytes=least_bytes,
        options=("min_shard_bytes",),
        in_worker=True,
        simulated=True,
    )
)


def main() -> None:
    from jaxdp.config import load
    from jaxdp.predict.evaluate import evaluate
    from jaxdp.predict.hardware import load_hardware
    from jaxdp.units import bytes_text, seconds_text

    hardware = load_hardware("h100x8", 1)
    for name in ("ddp", "fsdp", FSDP_BLOCKS.name):
        row = evaluate(load(["1b"]), hardware, name)
        print(f"{name}: {bytes_text(row.memory.total)} per device, {seconds_text(row.cost.total_s)} per step")


if __name__ == "__main__":
    main()
