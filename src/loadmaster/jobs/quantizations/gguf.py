"""Types of llama.cpp's files, named by the mix that ``llama-quantize`` makes: ``Q8_0``, ``Q4_K_M`` ...

A mix gives most matrices one type and some a better one. What depends on eight experts, on a 70B model or on an importance
matrix in ``llama_tensor_get_type`` is left out: under 2 % of a file.
"""

from __future__ import annotations

from loadmaster.arrays import ceil_div, rounded
from loadmaster.jobs.job import Quantization
from loadmaster.jobs.quantizations import Matrix
from loadmaster.models.readers.gguf import BLOCKS

NAME = "gguf"
TEXT = "llama.cpp's types"
TYPES_ARE_NAMES = True
BITS, CHOICES, GROUP = 4, (4,), None
VARIANTS = (
    "Q4_K_M", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_0", "Q4_1", "Q4_K_S", "IQ4_NL", "IQ4_XS", "Q5_0", "Q5_1", "Q5_K_S",
    "Q5_K_M", "Q6_K", "Q8_0", "MXFP4_MOE",
)  # fmt: skip
PACKS = ("layer", "experts", "head", "embedding")
UNPACKS: tuple[str, ...] = ()
ON_LOAD = UPCASTS = TRAINABLE = False
SOURCE = (
    "ggml's block sizes (gguf-py constants.py GGML_QUANT_SIZES) and llama.cpp src/llama-quant.cpp llama_tensor_get_type: which "
    "matrix gets which type; use_more_bits: the first and last eighth of the layers and every third between"
)
TYPES = {name: (values, size) for name, values, size in BLOCKS.values()}
NARROW = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}  # fmt: skip
"""What a matrix gets whose width isn't a multiple of 256 (tensor_type_fallback)."""
VALUES = ("v_proj", "wv", "value", "kv_b_proj")
FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
DOWN = ("down_proj", "w2", "fc2", "fc_out", "dense_4h_to_h", "wo")
OUTPUT = ("o_proj", "out_proj", "dense")


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """All copies, each in the type that its layer gets."""
    mix = quantization.variant or VARIANTS[0]
    total = 0
    for copy in range(matrix.count):
        kind = _type(matrix, mix, copy * matrix.layers // matrix.count, matrix.layers)
        total += int(rounded(_bytes(matrix, kind)))
    return total


def _bytes(matrix: Matrix, kind: str) -> int:
    values, size = TYPES[kind]
    if matrix.inputs % values:
        values, size = TYPES[NARROW.get(kind, "float16")]
    if matrix.inputs % values:
        values, size = TYPES["float16"]
    return matrix.stack * matrix.outputs * int(ceil_div(matrix.inputs, values)) * size


def _type(matrix: Matrix, mix: str, layer: int, layers: int) -> str:
    base = mix.removesuffix("_S").removesuffix("_M").removesuffix("_L")
    last = matrix.name.removesuffix(".weight").rpartition(".")[2]
    if mix == "MXFP4_MOE":
        return "MXFP4" if matrix.place == "experts" else "Q8_0"
    if matrix.place == "head" or matrix.tied:
        return "Q8_0" if base == "Q8_0" else "Q6_K"
    if matrix.place == "embedding":
        return base
    if last in VALUES:
        return _value(mix, base, layer, layers)
    if last in DOWN:
        return _down(mix, base, layer, layers)
    if last in FUSED:
        return {"Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}.get(mix, base)
    if last in OUTPUT:
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, base)
    return base


def _better(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _value(mix: str, base: str, layer: int, layers: int) -> str:
    if mix in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _better(layer, layers) else base
    if mix == "Q3_K_M":
        return "Q5_K" if layer < 2 else "Q4_K"
    if mix == "Q4_K_S":
        return "Q5_K" if layer < 4 else base
    return {"Q2_K": "Q4_K", "Q3_K_L": "Q5_K", "IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K"}.get(mix, base)


def _down(mix: str, base: str, layer: int, layers: int) -> str:
    if mix in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _better(layer, layers) else base
    if mix == "Q3_K_M":
        return "Q5_K" if layer < layers // 16 else "Q4_K"
    if mix in ("Q4_K_S", "IQ4_NL", "IQ4_XS"):
        return "Q5_K" if layer < layers // 8 else base
    return {"Q2_K": "Q3_K", "Q3_K_L": "Q5_K"}.get(mix, base)
