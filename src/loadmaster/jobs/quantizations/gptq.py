"""GPTQ checkpoints (arXiv:2210.17323) as AutoGPTQ and GPTQModel hold them: values packed in int32, and for each group of
inputs a float16 scale and a packed zero an output.

Variants are kernels: ``marlin`` and ``triton`` (GPTQModel's) keep no buffers; ExLlama's two keep theirs for the whole run,
sized for 2048 tokens; ``torch`` unpacks a matrix whenever it is used.
"""

from __future__ import annotations

from loadmaster.arrays import Size, ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix

NAME = "gptq"
TEXT = "GPTQ"
BITS, CHOICES, GROUP = 4, (2, 3, 4, 8), 128
VARIANTS = ("marlin", "triton", "exllama", "exllamav2", "torch")
PACKS = ("layer", "experts")
UNPACKS: tuple[str, ...] = ("backward",)
ON_LOAD = UPCASTS = False
TRAINABLE = True
SOURCE = (
    "auto_gptq/nn_modules/qlinear: qweight int32 inputs × bits / 32 × outputs, qzeros groups × outputs × bits / 32, scales "
    "float16 groups × outputs, g_idx int32 inputs; modeling/_utils.py autogptq_post_init and qlinear_exllamav2.py "
    "temp_dq_size, temp_fwd_size: ExLlama's buffers"
)
TOKENS, BATCH = 2048, 8
"""What ExLlama v2's scratch space is for (qlinear_exllamav2.py scratch_space_fixed: max_input_len, max_batch_size)."""


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """qweight, qzeros, scales and g_idx."""
    bits, group = quantization.bits, min(quantization.block, matrix.inputs)
    groups = ceil_div(matrix.inputs, group) * matrix.stack
    packed_outputs = ceil_div(matrix.outputs * bits, 32) * 4
    one = rounded(matrix.values * bits // 8) + rounded(groups * packed_outputs)
    one = one + rounded(2 * groups * matrix.outputs) + rounded(4 * matrix.inputs * matrix.stack)
    return int(one) * matrix.count


def scratch_bytes(inputs: int, outputs: int, rows: Size, quantization: Quantization) -> Size:
    """The unpacked matrix of the torch kernel; others have their buffers already or need none."""
    return 0 * rows + (2 * inputs * outputs if quantization.variant == "torch" else 0)


def kept_bytes(matrices: list[Matrix], quantization: Quantization) -> int:
    """ExLlama's buffers: the largest unpacked matrix; v2 also a float32 product of 8 × 2048 rows of the same matrix."""
    if quantization.variant not in ("exllama", "exllamav2"):
        return 0
    unpacked = max((2 * m.inputs * m.outputs for m in matrices), default=0)
    if quantization.variant == "exllama":
        return int(rounded(unpacked))
    return max((2 * m.inputs * m.outputs + 4 * m.outputs * TOKENS * BATCH for m in matrices), default=0)
