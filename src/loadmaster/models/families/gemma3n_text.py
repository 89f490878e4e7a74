"""Gemma 3n's decoder: four residual streams (AltUp), low-rank shortcuts (Laurel), a token table for every layer,
and last layers that read the keys and values of earlier ones."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import Shape, attention, decoder, gated_mlp, head_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import (
    Attention,
    Block,
    Embedding,
    Head,
    Linear,
    ModelSpec,
    Norm,
    Parameter,
    Tower,
)
from loadmaster.models.windows import FULL, SLIDING, layer_types, window
from loadmaster.records import replace

DEFAULTS = {
    "vocab_size": 262400, "vocab_size_per_layer_input": 262144, "hidden_size": 2048, "intermediate_size": 16384,
    "hidden_size_per_layer_input": 256, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 256, "sliding_window": 512, "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64,
}  # fmt: skip
"""What Gemma3nTextConfig of transformers 5 fills in."""


def _widths(config: Config, layers: int) -> tuple[int, ...]:
    if isinstance(config.fields.get("intermediate_size"), list):
        return config.counts("intermediate_size", least=1, length=layers)
    return (config.count("intermediate_size"),) * layers


def _attention(of: Shape, size: int | None, *, bias: bool, shares: bool) -> Attention:
    mixer = attention(of, qkv_bias=bias, out_bias=bias, window=size, **head_norms(of))
    if not shares:
        # Values are normalised too, without a weight.
        value = Norm(kind="rms", size=of.head_dim, weight=False, name="self_attn.v_norm")
        return replace(mixer, inner_norms=(("value", value),))
    return replace(mixer, projections=mixer.projections[:1], key_norm=None, shares_kv=True)


def _norms(hidden: int) -> tuple[tuple[str, Norm], ...]:
    names = {
        "pre_mixer": "input_layernorm",
        "post_mixer": "post_attention_layernorm",
        "pre_feedforward": "pre_feedforward_layernorm",
        "post_feedforward": "post_feedforward_layernorm",
        "altup": "altup.router_norm",
        "laurel": "laurel.post_laurel_norm",
        "per_layer": "post_per_layer_input_norm",
    }
    return tuple((place, rms(name, hidden)) for place, name in names.items())


def _side_paths(config: Config, hidden: int) -> tuple[Linear, ...]:
    streams, rank = config.count("altup_num_inputs"), config.count("laurel_rank")
    each = config.count("hidden_size_per_layer_input")
    return (
        Linear(name="altup.correction_coefs", inputs=streams, outputs=streams),
        Linear(name="altup.prediction_coefs", inputs=streams, outputs=streams**2),
        Linear(name="altup.modality_router", inputs=hidden, outputs=streams),
        Linear(name="laurel.linear_left", inputs=hidden, outputs=rank),
        Linear(name="laurel.linear_right", inputs=rank, outputs=hidden),
        Linear(name="per_layer_input_gate", inputs=hidden, outputs=each),
        Linear(name="per_layer_projection", inputs=each, outputs=hidden),
    )


def _outside(config: Config, of: Shape, root: str) -> tuple[Embedding, tuple[Linear, ...]]:
    each = config.count("hidden_size_per_layer_input")
    rows = config.count("vocab_size_per_layer_input", default=262144)
    table = Embedding(name=f"{root}.embed_tokens_per_layer", role="other", rows=rows, width=of.layers * each)
    linears = [Linear(name=f"{root}.per_layer_model_projection", inputs=of.hidden, outputs=of.layers * each)]
    for kind in ("altup_projections", "altup_unembed_projections"):
        for index in range(config.count("altup_num_inputs", most=64) - 1):
            linears.append(Linear(name=f"{root}.{kind}.{index}", inputs=of.hidden, outputs=of.hidden))
    return table, tuple(linears)


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/gemma3n/modeling_gemma3n.py)."""
    activation = config.text("hidden_activation", "hidden_act", default="gelu_pytorch_tanh")
    of = shape(config, width=1, activation=activation)
    widths = _widths(config, of.layers)
    bias = config.flag("attention_bias", default=False)
    size = window(config, 512)
    seen = layer_types(config, of.layers, lambda index: SLIDING if (index + 1) % 5 else FULL)
    own = of.layers - config.count("num_kv_shared_layers", default=0, least=0, most=of.layers)
    extra = (Parameter(name="altup.correct_output_scale", shape=(of.hidden,)),)
    side, norms = _side_paths(config, of.hidden), _norms(of.hidden)
    kinds: dict[str, Block] = {}
    order = []
    for index in range(of.layers):
        shares = index >= own
        name = f"{seen[index]}{'_shared_kv' if shares else ''}_{widths[index]}"
        order.append(name)
        if name not in kinds:
            kinds[name] = Block(
                name=name,
                mixer=_attention(of, size if seen[index] == SLIDING else None, bias=bias, shares=shares),
                feedforward=gated_mlp(of.hidden, widths[index], activation),
                norms=norms,
                linears=side,
                extra=extra,
            )
    table, linears = _outside(config, of, root)
    softcap = config.has("final_logit_softcapping") or "final_logit_softcapping" not in config.fields
    each = config.count("hidden_size_per_layer_input")
    return decoder(
        config,
        of,
        kinds,
        order,
        root=root,
        head=head,
        tied_default=True,
        softcap=softcap,
        embeddings=(table,),
        linears=linears,
        outer_norms=(("per_layer", rms(f"{root}.per_layer_projection_norm", each)),),
    )


def read(config: Config) -> ModelSpec:
    """The decoder alone."""
    return one_text(config, text(config))
