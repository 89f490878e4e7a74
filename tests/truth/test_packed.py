"""What sources' words for packed weights mean: rules for words, none for a source."""

from __future__ import annotations

import pytest

from loadmaster.jobs.quantizations import named, spelled
from loadmaster.records import replace
from loadmaster.workflows.truth import packed, words


def quantization(text: str, framework: str = "transformers", notes: str | None = None) -> str | None:
    found = packed.quantization(words.stored_format(text), framework, "float16", notes)
    return None if found is None else spelled(found)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("bnb nf4 double quant, rest bf16", "nf4"),
        ("bnb nf4 (block linears), rest bf16", "nf4-single"),
        ("bnb fp4", "fp4-single"),
        ("bnb int8", "int8"),
        ("gptq int4", "gptq"),
        ("gptq int4 group 32", "gptq-g32"),
        ("gptq int4 (exllama v2)", "gptq-exllamav2"),
        ("gptq int4 (exllama v1)", "gptq-exllama"),
        ("gptq int8", "gptq-8bit"),
        ("awq int4 g128, rest fp16", "awq"),
        ("fp8 block-wise (128x128)", "fp8"),
        ("float8 weight-only", "fp8-tensor"),
        ("int8 weight-only", "int8_weight_only"),
        ("int4 weight-only g64", "int4_weight_only-g64"),
        ("fp6", "fp6"),
        ("mxfp4 experts, rest bf16", "mxfp4"),
        ("hqq int4", "hqq"),
        ("nvfp4", None),
        ("gptq fp4", None),
        ("bfloat16", None),
    ],
)
def test_words_for_packed_weights(text: str, meant: str | None) -> None:
    assert quantization(text) == meant


def test_a_library_has_its_own_kernels() -> None:
    assert quantization("gptq int4", "transformers 4.38") == "gptq-exllama"
    assert quantization("gptq int8", "transformers 4.38") == "gptq-torch-8bit"
    assert quantization("awq int4", "autoawq 0.1.6") == "awq-gemm_split"
    assert quantization("awq int4", "autoawq 0.1.6", "the kernel type was GEMV") == "awq-gemv"


def test_what_stays_keeps_its_format() -> None:
    stated = packed.quantization(words.stored_format("bnb nf4, rest bf16"), "litgpt", "bfloat16", None)
    assert stated == replace(named("nf4"), double=False, upcast_rest=False)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("AutoAWQ 0.1.6 (4-bit, fused modules)", "autoawq 0.1.6"),
        ("vLLM 0.11.0 (V1 engine), max-model-len 16000", "vllm 0.11.0"),
        ("vLLM (Jul 2025)", "vllm"),
        ("ExLlama v1 (2023)", "exllama"),
        ("torchao _models/llama/generate.py", "torchao"),
        ("transformers 4.38.2, torch 2.1.2", "transformers 4.38"),
    ],
)
def test_libraries_are_named(text: str, meant: str) -> None:
    assert words.framework(text, []) == meant


def test_a_servers_share_of_the_card_is_read() -> None:
    assert words.lengths("with gpu_memory_utilization 0.90 of 79.18 GiB").share == 0.9
    assert words.lengths("a short prompt").share is None
