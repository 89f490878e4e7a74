"""ChatGLM 2 and 3, GLM-4 in its first form: grouped keys, gate and up fused, half of each head rotated."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import decoder, fused_attention, fused_gated_mlp, layer_norm, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower


def text(
    config: Config, root: str = "transformer", head: str = "transformer.output_layer"
) -> tuple[Tower, Head]:
    """The decoder and its head (the repository's own modeling_chatglm.py)."""
    grouped = config.flag("multi_query_attention", default=False)
    groups = config.count("multi_query_group_num", default=1) if grouped else None
    of = shape(
        config,
        width=config.count("ffn_hidden_size", "intermediate_size"),
        vocab=config.count("padded_vocab_size", "vocab_size"),
        kv_heads=groups,
        activation="silu",
    )
    config.ignore(
        "multi_query_group_num", "vocab_size", "original_rope", "post_layer_norm", "num_key_value_heads"
    )
    bias = config.flag("add_bias_linear", default=False)
    qkv = config.flag("add_qkv_bias", default=False) or bias

    root_mean = config.flag("rmsnorm", default=True)

    def norm(name: str) -> Norm:
        return rms(name, of.hidden) if root_mean else layer_norm(name, of.hidden)

    block = Block(
        mixer=fused_attention(
            of,
            prefix="self_attention",
            name="query_key_value",
            output="dense",
            qkv_bias=qkv,
            out_bias=bias,
            rotary_dim=of.head_dim // 2,
        ),
        feedforward=fused_gated_mlp(
            of.hidden, of.width, of.activation, names=("dense_h_to_4h", "dense_4h_to_h"), bias=bias
        ),
        norms=(("pre_mixer", norm("input_layernorm")), ("pre_feedforward", norm("post_attention_layernorm"))),
    )
    return decoder(
        config,
        of,
        block,
        root=root,
        head=head,
        prefix="encoder.layers",
        embedding="embedding.word_embeddings",
        final=norm(f"{root}.encoder.final_layernorm"),
    )


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
