"""Formats of packed weights: bytes against arithmetic by hand, published files and the libraries' own tensors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.errors import BadValueError, UnknownNameError
from loadmaster.jobs import quantizations
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.make import make_job
from loadmaster.jobs.quantizations import Matrix, find, named, packed_bytes, scratch_bytes, spelled
from loadmaster.jobs.words import words
from loadmaster.memory import evaluate, predict
from loadmaster.memory.timeline import moments
from loadmaster.models import read_model
from loadmaster.units import GIB, MIB

NAMES = quantizations.names()


def matrix(outputs: int, inputs: int, **more: object) -> Matrix:
    return Matrix(name="mlp.up_proj", place="layer", outputs=outputs, inputs=inputs, **more)  # type: ignore[arg-type]


def loaded(model: str, quantization: str, **how: object) -> int:
    ledger = predict(read_model(model), make_job(task="infer", quantization=quantization, **how))
    return next(e.bytes.likely for e in ledger.at("load") if e.component == "weights")


def blocks(*sizes: int) -> int:
    """Sizes as the CUDA allocator hands them out."""
    return sum(-(-size // 512) * 512 for size in sizes)


HAND = {
    # 4096 × 4096 = 16,777,216 values
    "nf4": blocks(8_388_608, 262_144, 4096, 1024, 512, 512),
    "nf4-single": blocks(8_388_608, 1_048_576, 512),
    "int8": blocks(16_777_216, 16_384),
    "gptq": blocks(8_388_608, 32 * 512 * 4, 32 * 4096 * 2, 4096 * 4),
    "gptq-8bit": blocks(16_777_216, 32 * 1024 * 4, 32 * 4096 * 2, 4096 * 4),
    "gptq-3bit-g64": blocks(6_291_456, 64 * 384 * 4, 64 * 4096 * 2, 4096 * 4),
    "awq": blocks(8_388_608, 32 * 512 * 4, 32 * 4096 * 2),
    "fp8": blocks(16_777_216, 32 * 32 * 4),
    "fp8-row": blocks(16_777_216, 4096 * 4),
    "fp8-tensor": blocks(16_777_216, 4),
    "mxfp4": blocks(8_388_608, 524_288),
    "int8_weight_only": blocks(16_777_216, 4096 * 4, 4096),
    "int4_weight_only-g64": blocks(8_388_608, 64 * 4096 * 2 * 2),
    "fp6": blocks(12_582_912, 4096 * 2),
    "hqq": blocks(8_388_608, 262_144 * 2, 262_144 * 2),
    "Q8_0": 524_288 * 34,
    "Q4_0": 524_288 * 18,
    "Q6_K": 65_536 * 210,
}


@pytest.mark.parametrize("name", HAND)
def test_packed_bytes_by_hand(name: str) -> None:
    assert packed_bytes(matrix(4096, 4096), named(name)) == HAND[name]
    assert packed_bytes(matrix(4096, 4096, count=3), named(name)) == 3 * HAND[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_says_what_it_is(name: str) -> None:
    module = find(name)
    assert name == module.NAME
    assert module.BITS in module.CHOICES
    assert module.TEXT
    assert len(module.SOURCE) > 40
    assert set(module.PACKS) <= {"layer", "experts", "router", "tower", "head", "embedding"}
    assert set(module.UNPACKS) <= {"forward", "backward"}


sides = st.integers(1, 40).map(lambda n: 256 * n)


@given(st.sampled_from(NAMES), sides, sides)
def test_packed_is_never_larger_than_16_bits(name: str, outputs: int, inputs: int) -> None:
    # Block scales and tables add at most a few allocator blocks to a small matrix.
    assert 0 < packed_bytes(matrix(outputs, inputs), named(name)) <= 2 * outputs * inputs + 6 * 512


@given(st.sampled_from([n for n in NAMES if len(find(n).CHOICES) > 1]), sides, sides)
def test_more_bits_are_never_smaller(name: str, outputs: int, inputs: int) -> None:
    sizes = [packed_bytes(matrix(outputs, inputs), named(f"{name}-{bits}bit")) for bits in find(name).CHOICES]
    assert sizes == sorted(sizes)


@given(st.sampled_from([n for n in NAMES if find(n).GROUP is not None]), sides, sides)
def test_larger_groups_are_never_larger(name: str, outputs: int, inputs: int) -> None:
    sizes = [packed_bytes(matrix(outputs, inputs), named(f"{name}-g{group}")) for group in (32, 64, 128, 256)]
    assert sizes == sorted(sizes, reverse=True)


# Words


SPELLED = [
    *NAMES,
    "gptq-8bit",
    "gptq-3bit-g32",
    "gptq-exllamav2",
    "awq-gemv",
    "fp8-row",
    "nf4-single",
    "hqq-2bit-g16",
    "Q5_K_M",
]


@pytest.mark.parametrize("text", SPELLED)
def test_words_are_read_and_written(text: str) -> None:
    found = named(text)
    assert named(spelled(found)) == found
    assert found.dtype == find(found.dtype).NAME
    said = words(make_job(task="infer", quantization=text))
    assert said is not None
    assert make_job(**said).quantization == found


def test_types_of_llama_cpp_are_names_in_any_case() -> None:
    assert named("q4_k_m") == named("Q4_K_M")
    assert spelled(named("q4_k_m")) == "Q4_K_M"
    assert named("gguf").variant == "Q4_K_M"


@pytest.mark.parametrize(
    "text", ["gptq-5bit", "nf4-8bit", "awq-exllama", "fp8-g0", "Q4_K_M-Q8_0", "int8-", "gptq-g", "mxfp4-g32"]
)
def test_what_a_format_is_not_is_one_sentence(text: str) -> None:
    with pytest.raises(BadValueError, match=r"^[^\n]+$"):
        named(text)


@pytest.mark.parametrize("text", ["", "gptqq", "q4_k", "8bit"])
def test_an_unknown_format_is_named(text: str) -> None:
    with pytest.raises(UnknownNameError, match=r"quantization"):
        named(text)


def test_qlora_is_nf4_with_double_quantisation() -> None:
    assert named("nf4") == Quantization()
    assert make_job(method="qlora").quantization == Quantization()
    assert make_job(method="qlora", quantization="nf4") == make_job(method="qlora")


def test_adapters_need_a_format_that_takes_them() -> None:
    assert make_job(method="qlora", quantization="gptq").quantization == named("gptq")
    with pytest.raises(BadValueError):
        make_job(method="qlora", quantization="Q4_K_M")


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ("fp8", "fp8"), ("gptq-8bit", "gptq-8bit"), ("bitsandbytes-4bit", "nf4"), ("Q5_K_S", "Q5_K_S"),
        ("mxfp4", "mxfp4"), ("compressed-tensors", None), (None, None),
    ],
)  # fmt: skip
def test_checkpoints_that_are_stored_packed(stored: str | None, words: str | None) -> None:
    assert quantizations.of_checkpoint(stored) == words


# Whole models


def test_files_of_llama_cpp() -> None:
    """Sizes of published files of Llama 3.1 8B: 4,920,734,272 B (Q4_K_M), 8,540,770,880 B (Q8_0) with 7.8 MB of vocabulary."""
    for kind, size in (("Q4_K_M", 4_920_734_272), ("Q8_0", 8_540_770_880)):
        assert loaded("meta-llama/Llama-3.1-8B", kind) == pytest.approx(size - 7_800_000, rel=0.0005)


def test_llama_cpp_keeps_the_token_table_on_the_host() -> None:
    """llama.cpp's log for Llama 3 8B in Q4_0: CPU buffer size = 281.81 MiB, CUDA0 buffer size = 4155.99 MiB."""
    assert loaded("meta-llama/Llama-3.1-8B", "Q4_0", framework="llama.cpp") == pytest.approx(
        4155.99 * MIB, rel=0.0003
    )
    whole = loaded("meta-llama/Llama-3.1-8B", "Q4_0")
    assert whole - loaded("meta-llama/Llama-3.1-8B", "Q4_0", framework="llama.cpp") == pytest.approx(
        281.81 * MIB, rel=0.0001
    )


def test_experts_are_packed_by_checkpoints_and_passed_by_loaders() -> None:
    """gpt-oss-20b's checkpoint is 12.8 GiB (model card), its experts unpacked are 38 GB in 16 bits."""
    assert loaded("openai/gpt-oss-20b", "mxfp4") == pytest.approx(12.8 * GIB, rel=0.005)
    assert loaded("openai/gpt-oss-20b", "nf4") > 36 * GIB
    packed = predict(read_model("openai/gpt-oss-20b"), make_job(task="infer", quantization="mxfp4"))
    plain = predict(read_model("openai/gpt-oss-20b"), make_job(task="infer", quantization="nf4"))
    assert [w for w in packed.warnings if "stay unpacked" in w] == []
    assert len([w for w in plain.warnings if "stay unpacked" in w]) == 1


def test_embeddings_norms_and_routers_stay() -> None:
    """Qwen1.5-MoE in GPTQ: what isn't packed are two tables of 151,936 × 2048, routers, biases and norms."""
    spec = read_model("Qwen/Qwen1.5-MoE-A2.7B")
    from loadmaster.memory.inventory import parameters

    held = parameters(spec, make_job(task="infer", quantization="gptq"))
    assert {h.role for h in held if h.packed} == {"attention", "mlp", "experts"}
    assert {h.role for h in held if not h.packed} >= {"embedding", "head", "norm", "router"}


# Kernels


def test_kernels_unpack_only_where_they_do() -> None:
    def work(quantization: str, seq: int) -> int:
        ledger = predict(
            read_model("meta-llama/Llama-3.2-1B"), make_job(task="infer", quantization=quantization, seq=seq)
        )
        return sum(e.bytes.likely for e in ledger.at("prefill") if e.component == "temporaries")

    assert work("gptq", 16) < work("nf4", 16)  # 2048 × 8192 values unpacked to 2 B
    assert work("nf4", 16) - work("gptq", 16) == pytest.approx(2 * 2048 * 8192, rel=0.05)


def test_awq_unpacks_for_many_tokens_and_sums_eight_products_for_few() -> None:
    gemm = named("awq")
    assert scratch_bytes(4096, 1000, 100, gemm) == 8 * 100 * 1000 * 2
    assert scratch_bytes(4096, 1000, 5000, gemm) == 4096 * 1000 * 2
    assert scratch_bytes(4096, 1000, 5000, named("awq-gemm_split")) == 8 * 5000 * 1000 * 2


def test_exllama_keeps_its_buffers() -> None:
    """Llama 7B: temp_dq 11008 × 4096 × 2 B; v2 also 2048 × 8 rows of 11008 float32."""

    def buffers(quantization: str) -> int:
        ledger = predict(read_model("huggyllama/llama-7b"), make_job(task="infer", quantization=quantization))
        return sum(e.bytes.likely for e in ledger.at("prefill") if e.component == "buffers")

    base = buffers("gptq")
    assert buffers("gptq-exllama") - base == 2 * 11008 * 4096
    assert buffers("gptq-exllamav2") - base == 2 * 11008 * 4096 + 4 * 11008 * 2048 * 8


@pytest.mark.parametrize("name", NAMES)
def test_arrays_and_plain_ints_agree(name: str) -> None:
    model = read_model("Qwen/Qwen3-0.6B")
    jobs = [
        make_job(task="infer", quantization=name, seq=seq, batch=2, new_tokens=8)
        for seq in (9, 500, 513, 3000)
    ]
    found = evaluate(model, jobs)["peak"].tolist()
    assert found == [max(int(m.total_bytes) for m in moments(model, job, None, detail=False)) for job in jobs]
    assert np.all(np.array(found) > 0)


# The libraries' own tensors


def test_bitsandbytes_tensors() -> None:
    """quantize_4bit of 300 × 1000 values by bitsandbytes 0.50.2: 150,000 packed bytes; absmax 4688 float32, or 4688 uint8 with
    state2.absmax 19 float32 and its code of 256, an offset; code 16 float32."""
    assert packed_bytes(matrix(300, 1000), named("nf4-single")) == blocks(150_000, 4688 * 4, 64)
    assert packed_bytes(matrix(300, 1000), named("nf4")) == blocks(150_000, 4688, 19 * 4, 256 * 4, 4, 64)


def test_transformers_modules_of_packed_checkpoints() -> None:
    import torch
    from transformers.integrations.finegrained_fp8 import FP8Linear

    with torch.device("meta"):
        layer = FP8Linear(5120, 1408, block_size=(128, 128))
    sizes = [t.numel() * t.element_size() for t in layer.parameters()]
    assert packed_bytes(matrix(1408, 5120), named("fp8")) == blocks(*sizes)


def test_types_of_the_gguf_reader_are_those_of_the_format() -> None:
    from loadmaster.jobs.quantizations import gguf

    for kind in gguf.VARIANTS:
        assert packed_bytes(matrix(512, 512), named(kind)) > 0
    assert packed_bytes(matrix(512, 96), named("Q4_K_M")) == blocks(512 * 96 // 32 * 22)  # falls back to Q5_0


@pytest.mark.parametrize("quantization", ["nf4", "int8"])
def test_layers_of_derived_classes_stay_as_they_are_on_loading(quantization: str) -> None:
    """transformers 5 (integrations/bitsandbytes.py) packs what ``type(module) is nn.Linear`` or a Conv1D: not FalconLinear.
    4.57 asked with isinstance."""
    from loadmaster.memory.inventory import parameters

    def packed(name: str, framework: str) -> bool:
        job = make_job(task="infer", quantization=quantization, framework=framework)
        return any(held.packed for held in parameters(read_model(name), job))

    assert not packed("tiiuae/falcon-7b", "transformers")
    assert packed("tiiuae/falcon-7b", "transformers 4.57")
    assert packed("openai-community/gpt2", "transformers")
