"""Libraries that run the model, one file each, and what of memory depends on them and on their version.

A file has NAME and ``facts(version) -> Facts``; ``version`` is a tuple such as (4, 38) or None for the newest known.
A job names one as ``framework="transformers 4.38"``; the version may be left out.
"""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache
from pathlib import Path
from typing import Literal

from loadmaster.errors import BadValueError, UnknownNameError
from loadmaster.records import Record


class Facts(Record, kw_only=True):
    """What a library does with the same model and job; the defaults are transformers 5's."""

    upcast_logits: bool = False
    """The model casts the logits of all positions to float32 before it returns them."""
    cache: Literal["dynamic", "tuple", "static", "generated"] = "dynamic"
    """``tuple``: a new cache for all layers is built while the old one lives; ``static``: made at full length at once;
    ``generated``: made at once for as many tokens as are generated."""
    rotary_tables: Literal["shared", "per layer", "complex"] = "shared"
    """``per layer``: each layer has cos and sin of all positions as buffers; ``complex``: complex factors of the generated
    tokens, twice over."""
    repeats_kv: bool = False
    """Keys and values are copied to all heads also for SDPA, which could leave the grouping to its kernel."""
    native_activations: bool = False
    """Activations that transformers writes as several operators (gelu_new, quick_gelu) are one kernel."""
    head_tied: bool = True
    """Ties of the output projection to the token table are kept."""
    lora: Literal["peft", "litgpt"] = "peft"
    packs_derived: bool = False
    """bitsandbytes' loader also packs classes derived from torch.nn.Linear (``isinstance``, not ``type(module) is``)."""
    quantises_head: bool = False
    """The 4-bit loader also packs the output projection."""
    engine: Literal["vllm", "llama.cpp"] | None = None
    """A server that fills the card by a budget of its own (``memory/serving.py``)."""
    host_embedding: bool = False
    """The token table stays in host memory, unless it is the output projection too."""
    fp8_unties_head: bool = False
    """Loading a checkpoint of 8-bit floats gives the output projection a tensor of its own, whatever the config says."""
    gptq_kernel: str = "marlin"
    """Which kernel runs GPTQ's 4-bit matrices where a job doesn't say (a variant of ``jobs/quantizations/gptq.py``)."""
    gptq_other_kernel: str = "marlin"
    """The same for other than 4 bits."""
    awq_kernel: str = "gemm"
    fused_attention: bool = False
    """Attention modules are built anew on loading: the old matrices of query, key and value live until all are."""
    stacked_experts: bool = True
    """Experts are two 3-D tensors, run as grouped products; else a list of modules, run one after the other, which
    adapters and 4-bit loaders reach."""
    adapts_experts: bool = False
    """PEFT turns LoRA targets that name projections of experts, all-linear among them, into adapters of the 3-D tensors that
    they have become (``_peft.py``)."""
    ties_always: bool = False
    """T5's output projection is its token table, whatever a config says."""
    biases_sdpa: bool = True
    """SDPA takes T5's bias of positions as its mask; else T5's attention is eager."""
    float_scores: bool = False
    """Eager attention makes a float32 copy of the scores before softmax (``scores.float()``)."""
    math_in_float32: bool = True
    """PyTorch's written-out SDPA works in float32 on 16-bit operands (pytorch/pytorch#128922, torch 2.5)."""
    attention: str | None = None
    """The library's own attention of a prompt, whatever a job says: ``eager``."""
    unpacks_as: str | None = None
    """The format that 4-bit weights were packed from where it isn't the compute format: unpacking then takes both."""
    saves_quantised_input: bool = False
    """bitsandbytes' MatMul4Bit keeps its input for backward, also under a frozen weight."""
    wide_embedding_states: bool = False
    """8-bit optimizers keep 32-bit states for token tables."""
    optimizer_implementation: Literal["foreach", "fused"] = "foreach"
    """Which AdamW its recipes ask for, where a job doesn't say."""
    logits_held: Literal["no", "as they are", "float32"] = "no"
    """What the training loop's own variable keeps of the logits through backward."""


_NAME = re.compile(r"([A-Za-z][\w.-]*?)(?:[ =]+v?(\d+(?:\.\d+)*)[\w.+]*)?")


def names() -> list[str]:
    """Every library that has a file here."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


@cache
def facts(framework: str) -> Facts:
    """What holds for a library named as ``transformers`` or ``transformers 4.38``; raises UnknownNameError."""
    match = _NAME.fullmatch(framework.strip())
    if match is None:
        raise BadValueError(
            "framework", framework, "a library and maybe its version, such as 'transformers 4.38'"
        )
    name = match.group(1).lower().replace("-", "_").replace(".", "_")
    known = names()
    if name not in known:
        raise UnknownNameError("framework", match.group(1), difflib.get_close_matches(name, known, n=1))
    version = tuple(int(part) for part in match.group(2).split(".")) if match.group(2) else None
    module = importlib.import_module(f"loadmaster.jobs.frameworks.{name}")
    found: Facts = module.facts(version)
    return found
