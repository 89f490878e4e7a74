"""StableLM 2 and StableLM 3B: Llama's layer with LayerNorm, a quarter of each head rotated."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import attention, decoder, gated_mlp, layer_norm, shape
from loadmaster.models.config import Config
from loadmaster.models.rotary import rotary_dim
from loadmaster.models.spec import Block, Head, ModelSpec, Norm, Tower


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/stablelm/modeling_stablelm.py)."""
    of = shape(config)
    parallel = config.flag("use_parallel_residual", default=False)
    norms: tuple[tuple[str, Norm], ...] = (("pre_mixer", layer_norm("input_layernorm", of.hidden)),)
    if not parallel:
        norms = (*norms, ("pre_feedforward", layer_norm("post_attention_layernorm", of.hidden)))
    inner: tuple[tuple[str, Norm], ...] = ()
    if config.flag("qk_layernorm", default=False):
        # One LayerNorm without bias for each head, not one shared by all.
        names = [("q", of.heads), ("k", of.kv_heads)]
        inner = tuple(
            (
                f"{side}_{head}",
                layer_norm(f"self_attn.{side}_layernorm.norms.{head}", of.head_dim, bias=False),
            )
            for side, count in names
            for head in range(count)
        )
    block = Block(
        mixer=attention(
            of,
            qkv_bias=config.flag("use_qkv_bias", default=False),
            rotary_dim=rotary_dim(config, of.head_dim, 0.25),
            inner_norms=inner,
        ),
        feedforward=gated_mlp(of.hidden, of.width, of.activation),
        norms=norms,
        parallel=parallel,
    )
    return decoder(config, of, block, root=root, head=head, final=layer_norm(f"{root}.norm", of.hidden))


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config))
