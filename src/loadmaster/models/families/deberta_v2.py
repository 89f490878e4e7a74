"""DeBERTa v2 and v3: BERT's layer with positions relative to each other, shared over all layers."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import Shape, layer_norm, shape
from loadmaster.models.config import Config
from loadmaster.models.families.bert import block, dropped_block
from loadmaster.models.spec import Attention, Embedding, Linear, ModelSpec, Norm, Parameter, Tower
from loadmaster.records import replace


def read(config: Config) -> ModelSpec:
    """The network without a task's head (transformers: models/deberta_v2/modeling_deberta_v2.py)."""
    of = shape(config, activation=config.text("hidden_act", default="gelu"))
    layer = block(of, ("query_proj", "key_proj", "value_proj"))
    if isinstance(layer.mixer, Attention):
        more = _position_projections(config, of)
        mixer = replace(
            layer.mixer,
            position="relative",
            projections=(*layer.mixer.projections, *more),
            relative=_terms(config),
            span=_span(config),
            sdpa=False,
        )
        layer = replace(layer, mixer=mixer)
    layer = dropped_block(config, layer)
    norms: tuple[tuple[str, Norm], ...] = (("embedding", layer_norm("embeddings.LayerNorm", of.hidden)),)
    if config.flag("relative_attention", default=False) and "layer_norm" in config.text(
        "norm_rel_ebd", default="none"
    ):
        norms = (*norms, ("relative", layer_norm("encoder.LayerNorm", of.hidden)))
    width = config.count("embedding_size", default=of.hidden)
    tables = _tables(config, of, width)
    extra: tuple[Parameter, ...] = ()
    kernel = config.count("conv_kernel_size", default=0, least=0)
    if kernel:
        shape_ = (of.hidden, of.hidden // config.count("conv_groups", default=1), kernel)
        extra = (
            Parameter(name="encoder.conv.conv.weight", shape=shape_),
            Parameter(name="encoder.conv.conv.bias", shape=(of.hidden,)),
        )
        norms = (*norms, ("conv", layer_norm("encoder.conv.LayerNorm", of.hidden)))
    config.ignore(
        "pooler_hidden_size", "pos_att_type", "max_relative_positions", "legacy", "tie_word_embeddings"
    )
    config.report_unknown()
    project = Linear(name="embeddings.embed_proj", inputs=width, outputs=of.hidden)
    tower = Tower(
        name="encoder",
        hidden=of.hidden,
        prefix="encoder.layer",
        blocks=(layer,),
        layout=(0,) * of.layers,
        embeddings=tables,
        norms=norms,
        linears=(project,) if width != of.hidden else (),
        extra=extra,
    )
    return assemble(config, [tower], None)


def _tables(config: Config, of: Shape, width: int) -> tuple[Embedding, ...]:
    positions = config.count("max_position_embeddings")
    tables = [
        Embedding(
            name="embeddings.word_embeddings", role="token", rows=config.count("vocab_size"), width=width
        )
    ]
    if config.flag("position_biased_input", default=True):
        tables.append(
            Embedding(name="embeddings.position_embeddings", role="position", rows=positions, width=width)
        )
    types = config.count("type_vocab_size", default=0, least=0)
    if types:
        tables.append(
            Embedding(name="embeddings.token_type_embeddings", role="type", rows=types, width=width)
        )
    if config.flag("relative_attention", default=False):
        rows = 2 * _span(config)
        tables.append(Embedding(name="encoder.rel_embeddings", role="position", rows=rows, width=of.hidden))
    return tuple(tables)


def _span(config: Config) -> int:
    """Distances each way: buckets where these are given (DebertaV2Encoder)."""
    far = config.count("max_relative_positions", default=-1, least=-1)
    buckets = config.count("position_buckets", default=-1, least=-1)
    return buckets if buckets > 0 else far if far > 0 else config.count("max_position_embeddings")


def _terms(config: Config) -> tuple[str, ...]:
    """Content to position and position to content, in the order they run (disentangled_attention_bias)."""
    if not config.flag("relative_attention", default=False):
        return ()
    kinds = config.texts("pos_att_type") or ()
    return tuple(term for term in ("c2p", "p2c") if term in kinds)


def _position_projections(config: Config, of: Shape) -> tuple[Linear, ...]:
    shared = config.flag("share_att_key", default=False)
    if shared or not config.flag("relative_attention", default=False):
        return ()
    kinds = config.texts("pos_att_type") or ()
    names = [("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")]
    return tuple(
        Linear(name=f"attention.self.{name}", inputs=of.hidden, outputs=of.hidden, bias=True)
        for kind, name in names
        if kind in kinds
    )
