"""Tensor names, shapes and linear layers against transformers' own classes on the meta device."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from loadmaster.models import read_model
from loadmaster.models.parameters import tensors
from loadmaster.models.readers import catalogue, config_json

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

SAMPLE = (
    "meta-llama/Llama-3.2-1B", "mistralai/Mistral-7B-v0.1", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen1.5-MoE-A2.7B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen2.5-VL-3B-Instruct", "google/gemma-2b", "google/gemma-2-2b", "google/gemma-3-1b-it",
    "google/gemma-3-4b-it", "microsoft/phi-2", "microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3.5-MoE-instruct",
    "openai-community/gpt2", "facebook/opt-125m", "bigscience/bloom-560m", "EleutherAI/pythia-70m",
    "EleutherAI/gpt-j-6b", "tiiuae/falcon-7b", "tiiuae/falcon-40b", "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-ai/DeepSeek-V3", "HuggingFaceTB/SmolLM3-3B", "allenai/OLMo-2-0425-1B", "openai/gpt-oss-20b",
    "zai-org/glm-4-9b-chat-hf", "zai-org/GLM-4-9B-0414", "zai-org/GLM-4.5-Air", "google-bert/bert-base-uncased",
    "FacebookAI/roberta-base", "microsoft/deberta-v3-base", "google/vit-base-patch16-224",
    "openai/clip-vit-base-patch32", "google-t5/t5-small", "openai/whisper-tiny", "state-spaces/mamba-130m-hf",
    "state-spaces/mamba2-130m", "ai21labs/Jamba-v0.1", "llava-hf/llava-1.5-7b-hf", "meta-llama/Llama-3.2-11B-Vision",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct", "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
)  # fmt: skip
BASE = {
    "BertForMaskedLM": "BertModel",
    "RobertaForMaskedLM": "RobertaModel",
    "DebertaV2ForMaskedLM": "DebertaV2Model",
}
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
LINEAR = ("Linear", "Conv1D", "FalconLinear", "PhimoeTopKRouter", "Llama4Router")


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 99,
}
FALCON = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 30}
VIT = {key: value for key, value in SMALL.items() if key != "vocab_size"} | {
    "image_size": 28,
    "patch_size": 14,
}
DINO = {key: value for key, value in VIT.items() if key != "intermediate_size"}
VARIANTS = {
    "llama with biases": (
        "LlamaForCausalLM",
        SMALL | {"attention_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    "llama tied": ("LlamaForCausalLM", SMALL | {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "opt 350m": (
        "OPTForCausalLM",
        {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
        | {"do_layer_norm_before": False, "word_embed_proj_dim": 32, "max_position_embeddings": 40},
    ),
    "opt bare": (
        "OPTForCausalLM",
        {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
        | {"enable_bias": False, "layer_norm_elementwise_affine": False, "max_position_embeddings": 40},
    ),
    "falcon rw": (
        "FalconForCausalLM",
        FALCON | {"multi_query": False, "parallel_attn": False, "bias": True, "alibi": True},
    ),
    "falcon 11b": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "phi with head norms": ("PhiForCausalLM", SMALL | {"qk_layernorm": True}),
    "stablelm 12b": (
        "StableLmForCausalLM",
        SMALL
        | {
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "use_qkv_bias": True,
            "num_key_value_heads": 2,
        },
    ),
    "stablelm 3b": ("StableLmForCausalLM", SMALL | {"num_key_value_heads": 4}),
    "neox without biases": ("GPTNeoXForCausalLM", SMALL | {"attention_bias": False}),
    "mpt": (
        "MptForCausalLM",
        {"d_model": 64, "n_heads": 4, "n_layers": 2, "vocab_size": 99, "expansion_ratio": 3},
    ),
    "starcoder": ("GPTBigCodeForCausalLM", GPT),
    "starcoder with all keys": ("GPTBigCodeForCausalLM", GPT | {"multi_query": False}),
    "starcoder 2": ("Starcoder2ForCausalLM", SMALL | {"num_key_value_heads": 2}),
    "olmo": ("OlmoForCausalLM", SMALL),
    "olmo 3": ("Olmo3ForCausalLM", SMALL),
    "cohere with head norms": ("CohereForCausalLM", SMALL | {"use_qk_norm": True, "num_key_value_heads": 2}),
    "cohere 2": ("Cohere2ForCausalLM", SMALL | {"head_dim": 16}),
    "granite": ("GraniteForCausalLM", SMALL),
    "qwen2 moe with dense layers": (
        "Qwen2MoeForCausalLM",
        SMALL
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "num_experts": 4}
        | {
            "num_experts_per_tok": 2,
            "mlp_only_layers": [0],
            "decoder_sparse_step": 2,
            "num_key_value_heads": 4,
        },
    ),
    "deepseek v2 with biases": (
        "DeepseekV2ForCausalLM",
        SMALL
        | {
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 12,
        }
        | {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 2,
        }
        | {"attention_bias": True, "n_group": 1, "topk_group": 1},
    ),
    "glm 4.5 with head norms": (
        "Glm4MoeForCausalLM",
        SMALL
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "use_qk_norm": True}
        | {"head_dim": 16, "num_key_value_heads": 2, "attention_bias": True},
    ),
    "mamba with biases": (
        "MambaForCausalLM",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "vocab_size": 99,
            "use_bias": True,
            "use_conv_bias": False,
        }
        | {"time_step_rank": "auto", "expand": 3},
    ),
    "mamba 2 untied": (
        "Mamba2ForCausalLM",
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "vocab_size": 99,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
        }
        | {"tie_word_embeddings": False},
    ),
    "jamba of one expert": (
        "JambaForCausalLM",
        SMALL | {"num_experts": 1, "mamba_proj_bias": True, "mamba_dt_rank": "auto"},
    ),
    "distilbert": (
        "DistilBertModel",
        {
            "dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "hidden_dim": 96,
            "vocab_size": 99,
            "max_position_embeddings": 40,
        },
    ),
    "deberta xlarge": (
        "DebertaV2Model",
        SMALL
        | {
            "relative_attention": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": False,
        }
        | {"pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3, "type_vocab_size": 2}
        | {"max_position_embeddings": 40},
    ),
    "dinov2": ("Dinov2ForImageClassification", DINO | {"use_swiglu_ffn": True, "num_labels": 5}),
    "vit without query biases": ("ViTForImageClassification", VIT | {"qkv_bias": False, "num_labels": 7}),
    "mt5": (
        "MT5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 99},
    ),
    "t5 with another depth": (
        "T5ForConditionalGeneration",
        {
            "d_model": 64,
            "d_kv": 12,
            "d_ff": 96,
            "num_layers": 1,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "vocab_size": 99,
        },
    ),
    "gemma 2 with biases": ("Gemma2ForCausalLM", SMALL | {"attention_bias": True, "head_dim": 24}),
    "smollm3": ("SmolLM3ForCausalLM", SMALL | {"num_key_value_heads": 2, "pad_token_id": 0}),
    "olmoe": (
        "OlmoeForCausalLM",
        SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    ),
    "seed-oss": ("SeedOssForCausalLM", SMALL | {"num_key_value_heads": 2, "attention_out_bias": True}),
    "ministral": ("MinistralForCausalLM", SMALL | {"num_key_value_heads": 2, "head_dim": 16}),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        {"hidden_size": 64, "num_layers": 3, "num_heads": 4, "vocab_size": 99}
        | {"attention_types": [[["global", "local"], 1], [["local"], 1]]},
    ),
    "bart": (
        "BartForConditionalGeneration",
        {
            "d_model": 64,
            "vocab_size": 99,
            "max_position_embeddings": 30,
            "encoder_layers": 2,
            "decoder_layers": 1,
        }
        | {
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 64,
        },
    ),
    "siglip with its head": ("SiglipVisionModel", VIT),
    "siglip without": ("SiglipVisionModel", VIT | {"vision_use_head": False}),
    "clip text": ("CLIPTextModel", SMALL | {"max_position_embeddings": 20}),
    "pixtral": ("PixtralVisionModel", VIT | {"head_dim": 16}),
    "clip vision": ("CLIPVisionModel", VIT),
    "gpt-oss": (
        "GptOssForCausalLM",
        SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "num_key_value_heads": 2},
    ),
}


def built(name):
    """The catalogue model built by its own class."""
    path = catalogue.FOLDER / f"{name.replace('/', '__', 1)}.json"
    fields = config_json.parse(path.read_text(encoding="utf-8"), name)
    architecture = fields["architectures"][0].replace("PhiMoE", "Phimoe")
    return parameters_of(BASE.get(architecture, architecture), fields)


def parameters_of(architecture, fields):
    """Names, shapes and counts of the class's parameters, and the names of its linear layers' weights."""
    kind = getattr(transformers, architecture)
    plain = {
        key: value
        for key, value in fields.items()
        if not key.startswith("_") and key != "quantization_config"
    }
    with torch.device("meta"):
        model = kind(kind.config_class(**plain))
    modules = dict(model.named_modules())
    found, linear = Counter(), set()
    for full, parameter in model.named_parameters():
        pattern = NUMBER.sub("{}", full)
        found[pattern, tuple(parameter.shape)] += 1
        if full.endswith(".weight") and type(modules[full.rpartition(".")[0]]).__name__ in LINEAR:
            linear.add(pattern)
    return found, linear


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLE)
def test_names_and_shapes_are_the_librarys(name):
    same(read_model(name), *built(name))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VARIANTS)
def test_switches_that_no_catalogue_model_sets(name):
    architecture, fields = VARIANTS[name]
    kind = getattr(transformers, architecture).config_class.model_type
    spec = config_json.from_fields({"model_type": kind} | fields, "test")
    assert spec.warnings == ()
    same(spec, *parameters_of(architecture, fields))


def same(spec, found, linear):
    """The spec's tensors are those that were found."""
    ours: Counter[tuple[str, tuple[int, ...]]] = Counter()
    mine = set()
    for tensor in tensors(spec):
        ours[NUMBER.sub("{}", tensor.name), tensor.shape] += tensor.count
        if tensor.linear:
            mine.add(NUMBER.sub("{}", tensor.name))
    assert ours == found
    assert mine == linear
