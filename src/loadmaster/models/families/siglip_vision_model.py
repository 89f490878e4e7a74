"""SigLIP's vision tower, as Gemma 3 nests it."""

from __future__ import annotations

from loadmaster.models.assembly import assemble
from loadmaster.models.builders import join, layer_norm
from loadmaster.models.config import Config
from loadmaster.models.spec import Linear, ModelSpec, Parameter, Tower
from loadmaster.models.vision import clip_tower
from loadmaster.records import replace

DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 16,
}  # fmt: skip
"""What SiglipVisionConfig of transformers 5 fills in."""


def vision(config: Config, root: str) -> Tower:
    """The tower (transformers: models/siglip/modeling_siglip.py), with its pooling head unless the config drops it."""
    pools = config.flag("vision_use_head", default=True)
    config.ignore("projection_dim")
    tower = clip_tower(
        config, root, class_token=False, first_norm=False, patch_bias=True, activation="gelu_pytorch_tanh"
    )
    return _with_head(tower, config, join(root, "head")) if pools else tower


def _with_head(tower: Tower, config: Config, place: str) -> Tower:
    # One learned query attends to all patches (SiglipMultiheadAttentionPoolingHead); torch's own attention class.
    wide, width = tower.hidden, config.count("intermediate_size")
    norm = layer_norm(f"{place}.layernorm", wide)
    return replace(
        tower,
        norms=(*tower.norms, ("pool", norm)),
        linears=(
            Linear(name=f"{place}.mlp.fc1", inputs=wide, outputs=width, bias=True),
            Linear(name=f"{place}.mlp.fc2", inputs=width, outputs=wide, bias=True),
        ),
        extra=(
            *tower.extra,
            Parameter(name=f"{place}.probe", shape=(1, 1, wide)),
            Parameter(name=f"{place}.attention.in_proj_weight", shape=(3 * wide, wide)),
            Parameter(name=f"{place}.attention.in_proj_bias", shape=(3 * wide,)),
            Parameter(name=f"{place}.attention.out_proj.weight", shape=(wide, wide)),
            Parameter(name=f"{place}.attention.out_proj.bias", shape=(wide,)),
        ),
    )


def read(config: Config) -> ModelSpec:
    """The tower alone."""
    return assemble(config, [vision(config, "")], None)
