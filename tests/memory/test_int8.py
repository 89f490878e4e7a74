"""LLM.int8() in training: bitsandbytes holds the inputs of its layers where checkpointing can't free them."""

from __future__ import annotations

import pytest

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.programs.simulate import simulate
from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.models.readers import config_json

FIELDS = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
    "tie_word_embeddings": False,
}  # fmt: skip
SEQ = 2048
INPUTS = SEQ * (3 * 512 + 1536) * 4
"""Of a layer: the two normed streams, attention's output and the gated product, in float32 as the stream is."""


@pytest.mark.parametrize("checkpointing", ["none", "full", "every:2", "selective"])
def test_int8_is_what_a_dry_run_counts(checkpointing: str) -> None:
    job = make_job(method="qlora", quantization="int8", seq=SEQ, checkpointing=checkpointing, loss="fused")
    spec = config_json.from_fields(FIELDS, "m")
    closed = predict(spec, job, compute_capability="8.0").peak.allocated.likely
    assert closed == pytest.approx(simulate(FIELDS, "m", job, Card()).peak_allocated_bytes, rel=0.01)


def test_checkpointing_does_not_free_inputs_of_8_bit_layers() -> None:
    """Beside nf4, whose function saves through save_for_backward: four inputs in each of four layers."""
    spec = config_json.from_fields(FIELDS, "m")

    def activations(quantization: str) -> int:
        job = make_job(method="qlora", quantization=quantization, seq=SEQ, checkpointing="full")
        ledger = predict(spec, job, compute_capability="8.0")
        return sum(e.bytes.likely for e in ledger.at("backward") if e.component == "activations")

    assert activations("int8") - activations("nf4") == pytest.approx(4 * INPUTS, rel=0.02)
