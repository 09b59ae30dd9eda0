"""The built-in task: the decoder-only transformer on text."""

from functools import partial

from jaxdp.config import Config
from jaxdp.data.pipeline import open_data
from jaxdp.models import attention, shapes, transformer
from jaxdp.models.loss_form import loss_chunk
from jaxdp.task import Task


def language_task(config: Config, platform: str) -> Task:
    """The config's transformer on the config's corpus, with the form of attention that suits the platform."""
    model, train = config.model, config.train
    form = attention.choose(platform, train.dtype_on(platform), model.head_dim)
    chunk = partial(loss_chunk, platform, vocab=model.vocab)
    return Task(
        init_params=lambda key: transformer.init_params(model, key),
        loss_sum=transformer.make_loss_sum(model, form, train.remat, train.seed, chunk),
        open_data=lambda global_batch, seed: open_data(config),
        unit="tokens",
        units_per_example=model.context,
        blocks=("blocks",),
        settings={"remat": train.remat, "context": model.context},
        train_flops_per_unit=shapes.train_flops_per_token(model),
        flops_formula="(6 * matmul_parameters + 12 * layers * context * heads * head_dim; causal: half of the latter)",
        causal_train_flops_per_unit=shapes.train_flops_per_token(model, causal=True),
    )
