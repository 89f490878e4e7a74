"""ViT: patches, a class token, learned positions, a classifier on the class token."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import attention, layer_norm, plain_mlp
from loadmaster.models.config import Config
from loadmaster.models.spec import Block, Head, ModelSpec, Parameter, Tower
from loadmaster.models.vision import patch_weight, patches, pixels, vision_shape


def labels(config: Config) -> int | None:
    """Classes of the classifier: ``num_labels`` or the length of ``id2label``; None where there is no classifier."""
    names = config.value("id2label", default=None)
    if not config.has("num_labels") and isinstance(names, dict) and names:
        return len(names)
    return config.maybe("num_labels")


def classifier(config: Config, inputs: int) -> Head | None:
    """A linear layer over ``inputs`` values of a picture, where the config names classes."""
    count = labels(config)
    if not count:
        return None
    return Head(name="classifier", vocab=count, inputs=inputs, tied=False, bias=True, per_token=False)


def read(config: Config) -> ModelSpec:
    """The network and its classifier (transformers: models/vit/modeling_vit.py)."""
    of = vision_shape(config, "gelu")
    tokens = patches(config) + 1
    root = "vit"
    bias = config.flag("qkv_bias", default=True)
    config.ignore("pooler_output_size", "attention_bias", "mlp_bias")
    block = Block(
        mixer=attention(
            of, prefix="attention", qkv_bias=bias, out_bias=True, position="learned", causal=False
        ),
        feedforward=plain_mlp(of.hidden, of.width, of.activation),
        norms=(
            ("pre_mixer", layer_norm("layernorm_before", of.hidden)),
            ("pre_feedforward", layer_norm("layernorm_after", of.hidden)),
        ),
    )
    extra = (
        Parameter(name=f"{root}.embeddings.cls_token", shape=(1, 1, of.hidden)),
        Parameter(
            name=f"{root}.embeddings.position_embeddings", shape=(1, tokens, of.hidden), role="position"
        ),
        *patch_weight(config, f"{root}.embeddings.patch_embeddings.projection", of.hidden, bias=True),
    )
    head = classifier(config, of.hidden)
    config.report_unknown()
    tower = Tower(
        name="vision",
        hidden=of.hidden,
        prefix=f"{root}.layers",
        blocks=(block,),
        layout=(0,) * of.layers,
        norms=(("final", layer_norm(f"{root}.layernorm", of.hidden)),),
        extra=extra,
        tokens=tokens,
        input_values=pixels(config),
        modality="vision",
    )
    return assemble(config, [tower], head)
