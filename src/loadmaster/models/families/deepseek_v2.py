"""DeepSeek-V2: latent attention (MLA), routed and shared experts, the first layers dense."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import Shape, decoder, experts, gated_mlp, pre_norms, rms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Experts, Head, Latent, Linear, ModelSpec, Norm, Tower


def latent_attention(config: Config, of: Shape) -> Attention:
    """MLA (arXiv:2405.04434 §2.1): queries through a low rank or straight, keys and values through one latent."""
    query_rank = config.maybe("q_lora_rank")
    latent = Latent(
        query_rank=query_rank,
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
    )
    value_dim = config.count("v_head_dim")
    config.ignore("qk_head_dim", "head_dim")
    bias = config.flag("attention_bias", default=False)
    head_dim = latent.nope_dim + latent.rope_dim
    norms: tuple[tuple[str, Norm], ...] = (("kv_latent", rms("self_attn.kv_a_layernorm", latent.kv_rank)),)
    queries: tuple[Linear, ...] = (
        Linear(name="self_attn.q_proj", inputs=of.hidden, outputs=of.heads * head_dim),
    )
    if query_rank:
        norms = (("query_latent", rms("self_attn.q_a_layernorm", query_rank)), *norms)
        queries = (
            Linear(name="self_attn.q_a_proj", inputs=of.hidden, outputs=query_rank, bias=bias),
            Linear(name="self_attn.q_b_proj", inputs=query_rank, outputs=of.heads * head_dim),
        )
    keys = Linear(
        name="self_attn.kv_a_proj_with_mqa",
        inputs=of.hidden,
        outputs=latent.kv_rank + latent.rope_dim,
        bias=bias,
    )
    expand = Linear(
        name="self_attn.kv_b_proj", inputs=latent.kv_rank, outputs=of.heads * (latent.nope_dim + value_dim)
    )
    return Attention(
        heads=of.heads,
        kv_heads=of.heads,
        head_dim=head_dim,
        value_dim=value_dim,
        projections=(*queries, keys, expand),
        output=Linear(name="self_attn.o_proj", inputs=of.heads * value_dim, outputs=of.hidden, bias=bias),
        rotary_dim=latent.rope_dim,
        inner_norms=norms,
        latent=latent,
    )


def routed(config: Config, of: Shape, *, shared: int | None) -> Experts:
    """Routed experts, and shared ones merged into one feed-forward of their total width; ``shared`` is how many the
    config class has when the config is silent."""
    width = config.count("moe_intermediate_size")
    if "n_shared_experts" in config.fields:
        shared = config.maybe("n_shared_experts", least=0)
    return experts(
        of.hidden,
        width,
        of.activation,
        count=config.count("n_routed_experts"),
        per_token=config.count("num_experts_per_tok"),
        wide_weights=True,
        wide_router=True,
        shared=gated_mlp(of.hidden, width * shared, of.activation, prefix="mlp.shared_experts")
        if shared
        else None,
    )


def dense_first(config: Config, layers: int, default: int) -> list[str]:
    """``first_k_dense_replace`` dense layers (the config class's ``default`` when the config is silent), then every
    ``moe_layer_freq``-th has experts."""
    first = config.count("first_k_dense_replace", default=default, least=0)
    step = config.count("moe_layer_freq", default=1)
    return ["experts" if index >= first and index % step == 0 else "dense" for index in range(layers)]


def text(
    config: Config, root: str = "model", head: str = "lm_head", *, dense: int = 0, shared: int = 2
) -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/deepseek_v2/modeling_deepseek_v2.py)."""
    of = shape(config, head_dim=config.count("v_head_dim"))
    mixer = latent_attention(config, of)
    plain = gated_mlp(of.hidden, of.width, of.activation, bias=config.flag("mlp_bias", default=False))
    kinds = {
        "dense": Block(name="dense", mixer=mixer, feedforward=plain, norms=pre_norms(of.hidden)),
        "experts": Block(
            name="experts",
            mixer=mixer,
            feedforward=routed(config, of, shared=shared),
            norms=pre_norms(of.hidden),
        ),
    }
    return decoder(config, of, kinds, dense_first(config, of.layers, dense), root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model; a multi-token-prediction layer is not built, as in transformers."""
    return one_text(config, text(config))
