"""How sources spell number formats, optimizers, adapters and lengths: rules for words, none for a source."""

from __future__ import annotations

import re

from loadmaster import dtypes
from loadmaster.errors import UnknownNameError
from loadmaster.records import Record

SHORT_PROMPT = 32
"""Tokens of a prompt that is only called short: one sentence. Its cache and activations are under 1 % of any model."""

PACKED = re.compile(
    r"\b(?:(?P<kind>gptq|awq|bnb|hqq|weight-only)\s+)?"
    r"(?P<format>nf4|fp4|mxfp4|nvfp4|fp6|int[348]|fp8|float8)\b",
    re.ASCII | re.IGNORECASE,
)
GROUP = re.compile(r"\b(?:g|group(?:\s*size)?[\s=]*)(\d{2,4})\b", re.ASCII | re.IGNORECASE)
PLAIN = re.compile(r"\b(bfloat16|float(?:16|32|64)|bf16|fp?(?:16|32|64))\b", re.ASCII | re.IGNORECASE)

ROLES = {
    "query": ("q", "q_proj", "query", "wq", "to_q"),
    "key": ("k", "k_proj", "key", "wk", "to_k"),
    "value": ("v", "v_proj", "value", "wv", "to_v"),
    "output": ("o", "o_proj", "output_proj", "out_proj", "wo", "dense", "proj"),
    "gate": ("gate", "gate_proj", "w1"),
    "up": ("up", "up_proj", "w3", "fc1", "fc_1", "dense_h_to_4h"),
    "down": ("down", "down_proj", "w2", "fc2", "fc_2", "dense_4h_to_h"),
    "head": ("head", "lm_head", "output"),
}
"""Last parts of module names that mean the same matrix in different libraries; the first is the shortest."""
FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "in_proj_qkv")
"""One matrix for query, key and value."""


class Format(Record, kw_only=True):
    """How weights are stored. ``kind`` None: plain in ``rest``. Otherwise the linear layers (or a part of them) are
    ``packed`` by that method, in groups of ``group`` values to a scale, and everything else is in ``rest``."""

    rest: str | None
    kind: str | None = None
    packed: str | None = None
    group: int | None = None
    double: bool = False
    words: str = ""


def stored_format(words: str | None) -> Format:
    """What a ``weights_dtype`` says: ``bfloat16``, ``bnb nf4 double quant, rest bf16``, ``gptq int4 group 128`` ..."""
    if words is None:
        return Format(rest=None)
    plain = PLAIN.search(words)
    rest = number_format(plain.group(1)) if plain else None
    packed = PACKED.search(words)
    if packed is None:
        return Format(rest=rest, words=words)
    kind, name = (packed.group("kind") or "").lower(), packed.group("format").lower()
    if not kind:
        kind = "bnb" if name in ("nf4", "fp4") else "weight-only"
    group = GROUP.search(words)
    return Format(
        rest=rest,
        kind=kind,
        packed={"float8": "fp8"}.get(name, name),
        group=int(group.group(1)) if group else None,
        double="double" in words.lower(),
        words=words,
    )


def number_format(word: str) -> str | None:
    """The torch name of a number format, None when it isn't one."""
    try:
        return dtypes.canonical(word)
    except UnknownNameError:
        return None


def compute_format(words: str | None) -> tuple[str | None, bool]:
    """The format that matrix products run in, and whether autocast chooses it."""
    if words is None:
        return None, False
    plain = PLAIN.search(words)
    text = words.lower()
    return (number_format(plain.group(1)) if plain else None), (
        "autocast" in text and "no autocast" not in text
    )


def optimizer_name(words: str) -> str:
    """The name without what stands in brackets or says where it runs: ``AdamW8bit (bitsandbytes)`` is ``adamw_8bit``,
    ``AdamW CPUOffloadOptimizer`` is ``adamw``."""
    text = re.sub(r"\(.*?\)|cpuoffloadoptimizer", "", words.lower()).strip()
    text = re.sub(r"[\s-]*(\d)-?bit\b", r"_\1bit", text)
    text = re.sub(r"(?<=[a-z])[\s-]*fp8\b", "_fp8", text)
    return {"sgd momentum": "sgdm", "adam": "adamw"}.get(text, text.replace(" ", "_").replace("-", "_"))


def attention_kind(words: str | None) -> str | None:
    """``sdpa (flash)`` is flash, ``flash-attn 2`` too, ``sdpa`` and what isn't stated are the library's choice."""
    text = (words or "").lower()
    if not text or text in ("unknown", "auto") or text.startswith("auto "):
        return "sdpa"
    for word, kind in (
        ("flex", "flex"),
        ("flash", "flash"),
        ("sdpa", "sdpa"),
        ("eager", "eager"),
        ("unfused", "eager"),
        ("fused", "flash"),
    ):
        if word in text:
            return kind
    return None


class Loss(Record, kw_only=True):
    """A loss of ``Job.loss``'s names, and into how many chunks or chunks of how many tokens it is cut."""

    kind: str
    chunks: int | None = None
    chunk_tokens: int | None = None


def loss_kind(words: str | None) -> Loss | None:
    """What ``fused_loss`` says of a training loss; None when the words aren't understood."""
    text = (words or "none").lower()
    if text == "none" or text.startswith(("n/a", "compiled")):
        return Loss(kind="hf")
    if "chunk" in text:
        chunks, tokens = re.search(r"(\d+)\s*chunks", text), re.search(r"(\d+)\s*tokens per chunk", text)
        return Loss(
            kind="chunked",
            chunks=int(chunks.group(1)) if chunks else None,
            chunk_tokens=int(tokens.group(1)) if tokens else None,
        )
    if re.search(r"\bcut\b", text):
        return Loss(kind="cut")
    if any(word in text for word in ("liger", "fused")):
        return Loss(kind="fused")
    return None


def role_of(target: str) -> str | None:
    """The matrix that a LoRA target means, whatever its library calls it: ``output(head)`` is the head."""
    word = target.strip()
    if "head" in word.lower():
        return "head"
    last = re.sub(r"\(.*?\)", "", word).strip().rpartition(".")[2]
    for role, names in ROLES.items():
        if last in names:
            return role
    return None


class Lengths(Record, kw_only=True):
    """Tokens as the row or its notes state them; None when they don't."""

    prompt: int | None = None
    new: int | None = None
    short: bool = False
    longest: int | None = None
    cached: int | None = None
    chunked_prefill: bool = False
    share: float | None = None
    """Of the card, a server's budget."""


_PROMPT = re.compile(r"\bprompt (\d+)\b", re.ASCII | re.IGNORECASE)
_NEW = re.compile(
    r"\b(?:decode (\d+)|(\d+) (?:new tokens|generated|tokens generated))", re.ASCII | re.IGNORECASE
)
_STATIC = re.compile(r"\bprompt \+ (\d+) tokens\b", re.ASCII | re.IGNORECASE)
_LONGEST = re.compile(r"\blongest sample [^.;]*?\bis (\d+)\b", re.ASCII | re.IGNORECASE)
_SHARE = re.compile(r"\bgpu_memory_utilization (0?\.\d+)\b", re.ASCII)
_HOLDS = re.compile(r"\bholds ([\d,]+) tokens\b", re.ASCII | re.IGNORECASE)


def lengths(notes: str | None) -> Lengths:
    """The token counts that notes state in words."""
    text = notes or ""

    def number(*patterns: re.Pattern[str]) -> int | None:
        for pattern in patterns:
            match = pattern.search(text)
            if match:
                return int(next(g for g in match.groups() if g).replace(",", ""))
        return None

    lower = text.lower()
    share = _SHARE.search(text)
    everything = "generates" in lower or "tokens generated" in lower
    return Lengths(
        prompt=number(_PROMPT),
        new=number(_NEW, _STATIC),
        short="short prompt" in lower
        or "both short" in lower
        or "prompt length about 1" in lower
        or everything,
        longest=number(_LONGEST),
        cached=number(_HOLDS),
        share=float(share.group(1)) if share else None,
        chunked_prefill=bool(re.search(r"prompt was processed in (?:small )?chunks", lower)),
    )


COMPANIONS = (
    ("2.0", "4.31"), ("2.1", "4.35"), ("2.2", "4.38"), ("2.3", "4.41"), ("2.4", "4.44"), ("2.5", "4.46"),
    ("2.6", "4.50"), ("2.7", "4.53"),
)  # fmt: skip
"""The transformers that came out around each torch: for sources that name only torch (release dates on PyPI)."""


def framework(text: str, assumed: list[str]) -> str:
    """Job's name for the library that ran the model, with its version where the text says or torch's version dates it."""
    low = text.lower()
    if "lit-gpt" in low:
        # Its name before the first package, litgpt 0.2 of March 2024.
        return "litgpt 0.1"
    for name in ("torchtune", "litgpt", "torchao", "autoawq", "exllama", "vllm"):
        found = re.search(rf"\b{name}\b(?: v?(\d+(?:\.\d+)+))?", low, re.ASCII)
        if found:
            return f"{name} {found.group(1)}" if found.group(1) else name
    stated = re.search(r"\btransformers\s+v?(\d+\.\d+)", low, re.ASCII)
    if stated:
        return f"transformers {stated.group(1)}"
    year = re.search(r"\btransformers\b.*\b(20\d\d)\b", low, re.ASCII)
    if year and int(year.group(1)) <= 2022:
        return "transformers 4.16"
    torch = re.search(r"\btorch\s+(\d+\.\d+)", low, re.ASCII)
    companion = dict(COMPANIONS).get(torch.group(1)) if torch and "transformers" in low else None
    if companion:
        assumed.append(
            f"transformers' version isn't stated: {companion}, of torch {torch.group(1) if torch else ''}'s time"
        )
        return f"transformers {companion}"
    return "transformers"
