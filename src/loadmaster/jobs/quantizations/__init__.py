"""Formats of packed weights, one file each: which matrices a loader packs, and how many bytes a packed one takes.

A file has NAME, TEXT (a few words), BITS and GROUP (what it takes if nothing is said; GROUP None: no choice), CHOICES (the
bits it can be asked for), VARIANTS (kernels or types, the default first; () without), PACKS (places of matrices, see
``PLACES``), UNPACKS (passes in which a kernel needs the whole matrix unpacked: ``forward``, ``backward``), ON_LOAD (a loader
packs a plain checkpoint; else the checkpoint is packed), TRAINABLE (adapters can be trained on it), UPCASTS
(prepare_model_for_kbit_training makes the rest float32), SOURCE, ``packed_bytes(matrix, quantization)``: all copies of a
matrix with their scales, rounded as the CUDA allocator does; and where there is any, ``scratch_bytes(inputs, outputs, rows,
quantization)``: what its kernel takes beside input and output, and ``kept_bytes(matrices, quantization)``: buffers that it keeps
for the whole run. EXACT (True where it is there): the loader can tell torch.nn.Linear from classes derived from it.
"""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal

from loadmaster.arrays import Size
from loadmaster.errors import BadValueError, UnknownNameError, UsageError
from loadmaster.jobs.job import Quantization
from loadmaster.records import Record

Place = Literal["layer", "experts", "router", "tower", "head", "embedding"]
"""Where a matrix is: a linear layer of the text towers' blocks, stacked experts, a router's linear, a linear of a vision or
audio tower, the output projection, the token table."""


class Matrix(Record, kw_only=True):
    """``count`` equal tensors of ``stack`` × ``outputs`` × ``inputs`` values; ``layers``: of the tower they are in."""

    name: str
    place: Place
    outputs: int
    inputs: int
    stack: int = 1
    count: int = 1
    layers: int = 1
    derived: bool = False
    """Of a class derived from torch.nn.Linear."""
    tied: bool = False
    """A token table that is the output projection too."""

    @property
    def values(self) -> int:
        """Values of one tensor."""
        return self.stack * self.outputs * self.inputs


def names() -> list[str]:
    """Every format that has a file here."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


@cache
def find(name: str) -> ModuleType:
    """The file of a format; raises UnknownNameError with the nearest names."""
    key = name.lower().replace("-", "_")
    known = names()
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        raise UnknownNameError("quantization", name, near, hint=f"choices: {', '.join(known)}")
    return importlib.import_module(f"loadmaster.jobs.quantizations.{key}")


_BITS, _GROUP = re.compile(r"(\d{1,2})bit", re.ASCII), re.compile(r"g(\d{1,5})", re.ASCII)


def named(text: str, *, compute: str = "bfloat16") -> Quantization:
    """The Quantization that words such as ``nf4``, ``gptq-8bit-g32``, ``awq-gemv`` or ``Q4_K_M`` ask for."""
    head, *rest = text.strip().split("-")
    module = find(_owner(head) or head)
    variant = next((v for v in module.VARIANTS if v.lower() == head.lower()), None)
    bits, group, double = module.BITS, module.GROUP or 0, module.NAME in ("nf4", "fp4")
    for word in rest:
        by_bits, by_group = _BITS.fullmatch(word), _GROUP.fullmatch(word)
        asked = next((v for v in module.VARIANTS if v.lower() == word.lower()), None)
        if by_bits and int(by_bits.group(1)) in module.CHOICES:
            bits = int(by_bits.group(1))
        elif by_group and module.GROUP is not None and int(by_group.group(1)) > 0:
            group = int(by_group.group(1))
        elif word in ("double", "single") and module.NAME in ("nf4", "fp4"):
            double = word == "double"
        elif asked is not None and variant is None:
            variant = asked
        else:
            raise BadValueError("quantization", text, f"{module.NAME} with {_choices(module)}")
    if variant is None and module.VARIANTS:
        variant = module.VARIANTS[0]
    return Quantization(
        dtype=module.NAME,
        bits=bits,
        block=group,
        double=double,
        compute=compute,
        upcast_rest=module.UPCASTS,
        variant=variant,
    )


_CHECKPOINTS = {"bitsandbytes-4bit": "nf4", "bitsandbytes-8bit": "int8"}


def of_checkpoint(text: str | None) -> str | None:
    """The words for the format that a checkpoint says it is stored in; None for a plain one, or one that isn't known here."""
    if text is None:
        return None
    try:
        return spelled(named(_CHECKPOINTS.get(text, text)))
    except UsageError:
        return None


def spelled(quantization: Quantization) -> str:
    """The words that ``named`` reads: the shortest ones."""
    module = find(quantization.dtype)
    words = [module.NAME]
    if quantization.variant is not None and _owner(quantization.variant) == module.NAME:
        words = [quantization.variant]
    elif module.VARIANTS and quantization.variant != module.VARIANTS[0]:
        words.append(str(quantization.variant))
    if quantization.bits != module.BITS:
        words.append(f"{quantization.bits}bit")
    if quantization.block != (module.GROUP or 0):
        words.append(f"g{quantization.block}")
    if module.NAME in ("nf4", "fp4") and not quantization.double:
        words.append("single")
    return "-".join(words)


def packs(matrix: Matrix, quantization: Quantization, *, head: bool, derived: bool = True) -> bool:
    """Whether this matrix is packed; ``head``: the library packs the output projection whatever the format usually does;
    ``derived``: its bitsandbytes loader packs classes derived from torch.nn.Linear too."""
    if matrix.derived and not derived and exact(quantization):
        return False
    return matrix.place in find(quantization.dtype).PACKS or (head and matrix.place == "head")


def exact(quantization: Quantization) -> bool:
    """Whether it is a format of bitsandbytes, whose loader looks at the class of a layer (``EXACT``)."""
    return bool(getattr(find(quantization.dtype), "EXACT", False))


def packed_bytes(matrix: Matrix, quantization: Quantization) -> int:
    """Bytes of all copies of a packed matrix with their scales."""
    found: int = find(quantization.dtype).packed_bytes(matrix, quantization)
    return found


def scratch_bytes(inputs: int, outputs: int, rows: Size, quantization: Quantization) -> Size:
    """What a product of ``rows`` rows takes beside its input, its output and an unpacked matrix."""
    function = getattr(find(quantization.dtype), "scratch_bytes", None)
    found: Size = 0 if function is None else function(inputs, outputs, rows, quantization)
    return found


def kept_bytes(matrices: list[Matrix], quantization: Quantization) -> int:
    """Buffers that the kernels keep for the whole run."""
    function = getattr(find(quantization.dtype), "kept_bytes", None)
    found: int = 0 if function is None else function(matrices, quantization)
    return found


@cache
def _owner(name: str) -> str | None:
    """The format whose types people name alone: ``Q4_K_M`` is of gguf."""
    if name.lower().replace("-", "_") in names():
        return None
    for stem in names():
        module = find(stem)
        if getattr(module, "TYPES_ARE_NAMES", False) and name.lower() in (v.lower() for v in module.VARIANTS):
            return stem
    return None


def _choices(module: ModuleType) -> str:
    words = []
    if len(module.CHOICES) > 1:
        words.append(
            f"{', '.join(str(b) for b in module.CHOICES)} bits ({module.NAME}-{module.CHOICES[-1]}bit)"
        )
    if module.GROUP is not None:
        words.append(f"a group ({module.NAME}-g{module.GROUP})")
    if module.VARIANTS:
        words.append(f"one of {', '.join(module.VARIANTS)}")
    return " or ".join(words) or "nothing after its name"
