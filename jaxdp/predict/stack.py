"""A config on calibrated hosts as a run of a stack, jaxdp's own or another's: what it computes, sends and holds."""

from jaxdp.config import Config, ModelConfig
from jaxdp.models.attention_form import form
from jaxdp.predict.calibrated.memory import held
from jaxdp.predict.calibrated.rates import OWN_STACK
from jaxdp.predict.calibrated.runs import Run, Shape
from jaxdp.predict.calibrated.step import StepParts, Work, with_communication, work
from jaxdp.predict.compute import COMPUTE_BYTES, compute_dtype
from jaxdp.predict.hardware import Hardware, HostGroup
from jaxdp.predict.memory import Memory
from jaxdp.strategies.rules import DATA_AXIS

STACK_STRATEGIES = ("ddp", "zero1", "fsdp", "hsdp")  # that other stacks have, and the calibrated step knows
ATTENTION = {"torch-fsdp": "flash2", "nanotron": "flash2", "megatron": "fused", "maxtext": "fused"}
OWN_ATTENTION = {"cudnn": "fused", "blocked": "blocked", "whole": "scores"}


def shape_of(model: ModelConfig) -> Shape:
    return Shape(
        layers=model.layers,
        width=model.width,
        heads=model.heads,
        kv_heads=model.key_value_heads,
        head_dim=model.head_dim,
        ffn=model.ffn,
        vocab=model.vocab,
        gated=model.activation == "swiglu",
        tied=model.tied,
    )


def run_of(config: Config, group: HostGroup, hardware: Hardware, tokens_per_device: float) -> Run:
    """The run whose device takes `tokens_per_device` of the global batch, under a strategy that the stack has."""
    dtype, own = compute_dtype(config, group), hardware.stack == OWN_STACK
    train, model, strategy = config.train, config.model, config.strategy.name
    attention = OWN_ATTENTION[form(group.platform, COMPUTE_BYTES[dtype], model.head_dim).kind]
    return Run(
        shape=shape_of(model),
        context=model.context,
        microbatch=tokens_per_device / train.accumulation / model.context,
        accumulation=train.accumulation,
        devices=hardware.devices,
        device=group.device,
        strategy=strategy,
        stack=hardware.stack,
        remat=train.remat,
        precision=dtype,
        attention=attention if own else ATTENTION[hardware.stack],
        autocast=own and dtype != "float32",
        shard_devices=_shard_devices(config, hardware) if strategy == "hsdp" else None,
    )


def _shard_devices(config: Config, hardware: Hardware) -> int:
    return config.strategy.axis_sizes(hardware.devices, hardware.hosts)[DATA_AXIS]


def device_work(run: Run, group: HostGroup, hardware: Hardware) -> Work:
    return work(run, group.sheet, group.rates, hardware.profile)


def stack_step(
    config: Config, hardware: Hardware, tokens_per_device: float, slower: float, divisor: float
) -> StepParts:
    """Another stack's step: computing `slower` times as long on the slowest device, links slower by `divisor`."""
    network, group = hardware.network, hardware.groups[0]
    assert network is not None
    run = run_of(config, group, hardware, tokens_per_device)
    done = device_work(run, group, hardware)
    return with_communication(run, done, hardware.profile, network.slower(divisor), slower)


def stack_memory(config: Config, hardware: Hardware, tokens_per_device: float) -> Memory:
    """What another stack holds."""
    run = run_of(config, hardware.groups[0], hardware, tokens_per_device)
    bytes_of = held(run, hardware.profile)
    return Memory(
        parameters=round(bytes_of.parameters),
        optimizer=round(bytes_of.optimizer),
        gradients=round(bytes_of.gradients),
        batch=0,
        temporaries=round(bytes_of.gradients + bytes_of.gathered + bytes_of.activations + bytes_of.logits),
    )
