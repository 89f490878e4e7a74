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
LINEAR = ("Linear", "Conv1D", "FalconLinear")


def built(name):
    """Names, shapes and counts of the class's parameters, and the names of its linear layers' weights."""
    path = catalogue.FOLDER / f"{name.replace('/', '__', 1)}.json"
    fields = config_json.parse(path.read_text(encoding="utf-8"), name)
    architecture = fields["architectures"][0].replace("PhiMoE", "Phimoe")
    kind = getattr(transformers, BASE.get(architecture, architecture))
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
    found, linear = built(name)
    ours: Counter[tuple[str, tuple[int, ...]]] = Counter()
    mine = set()
    for tensor in tensors(read_model(name)):
        ours[NUMBER.sub("{}", tensor.name), tensor.shape] += tensor.count
        if tensor.linear:
            mine.add(NUMBER.sub("{}", tensor.name))
    assert ours == found
    assert mine == linear
