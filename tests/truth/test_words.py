"""Spellings: one rule for a kind of word, whoever wrote it."""

import pytest

from loadmaster.workflows.truth import words


@pytest.mark.parametrize(
    ("text", "kind", "packed", "rest", "group", "double"),
    [
        ("bfloat16", None, None, "bfloat16", None, False),
        ("float32", None, None, "float32", None, False),
        ("fp16", None, None, "float16", None, False),
        ("bnb nf4 (block linears), rest bf16", "bnb", "nf4", "bfloat16", None, False),
        ("bnb nf4 double quant, rest bf16", "bnb", "nf4", "bfloat16", None, True),
        ("nf4 on LoRA modules, rest bf16", "bnb", "nf4", "bfloat16", None, False),
        ("gptq int4 (exllama v2)", "gptq", "int4", None, None, False),
        ("gptq int4 group 128", "gptq", "int4", None, 128, False),
        ("gptq int8", "gptq", "int8", None, None, False),
        ("awq int4 g128, rest fp16", "awq", "int4", "float16", 128, False),
        ("int4 weight-only g64", "weight-only", "int4", None, 64, False),
        ("float8 weight-only", "weight-only", "fp8", None, None, False),
        ("fp8 block-wise (128x128)", "weight-only", "fp8", None, None, False),
        ("mxfp4 experts, rest bf16", "weight-only", "mxfp4", "bfloat16", None, False),
    ],
)
def test_stored_formats(text, kind, packed, rest, group, double):
    found = words.stored_format(text)
    assert (found.kind, found.packed, found.rest, found.group, found.double) == (
        kind,
        packed,
        rest,
        group,
        double,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, (None, False)),
        ("bfloat16", ("bfloat16", False)),
        ("bfloat16 autocast", ("bfloat16", True)),
        ("bfloat16, no autocast", ("bfloat16", False)),
        ("float32", ("float32", False)),
    ],
)
def test_compute_formats(text, expected):
    assert words.compute_format(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AdamW", "adamw"), ("Adam", "adamw"), ("AdamW8bit (bitsandbytes)", "adamw_8bit"),
        ("AdamW 8-bit", "adamw_8bit"), ("AdamW4bit (torchao)", "adamw_4bit"), ("SGD momentum", "sgdm"),
        ("Paged AdamW", "paged_adamw"), ("AdamWFp8 (torchao)", "adamw_fp8"), ("AdamW CPUOffloadOptimizer", "adamw"),
    ],
)  # fmt: skip
def test_optimizers(text, expected):
    assert words.optimizer_name(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "sdpa"), ("unknown", "sdpa"), ("auto (TE default)", "sdpa"), ("sdpa (library default)", "sdpa"),
        ("sdpa (flash)", "flash"), ("flash-attn 2", "flash"), ("flash", "flash"), ("eager", "eager"),
        ("unfused", "eager"), ("fused (AutoAWQ)", "flash"), ("flex attention", "flex"), ("custom", None),
    ],
)  # fmt: skip
def test_attention(text, expected):
    assert words.attention_kind(text) == expected


@pytest.mark.parametrize(
    ("text", "kind", "chunks", "tokens"),
    [
        (None, "hf", None, None),
        ("none", "hf", None, None),
        ("n/a (2-class head)", "hf", None, None),
        ("chunked CE (8 chunks)", "chunked", 8, None),
        ("chunked lm_head + CE, 128 tokens per chunk", "chunked", None, 128),
        ("Liger", "fused", None, None),
        ("cut cross-entropy (Apple)", "cut", None, None),
    ],
)
def test_losses(text, kind, chunks, tokens):
    found = words.loss_kind(text)
    assert (found.kind, found.chunks, found.chunk_tokens) == (kind, chunks, tokens)


def test_a_loss_that_nobody_knows_is_not_guessed():
    assert words.loss_kind("magic") is None


@pytest.mark.parametrize(
    ("target", "role"),
    [
        ("q", "query"), ("q_proj", "query"), ("output_proj", "output"), ("output(head)", "head"), ("gate_proj", "gate"),
        ("w2", "down"), ("to_k", "key"), ("model.layers.0.self_attn.v_proj", "value"), ("conv_in", None),
    ],
)  # fmt: skip
def test_targets(target, role):
    assert words.role_of(target) == role


@pytest.mark.parametrize(
    ("notes", "field", "expected"),
    [
        ("Prompt 6144 tokens, 2048 generated (seq_len = sum).", "prompt", 6144),
        ("Prompt 6144 tokens, 2048 generated (seq_len = sum).", "new", 2048),
        ("Prompt 64 + decode 32 (seq_len = sum).", "new", 32),
        ("Prompt 256 tokens + 512 new tokens (seq_len = 768), use_cache on.", "new", 512),
        ("Short prompt, 50 new tokens by default", "short", True),
        ("static KV cache for prompt + 200 tokens (both short).", "new", 200),
        ("28.20 GiB KV pool holds 184,832 tokens", "cached", 184832),
        ("Alpaca (longest sample of full Alpaca is 1304 tokens).", "longest", 1304),
        ("the prompt was processed in small chunks", "chunked_prefill", True),
        (None, "prompt", None),
        ("nothing is said", "new", None),
    ],
)
def test_lengths_in_notes(notes, field, expected):
    assert getattr(words.lengths(notes), field) == expected
