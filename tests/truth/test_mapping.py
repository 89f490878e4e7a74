"""A row's fields become a job; what can't be said becomes a reason."""

import json

import msgspec
import pytest
from tests.support.truth_rows import TINY, row

from loadmaster.hardware import find_gpu
from loadmaster.models import read_model
from loadmaster.workflows.truth.mapping import Unmapped, question
from loadmaster.workflows.truth.rows import Row
from loadmaster.workflows.truth.targets import lora_targets

LORA = {
    "method": "lora", "lora": {"r": 4, "targets": ["q", "v"]},
    "optimizer": {"name": "AdamW", "state_dtype": "float32 (adapter params are fp32)"},
}  # fmt: skip
INFER = {
    "kind": "infer", "method": "generate", "optimizer": None, "checkpointing": None, "fused_loss": None,
    "batch_size": 1, "seq_len": 100, "notes": "Prompt 40 tokens, 60 generated",
}  # fmt: skip


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return read_model(str(path))


@pytest.fixture
def ask(spec):
    def ask(**changed):
        return question(msgspec.convert(row(**changed), Row), spec, find_gpu("A100 80GB"))

    return ask


def test_a_plain_training_row(ask):
    asked = ask(seq_len=96, grad_accum=4, checkpointing="full", attention="flash-attn 2")
    job = asked.job
    assert (job.task, job.method, job.micro_batch, job.seq_len, job.grad_accumulation) == (
        "finetune",
        "full",
        2,
        96,
        4,
    )
    assert (job.checkpointing, job.attention, job.loss, job.optimizer.name) == (
        "full",
        "flash",
        "hf",
        "adamw",
    )
    assert (job.precision.weights, job.precision.autocast) == ("bfloat16", None)
    assert (asked.convention, asked.phase, asked.assumed) == ("allocated", None, ())


def test_autocast_and_the_fused_optimizer(ask):
    job = ask(
        weights_dtype="float32", compute_dtype="bfloat16 autocast",
        optimizer={"name": "AdamW", "state_dtype": "float32", "fused": True},
    ).job  # fmt: skip
    assert (job.precision.weights, job.precision.autocast) == ("float32", "bfloat16")
    assert job.optimizer.implementation == "fused"


def test_chunks_of_tokens_become_a_number_of_chunks(ask):
    assert ask(fused_loss="chunked CE (8 chunks)").job.loss_chunks == 8
    # 128 tokens make four chunks of 32 in each of the two sequences
    assert ask(fused_loss="chunked lm_head + CE, 32 tokens per chunk").job.loss_chunks == 8


def test_adapters_are_in_the_format_of_their_moments(ask):
    lora = ask(**LORA).job.lora
    assert (lora.rank, lora.targets, lora.dtype) == (4, ("q_proj", "v_proj"), "float32")
    assert (
        ask(**{**LORA, "optimizer": {"name": "AdamW", "state_dtype": "bfloat16"}}).job.lora.dtype
        == "bfloat16"
    )


def test_packed_base_weights(ask):
    asked = ask(**{**LORA, "method": "qlora", "weights_dtype": "bnb nf4 double quant, rest bf16"})
    quantization = asked.job.quantization
    assert (quantization.dtype, quantization.double, quantization.upcast_rest) == ("nf4", True, False)


def test_a_generating_row(ask):
    job = ask(**INFER).job
    assert (job.task, job.seq_len, job.new_tokens, job.prefill_chunk, job.logits) == (
        "infer",
        100,
        60,
        None,
        "last",
    )
    everything = ask(**{**INFER, "fused_loss": "n/a; logits of all positions kept"})
    assert everything.job.logits == "all"
    forward = ask(**{**INFER, "method": "forward (prefill)", "notes": None})
    assert forward.job.new_tokens == 0


def test_weights_and_cache_figures(ask):
    weights = ask(**{**INFER, "method": "serve", "measured": {"what": "model_weights"}, "notes": None})
    assert (weights.convention, weights.phase) == ("weights", "load")
    cache = ask(**{**INFER, "measured": {"what": "kv_cache"}, "notes": "the pool holds 1,024 tokens"})
    assert (cache.convention, cache.job.seq_len) == ("kv cache", 1024)


def test_what_a_row_leaves_open_is_said(ask):
    assert "allocated" in ask(measured={"what": "unknown"}).assumed[0]
    assert any("GPUs" in text for text in ask(
        **INFER, parallel={"gpus": 2, "note": "layer split"}, measured={"scope": "sum over GPUs"}
    ).assumed)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"measured": {"what": "compute_buffer"}}, "compute_buffer"),
        ({"seq_len": None}, "length"),
        ({"batch_size": None}, "batch"),
        ({"parallel": {"gpus": 8, "fsdp": "full"}}, "8 GPUs (fsdp)"),
        ({"parallel": None}, "GPUs isn't stated"),
        ({"method": "peft:boft"}, "boft"),
        ({"weights_dtype": "int3 of our own"}, "int3"),
        ({"weights_dtype": None, "compute_dtype": None}, "None"),
        ({"fused_loss": "magic"}, "magic"),
        ({"attention": "custom"}, "custom"),
        ({"checkpointing": "every other"}, "every other"),
        ({"optimizer": {"name": "Adamant"}}, "adamant"),
        ({**LORA, "lora": {"targets": ["q"]}}, "rank"),
        ({**LORA, "lora": {"r": 4}}, "targets"),
        ({**LORA, "lora": {"r": 4, "targets": ["conv_in"]}}, "conv_in"),
        ({**INFER, "seq_len": None, "notes": None}, "length"),
        ({**INFER, "measured": {"what": "kv_cache"}}, "server"),
        ({**INFER, "method": "text-to-video"}, "text-to-video"),
    ],
)
def test_what_cannot_be_said_is_a_reason(ask, changed, word):
    with pytest.raises(Unmapped, match=r"^[^\n]+$") as raised:
        ask(**changed)
    assert word in str(raised.value)


def test_targets_of_a_fused_matrix(tmp_path):
    fields = {
        "model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 256, "vocab_size": 100, "tie_word_embeddings": False, "hidden_act": "gelu",
        "max_position_embeddings": 64,
    }  # fmt: skip
    path = tmp_path / "neox.json"
    path.write_text(json.dumps(fields))
    found = lora_targets(read_model(str(path)), ["q", "v", "down"])
    assert found.targets == ("query_key_value", "dense_4h_to_h")
    assert found.fused == ("query_key_value",)
    assert found.missing == ()


def test_dora_offloaded_states_and_what_stands_in_brackets(ask):
    for said in ({"method": "dora"}, {"lora": {**LORA["lora"], "use_dora": True}}):
        assert ask(**{**LORA, **said}).job.lora.dora
    job = ask(
        optimizer={"name": "AdamW CPUOffloadOptimizer", "state_dtype": "on CPU"},
        offload="optimizer state and gradients on CPU",
        checkpointing="full (per block)",
    ).job
    assert (job.optimizer.name, job.offload, job.checkpointing) == (
        "adamw",
        ("optimizer", "gradients"),
        "full",
    )


def test_a_librarys_old_name_dates_it(ask):
    """lit-gpt became the package litgpt 0.2 in March 2024: torch's written-out attention was in 16 bits then."""
    assert not ask(framework="lit-gpt 2023").job.facts.math_in_float32
    assert ask(framework="litgpt").job.facts.math_in_float32
