"""A tiny Llama with a tokenizer in a local folder, as a model hub has them: made by libraries, without a network."""

from __future__ import annotations

import json
import struct
from pathlib import Path

VOCABULARY, HIDDEN, LAYERS, HEADS, KEYS, WIDTH = 1000, 256, 2, 4, 2, 688
WORDS = ["<unk>", "<s>", "</s>", "<pad>", *"abcdefgh"]


def llama_shapes() -> dict[str, list[int]]:
    """Names and shapes of a Llama's weights, by the architecture: nothing here asks the code under test."""
    head = HIDDEN // HEADS
    shapes = {
        "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
        "model.norm.weight": [HIDDEN],
        "lm_head.weight": [VOCABULARY, HIDDEN],
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}self_attn.q_proj.weight": [HEADS * head, HIDDEN],
            f"{at}self_attn.k_proj.weight": [KEYS * head, HIDDEN],
            f"{at}self_attn.v_proj.weight": [KEYS * head, HIDDEN],
            f"{at}self_attn.o_proj.weight": [HIDDEN, HEADS * head],
            f"{at}mlp.gate_proj.weight": [WIDTH, HIDDEN],
            f"{at}mlp.up_proj.weight": [WIDTH, HIDDEN],
            f"{at}mlp.down_proj.weight": [HIDDEN, WIDTH],
            f"{at}input_layernorm.weight": [HIDDEN],
            f"{at}post_attention_layernorm.weight": [HIDDEN],
        }
    return shapes


def make_folder(folder: Path) -> Path:
    """config.json, a safetensors file with a header and no data behind it, a tokenizer of whole words."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEYS, "intermediate_size": WIDTH,
        "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 3,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in llama_shapes().items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}  # type: ignore[dict-item]
        at += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    _tokenizer(folder)
    return folder


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "pad_token": "<pad>",
                "unk_token": "<unk>",
                "model_max_length": 512,
            }
        )
    )
