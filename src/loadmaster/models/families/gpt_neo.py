"""GPT-Neo: GPT-2's layer with separate matrices; local layers see a window."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, layer_norm, plain_mlp, shape
from loadmaster.models.config import LAYER_LIMIT, Config
from loadmaster.models.spec import Block, Embedding, Head, ModelSpec, Tower

_KINDS = ("global", "local")


def _order(config: Config, layers: int) -> list[str]:
    """``attention_types``: pairs of a pattern and how often it is repeated."""
    found = config.value("attention_types", default=[[list(_KINDS), max(1, layers // 2)]])
    order: list[str] = []
    for entry in found if isinstance(found, list) else ():
        match entry:
            case [list(pattern), int(times)] if (
                0 < times <= LAYER_LIMIT and len(pattern) <= LAYER_LIMIT // times
            ):
                order += pattern * times
    config.ignore("attention_layers")
    if len(order) != layers or not all(name in _KINDS for name in order):
        raise config.fault("attention_types", f"patterns of global and local for {layers} layers")
    return order


def text(config: Config, root: str = "transformer", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gpt_neo/modeling_gpt_neo.py)."""
    hidden = config.count("hidden_size")
    width = config.maybe("intermediate_size") or 4 * hidden
    of = shape(config, width=width, activation=config.text("activation_function", default="gelu_new"))
    positions = config.count("max_position_embeddings", default=2048)
    window = config.count("window_size", default=256)
    config.ignore("resid_dropout", "embed_dropout")
    kinds = {
        name: Block(
            name=name,
            mixer=attention(
                of,
                prefix="attn.attention",
                output="out_proj",
                out_bias=True,
                position="learned",
                window=seen,
                wide_softmax=False,
            ),
            feedforward=plain_mlp(hidden, width, of.activation, names=("c_fc", "c_proj")),
            norms=(
                ("pre_mixer", layer_norm("ln_1", hidden)),
                ("pre_feedforward", layer_norm("ln_2", hidden)),
            ),
        )
        for name, seen in zip(_KINDS, (None, window), strict=True)
    }
    table = Embedding(name=f"{root}.wpe", role="position", rows=positions, width=hidden)
    return decoder(
        config,
        of,
        kinds,
        _order(config, of.layers),
        root=root,
        head=head,
        tied_default=True,
        prefix="h",
        embedding="wte",
        final=layer_norm(f"{root}.ln_f", hidden),
        embeddings=(table,),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
