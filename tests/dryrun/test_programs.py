"""Models by name on the simulated device: what a job's fields do there, what is refused, what people bring themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.factories import run_factory
from loadmaster.dryrun.programs import honoured
from loadmaster.dryrun.programs.simulate import simulate
from loadmaster.dryrun.programs.sources import fields_of
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import LoadmasterError, UsageError
from loadmaster.jobs.job import Job, Precision
from loadmaster.jobs.make import make_job
from loadmaster.units import MIB

WIDTH, FFN, VOCAB, LAYERS = 64, 128, 512, 2
TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "tie_word_embeddings": False,
}  # fmt: skip
PARAMETERS = 2 * VOCAB * WIDTH + LAYERS * (
    2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * FFN + 2 * WIDTH
) + WIDTH  # fmt: skip
"""Table, head, layers (query, output, key, value, MLP, norms), last norm: by hand."""


def run(card: Card | None = None, **words: Any) -> DryRun:
    return simulate(TINY, "tiny", make_job(**{"seq": 128, **words}), card or Card())


def held(found: DryRun, category: str) -> int:
    return sum(share.size_bytes for share in found.categories if share.name == category)


def test_every_field_of_a_job_is_accounted_for() -> None:
    assert set(honoured.FIELDS) == set(Job.__struct_fields__)


def test_categories_and_modules_sum_to_the_peak() -> None:
    found = run()
    assert sum(s.size_bytes for s in found.categories) == found.peak_allocated_bytes
    assert sum(s.size_bytes for s in found.modules) == found.peak_allocated_bytes
    assert {p.phase for p in found.phases} == {"load", "forward", "backward", "optimizer step"}
    assert {p.step for p in found.phases} == {0, 1, 2}


def test_adamw_keeps_two_moments_of_every_parameter() -> None:
    found = run(precision="fp32")
    parameters, states = held(found, "parameters"), held(found, "optimizer states")
    # Each tensor is rounded up to 512 bytes: the norms' 256 bytes are.
    assert 4 * PARAMETERS <= parameters <= 4 * PARAMETERS + 512 * (2 * LAYERS + 1)
    assert states == 2 * parameters


def test_float32_copies_and_gradients_of_16_bit_weights() -> None:
    phases = {name: run(precision=name).phases[-1].allocated_bytes for name in ("bf16", "bf16-master")}
    # 4 bytes of copy and 4 more of its two moments than bfloat16's, and float32 gradients and roots while it steps.
    assert phases["bf16-master"] - phases["bf16"] > 8 * PARAMETERS


@pytest.mark.parametrize(
    "words",
    [
        {"optimizer_in_backward": True},
        {"offload": "optimizer,gradients"},
        {"optimizer": "adamw_8bit"},
        {"optimizer": "paged_adamw"},
        {"optimizer": "adafactor"},
        {"optimizer": "lion", "optimizer_implementation": "for-loop"},
    ],
)
def test_what_saves_states_or_gradients_takes_less(words: dict[str, Any]) -> None:
    plain = run(batch=1, seq=16)
    assert run(batch=1, seq=16, **words).peak_allocated_bytes < plain.peak_allocated_bytes


@pytest.mark.parametrize("checkpointing", ["full", "every:2", "selective"])
def test_checkpointing_takes_less(checkpointing: str) -> None:
    words = {"batch": 8, "seq": 512, "loss": "fused", "optimizer": "sgd"}
    assert run(**words, checkpointing=checkpointing).peak_allocated_bytes < run(**words).peak_allocated_bytes


def test_losses_without_whole_logits_take_less() -> None:
    words = {"batch": 8, "seq": 512, "optimizer": "sgd", "precision": "bf16"}
    stock = run(**words).peak_allocated_bytes
    for loss in ("native", "fused", "cut"):
        assert run(**words, loss=loss).peak_allocated_bytes < stock


def test_attention_kernels_are_what_is_asked_for() -> None:
    for kernel in ("flash", "efficient", "math"):
        assert {name for name, _ in run(attention=kernel).attention} == {kernel}
    assert run(attention="eager").attention == ()


def test_an_autocast_to_float16_scales_the_loss() -> None:
    job = make_job(seq=64, precision=Precision(weights="float32", autocast="float16"))
    assert simulate(TINY, "tiny", job, Card()).steps == 2


def test_generation_holds_a_cache_of_the_final_length() -> None:
    found = run(task="infer", batch=4, seq=2048, new_tokens=1024)
    # Keys and values of both layers, two heads of 16 values, in bfloat16.
    cache = 2 * LAYERS * 4 * 2048 * 2 * 16 * 2
    decode = next(p.allocated_bytes for p in found.phases if p.phase == "decode")
    assert decode > 2 * PARAMETERS + cache


def test_evaluation_is_a_phase_of_its_own() -> None:
    assert "evaluate" in {p.phase for p in run(eval_batch=4).phases}


def test_running_out_of_memory_is_a_result() -> None:
    found = run(Card(limited=True, usable_bytes=20 * MIB, total_bytes=20 * MIB), batch=64, seq=2048)
    assert found.oom is not None
    assert found.oom.module
    assert found.oom.capacity_bytes == 20 * MIB


@pytest.mark.parametrize(
    "words",
    [
        {"task": "serve"},
        {"compile": True},
        {"attention": "flex"},
        {"task": "infer", "kv_dtype": "int8"},
        {"method": "qlora", "dora": True},
        {"method": "qlora", "quantization": "hqq"},
    ],
)
def test_what_cannot_be_done_is_refused_in_a_sentence(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        run(**words)
    assert "\n" not in str(raised.value)


def test_torch_and_transformers_are_left_as_they_were() -> None:
    from transformers import masking_utils

    before = masking_utils.is_tracing, torch.nn.Module._apply
    run()
    assert before == (masking_utils.is_tracing, torch.nn.Module._apply)
    assert not torch.cuda.is_available()


FACTORY = """
import torch

def build():
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    return model, torch.zeros(32, 256), lambda outputs: outputs.square().mean()
"""


def test_a_factory_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FACTORY)
    found = run_factory(f"{file}:build")
    weights = 4 * (256 * 1024 + 1024 + 1024 * 8 + 8)
    assert weights <= held(found, "parameters") <= weights + 4 * 512
    assert held(found, "optimizer states") == 2 * held(found, "parameters")
    assert found.steps == 2


def test_a_factory_may_return_a_dict_and_a_loss_of_the_outputs(tmp_path: Path) -> None:
    file = tmp_path / "named.py"
    file.write_text(
        "import torch\n\ndef make():\n"
        "    with torch.device('meta'):\n        model = torch.nn.Linear(512, 512, bias=False)\n"
        "    return {'model': model, 'batch': {'input': torch.zeros(4, 512)},\n"
        "            'loss': lambda outputs: outputs.sum(), 'optimizer': torch.optim.SGD}\n"
    )
    found = run_factory(f"{file}:make")
    assert held(found, "parameters") == 4 * 512 * 512
    assert held(found, "optimizer states") == 0


def test_a_factory_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def build():\n    return 1\n")
    with pytest.raises(LoadmasterError, match="factory"):
        run_factory(f"{file}:build")


def test_sources() -> None:
    fields, name = fields_of("gpt2")
    assert (fields["model_type"], name) == ("gpt2", "openai-community/gpt2")
    fields, _ = fields_of(params="1B")
    assert fields["model_type"] == "llama"
    with pytest.raises(UsageError, match="is diffusers' FluxPipeline: a dry run builds transformers' models"):
        fields_of("black-forest-labs/FLUX.1-dev")
    with pytest.raises(UsageError):
        fields_of("model.gguf")
