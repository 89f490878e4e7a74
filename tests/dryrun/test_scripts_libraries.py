"""Training scripts as they are, with Accelerate, the Trainer, TRL, PEFT and bitsandbytes. Bytes are worked out from shapes;
where a library keeps small tensors of its own (batches ahead, running losses), within 32 KiB."""

from __future__ import annotations

import pytest
from tests.dryrun.running import WORKSPACE, block, run
from tests.dryrun.tiny import HEADS, HIDDEN, KEYS, LAYERS, VOCABULARY, WIDTH, llama_shapes, make_folder

RANK = 8
HEAD = HIDDEN // HEADS
MATRICES = {
    "q_proj": (HIDDEN, HIDDEN), "k_proj": (KEYS * HEAD, HIDDEN), "v_proj": (KEYS * HEAD, HIDDEN), "o_proj": (HIDDEN, HIDDEN),
    "gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH),
}  # fmt: skip
FREQUENCIES = 2 * 512
"""Two buffers of rotary frequencies."""
SMALL = 32 * 1024


def weights(dtype_bytes: int = 2) -> int:
    return sum(
        block(dtype_bytes * shape[0] * (shape[1] if len(shape) > 1 else 1))
        for shape in llama_shapes().values()
    )


def adapters(names: list[str]) -> int:
    """LoRA's two matrices for each layer, in float32."""
    return LAYERS * sum(4 * RANK * (MATRICES[name][0] + MATRICES[name][1]) for name in names)


@pytest.mark.slow
def test_accelerate(tmp_path):
    """float32 weights, gradients, moments and the foreach temporary; positions and token types; the batch, loss and logits."""
    ran = run(tmp_path / "work", "bert_accelerate.py", tmp_path / "out", steps=99)
    assert ran.code == 0, ran.errors
    width, inner = 128, 512
    layer = [
        *[width * width, width] * 4,
        width,
        width,
        inner * width,
        inner,
        width * inner,
        width,
        width,
        width,
    ]
    shapes = [
        2000 * width,
        512 * width,
        2 * width,
        width,
        width,
        *(layer * 2),
        width * width,
        width,
        3 * width,
        3,
    ]
    weights = sum(block(4 * each) for each in shapes)
    held = 2 * block(512 * 8) + 2 * block(4 * 64 * 8) + 512 + 512 + 512
    assert ran.peaks[1, "optimizer step"] == 5 * weights + held + 2 * WORKSPACE
    assert ran.run.steps == 4  # 32 rows in batches of 4, every second batch
    assert "seen 32" in ran.out  # 12 + 12 + 8: what was padded for gathering is dropped by known lengths
    assert dict(ran.run.skipped) == {"Accelerator.save_state": 1}
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_trainer_with_lora(tmp_path):
    """Fused AdamW, the Trainer's default: frozen weights, adapters in float32 with gradients and two moments, no temporary; a
    step count for each adapter matrix."""
    folder = make_folder(tmp_path / "tiny")
    ran = run(tmp_path / "work", "trainer_lora.py", folder, tmp_path / "out")
    assert ran.code == 0, ran.errors
    names = ["q_proj", "v_proj"]
    expected = weights() + FREQUENCIES + 4 * adapters(names) + 512 * 2 * len(names) * LAYERS + 2 * WORKSPACE
    assert 0 <= ran.peaks[1, "optimizer step"] - expected <= SMALL
    assert f"trainable params: {adapters(names) // 4:,}" in ran.out
    assert (2, "evaluate") in ran.peaks
    assert ran.run.steps == 2
    assert dict(ran.run.skipped)["Trainer.save_checkpoint"] == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_trl_with_lora(tmp_path):
    folder = make_folder(tmp_path / "tiny")
    ran = run(tmp_path / "work", "sft_lora.py", folder, tmp_path / "out")
    assert ran.code == 0, ran.errors
    names = list(MATRICES)
    expected = weights() + FREQUENCIES + 4 * adapters(names) + 512 * 2 * len(names) * LAYERS + 2 * WORKSPACE
    assert 0 <= ran.peaks[1, "optimizer step"] - expected <= SMALL
    assert ran.run.steps == 2
    assert not (tmp_path / "out").exists()


def packed() -> int:
    """nf4 with double quantisation: two weights to a byte; a scale of one byte for 64 weights; of these a float32 for 256;
    their mean; tables of 16 and of 256 values (functional.quantize_blockwise copies the latter, and keeps one itself)."""
    total = 1024
    for rows, columns in MATRICES.values():
        count = rows * columns
        scales = -(-count // 64)
        total += LAYERS * (
            block(count // 2) + block(scales) + block(4 * -(-scales // 256)) + 512 + 512 + 1024
        )
    return total


@pytest.mark.slow
def test_qlora(tmp_path):
    folder = make_folder(tmp_path / "tiny")
    ran = run(tmp_path / "work", "qlora.py", folder, tmp_path / "out")
    assert ran.code == 0, ran.errors
    rest = 2 * VOCABULARY * HIDDEN + (2 * LAYERS + 1) * HIDDEN  # embedding, head, norms
    loaded = packed() + 2 * rest + FREQUENCIES
    assert f"loaded {loaded}" in ran.out
    # prepare_model_for_kbit_training makes what isn't packed float32; AdamW takes foreach kernels as torch does.
    step = loaded + 2 * rest + 5 * adapters(list(MATRICES)) + 2 * WORKSPACE
    assert 0 <= ran.peaks[1, "optimizer step"] - step <= SMALL
    assert ran.run.steps == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_bitsandbytes_optimizers_and_int8(tmp_path):
    """Of a matrix of 2²⁰: states of one byte with a float32 scale for 256 each (optimizer.py Optimizer2State init_state), two
    tables of 256 values; paged states are managed memory. LLM.int8 keeps one byte a weight and a float32 scale a row."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import bitsandbytes as bnb
import torch
def step(make):
    weight = torch.nn.Parameter(torch.empty(1024, 1024, device="cuda"))
    weight.grad = torch.empty_like(weight)
    optimizer = make([weight])
    before = torch.cuda.memory_allocated()
    optimizer.step()
    print(torch.cuda.memory_allocated() - before)
step(bnb.optim.AdamW8bit)
step(bnb.optim.PagedAdamW32bit)
step(bnb.optim.AdamW32bit if hasattr(bnb.optim, "AdamW32bit") else bnb.optim.AdamW)
before = torch.cuda.memory_allocated()
layer = bnb.nn.Linear8bitLt(1024, 512, bias=False, has_fp16_weights=False).cuda()
print(torch.cuda.memory_allocated() - before)
"""
    )
    ran = run(tmp_path / "work", script, steps=9)
    assert ran.code == 0, ran.errors
    found = [int(line) for line in ran.out.split()]
    scales = 4 * 2**20 // 256
    assert found == [2 * (2**20 + scales) + 2 * 1024, 0, 2 * 4 * 2**20, 512 * 1024 + 512 * 4]
