"""Options that change nothing here are named, in text, HTML and JSON, and really change nothing."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.jobs.make import make_job
from loadmaster.memory import predict
from loadmaster.models import read_model
from loadmaster.render.plan import plan_text
from loadmaster.render.plan_html import plan_html
from loadmaster.render.plan_json import plan_json
from loadmaster.render.terminal import Look
from loadmaster.workflows.unused import unused

LLAMA, BERT, VIT, VLM = (
    "EleutherAI/pythia-70m", "google-bert/bert-base-uncased", "google/vit-base-patch16-224", "llava-hf/llava-1.5-7b-hf",
)  # fmt: skip
INFER, TRAIN = {"task": "infer"}, {"task": "train"}


@pytest.mark.parametrize(
    ("model", "said", "idle"),
    [
        (LLAMA, {**INFER, "optimizer": "sgd", "checkpointing": "full"}, "--checkpointing, --optimizer"),
        (LLAMA, {**TRAIN, "new_tokens": 5}, "--new-tokens"),
        (LLAMA, {"method": "lora", "kv_dtype": "fp8"}, "--kv-dtype"),
        (BERT, {**INFER, "new_tokens": 5}, "--new-tokens"),
        (BERT, {"loss": "fused"}, "--loss"),
        (VIT, {**INFER, "prefill_chunk": 64}, "--prefill-chunk"),
        (LLAMA, {**INFER, "images": 2}, "--images"),
        (LLAMA, {"source_seq": 200}, "--source-seq"),
        (LLAMA, {"freeze": "towers"}, "--freeze"),
        (LLAMA, {"checkpointing": "every:1000"}, "--checkpointing"),
        (LLAMA, {"prefetch": 4}, "--prefetch"),
        (LLAMA, {**INFER, "memory_utilization": 0.5}, "--memory-utilization"),
        (LLAMA, {**INFER, "grad_accumulation": 2, "offload": "optimizer"}, "--grad-accumulation, --offload"),
    ],
)  # fmt: skip
def test_they_are_named_everywhere(model, said, idle):
    plan = lm.plan(model, vram="24GiB", **said)
    note = f"no effect here: {idle}"
    assert note in plan.notes
    assert note in " ".join(plan_text(plan, Look(120)).split())
    assert note in plan_html(plan)
    assert note in json.loads(plan_json(plan))["notes"]
    without = {field: value for field, value in said.items() if f"--{field.replace('_', '-')}" not in idle}
    assert lm.plan(model, vram="24GiB", **without).ledger == plan.ledger


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (LLAMA, {"optimizer": "sgd", "checkpointing": "full", "workers": 2, "prefetch": 4}),
        (LLAMA, {**INFER, "new_tokens": 5, "kv_dtype": "fp8", "logits": "all", "prefill_chunk": 64}),
        (LLAMA, {**INFER, "optimizer": "adamw", "checkpointing": "none"}),  # what holds anyway
        (VLM, {**INFER, "images": 2}),
        ("google-t5/t5-small", {"source_seq": 100}),
        (LLAMA, {**INFER, "framework": "vllm", "memory_utilization": 0.5, "max_sequences": 8}),
    ],
)  # fmt: skip
def test_what_matters_is_not(model, said):
    assert [note for note in lm.plan(model, gpu="rtx4090", **said).notes if "no effect" in note] == []


words = st.fixed_dictionaries(
    {},
    optional={
        "grad_accumulation": st.just(4), "checkpointing": st.sampled_from(["full", "every:2"]),
        "loss": st.sampled_from(["fused", "native", "chunked"]), "optimizer": st.sampled_from(["sgd", "adamw_8bit"]),
        "optimizer_in_backward": st.just(True), "offload": st.sampled_from(["optimizer", "gradients", "activations"]),
        "hold_outputs": st.just(True), "images": st.just(3), "source_seq": st.just(100), "prefetch": st.just(5),
        "memory_utilization": st.just(0.5), "max_sequences": st.just(7), "loss_chunks": st.just(4),
    },
)  # fmt: skip


@given(st.sampled_from([LLAMA, BERT, "google-t5/t5-small"]), st.sampled_from([INFER, TRAIN]), words)
@settings(max_examples=40)
def test_the_ledger_without_them_is_the_same(model, task, said):
    """Also where the words are kept: generation's are left out here because encoders would be cut in chunks."""
    spec = read_model(model)
    job = make_job(**task, **said, seq=128)
    idle = unused(spec, job, said)
    kept = {field: value for field, value in said.items() if field not in idle}
    one, other = predict(spec, job), predict(spec, make_job(**task, **kept, seq=128))
    assert one.peak == other.peak
    assert one.phases == other.phases
