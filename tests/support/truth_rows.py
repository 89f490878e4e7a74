"""Made-up measurements for tests."""

import json

TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": False,
    "hidden_act": "silu", "max_position_embeddings": 512,
}  # fmt: skip

ROW = {
    "id": "a", "group": "g", "source": "made up", "url_hint": "", "kind": "train", "framework": "transformers",
    "model": "tiny", "config": "tiny.json", "method": "full", "lora": None, "weights_dtype": "bfloat16",
    "compute_dtype": "bfloat16", "optimizer": {"name": "AdamW", "state_dtype": "bfloat16"}, "batch_size": 2,
    "seq_len": 128, "image": None, "grad_accum": 1, "checkpointing": "none", "attention": "sdpa", "fused_loss": "none",
    "compile": False, "parallel": {"gpus": 1}, "offload": None, "gpu": "A100 80GB",
    "measured": {"value": 1.0, "unit": "B", "what": "max_allocated", "bytes": 1_000_000},
    "confidence": "high", "notes": None,
}  # fmt: skip


def row(**changed):
    """A row with some fields changed; ``measured`` is merged."""
    measured = {**ROW["measured"], **changed.pop("measured", {})}
    return {**ROW, "measured": measured, **changed}


def write(folder, *rows, text=None):
    """A set of these rows (or of raw ``text``) with the tiny model's config; returns its path."""
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "configs" / "tiny.json").write_text(json.dumps(TINY))
    path = folder / "measured.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) if text is None else text)
    return path
