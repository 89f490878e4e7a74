"""Qwen 1.5 and 2 mixtures of experts: Qwen 2's attention, routed experts and one shared expert behind a gate."""

from __future__ import annotations

from loadmaster.models.assembly import one_text
from loadmaster.models.builders import Shape, attention, decoder, experts, gated_mlp, pre_norms, shape
from loadmaster.models.config import Config
from loadmaster.models.spec import Attention, Block, Experts, Head, Linear, Mlp, ModelSpec, Tower
from loadmaster.models.windows import FULL, SLIDING, switched


def sparse(config: Config, layers: int) -> list[bool]:
    """Which layers have experts: every ``decoder_sparse_step``-th, but for those in ``mlp_only_layers``."""
    step = config.count("decoder_sparse_step", default=1)
    dense = set(config.counts("mlp_only_layers", default=()))
    return [index not in dense and (index + 1) % step == 0 for index in range(layers)]


def blocks(
    attentions: dict[str, Attention], feedforwards: dict[bool, Mlp | Experts], hidden: int
) -> dict[str, Block]:
    """A block for each pair of attention kind and feed-forward kind, named after both."""
    return {
        f"{name}{'' if sparse else '_dense'}": Block(
            name=f"{name}{'' if sparse else '_dense'}",
            mixer=mixer,
            feedforward=feedforward,
            norms=pre_norms(hidden),
        )
        for name, mixer in attentions.items()
        for sparse, feedforward in feedforwards.items()
    }


def order(kinds: list[str], with_experts: list[bool]) -> list[str]:
    """The name of each layer's block."""
    return [f"{kind}{'' if sparse else '_dense'}" for kind, sparse in zip(kinds, with_experts, strict=True)]


def shared_experts(config: Config, of: Shape, *, gate: bool = True) -> Experts:
    """Routed experts and a shared one whose output a sigmoid gate scales."""
    width = config.count("shared_expert_intermediate_size", default=5632)
    return experts(
        of.hidden,
        config.count("moe_intermediate_size"),
        of.activation,
        count=config.count("num_experts", "num_local_experts"),
        per_token=config.count("num_experts_per_tok"),
        shared=gated_mlp(of.hidden, width, of.activation, prefix="mlp.shared_expert"),
        shared_gate=Linear(name="mlp.shared_expert_gate", inputs=of.hidden, outputs=1) if gate else None,
    )


def text(config: Config, root: str = "model", head: str = "lm_head") -> tuple[Tower, Head]:
    """The decoder and its head (transformers: models/qwen2_moe/modeling_qwen2_moe.py)."""
    of = shape(config)
    kinds, size = switched(config, of.layers)
    bias = config.flag("qkv_bias", default=True)
    config.ignore("attention_bias", "attention_out_bias")
    feedforwards: dict[bool, Mlp | Experts] = {
        True: shared_experts(config, of),
        False: gated_mlp(of.hidden, of.width, of.activation),
    }
    attentions = {
        FULL: attention(of, qkv_bias=bias),
        SLIDING: attention(of, qkv_bias=bias, window=size),
    }
    table = blocks(attentions, feedforwards, of.hidden)
    return decoder(config, of, table, order(kinds, sparse(config, of.layers)), root=root, head=head)


def read(config: Config) -> ModelSpec:
    """The whole model."""
    return one_text(config, text(config), positions=32768)
