"""Sets the dry run beside the closed form over the catalogue: python scripts/agreement.py [name ...] [--layers N] [--jobs WORD].

Each model runs in a child process, cut to a few layers, under four methods, with and without checkpointing, with the stock and
the fused loss. Prints a row for each job and the median and worst difference of allocated peaks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

METHODS: dict[str, dict[str, Any]] = {
    "full amp": {},
    "full bf16": {"precision": "bf16"},
    "lora": {"method": "lora"},
    "qlora": {"method": "qlora"},
}
DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers", "sliding_window_pattern_list")
LEARNED = ("bert", "roberta", "deberta-v2", "gpt2", "opt", "clip")
NESTED = ("text_config", "vision_config", "audio_config")


def jobs(seq: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and words of the jobs that are compared."""
    for method, words in METHODS.items():
        for checkpointing in ("none", "full"):
            for loss in ("hf", "fused"):
                yield (
                    f"{method}, {checkpointing}, {loss}",
                    {"seq": seq, "checkpointing": checkpointing, "loss": loss, **words},
                )
    yield "inference", {"task": "infer", "seq": seq, "new_tokens": seq // 8}


PERIODS = {
    "jamba": 8,
    "qwen3_next": 4,
    "gemma3_text": 6,
    "gemma3": 6,
    "llama4": 4,
    "mllama": 0,
    "llama4_text": 4,
    "mllama_vision_model": 0,
}
"""Layers until every kind of layer has come, by model_type; 0: the config can't be cut."""


def cut(fields: dict[str, Any], layers: int) -> dict[str, Any]:
    """The config with at most so many layers in each tower, or a whole period of them."""
    found = dict(fields)
    layers = PERIODS.get(str(fields.get("model_type")), layers)
    if not layers:
        return found
    for name in DEPTHS:
        if isinstance(found.get(name), int):
            found[name] = min(found[name], layers)
    for name in NESTED:
        if isinstance(found.get(name), dict):
            found[name] = cut(found[name], layers)
    depth = next((found[name] for name in DEPTHS if name in found), None)
    for name in PER_LAYER:
        if isinstance(found.get(name), list) and depth is not None:
            found[name] = found[name][:depth]
    return found


def as_counted(fields: dict[str, Any]) -> dict[str, Any]:
    """The config with the class that the catalogue's parameters were counted with (encoders without a head)."""
    words = str(fields.get("_computed_with", "")).split()
    named = words[words.index("class") + 1] if "class" in words else None
    return {**fields, "architectures": [named]} if named else fields


def longest(spec: Any, fields: dict[str, Any], seq: int) -> int:
    """No longer than tables of learned positions, and long enough for a picture among the text."""
    if fields.get("vision_config") and spec.decoder.modality == "text" and spec.head is not None:
        seq = max(seq, 4096)
    learned = spec.max_positions if fields["model_type"] in LEARNED else None
    return min(seq, fields.get("max_target_positions") or learned or seq)


def child(name: str, layers: int, seq: int, wanted: str) -> None:
    """Compare every job of one model; a line of JSON for each."""
    from loadmaster.dryrun.card import Card
    from loadmaster.dryrun.programs.simulate import simulate
    from loadmaster.dryrun.programs.sources import fields_of
    from loadmaster.errors import LoadmasterError
    from loadmaster.jobs.make import make_job
    from loadmaster.memory import predict
    from loadmaster.models.readers import config_json

    fields, full_name = fields_of(name)
    fields = cut(fields, layers) if layers else fields
    spec = config_json.from_fields(fields, full_name)
    for title, words in jobs(longest(spec, fields, seq)):
        if wanted not in title:
            continue
        row: dict[str, Any] = {"model": full_name, "job": title}
        try:
            job = make_job(**words)
            row["closed"] = predict(spec, job, compute_capability="8.0").peak.allocated.likely
            found = simulate(as_counted(fields), full_name, job, Card())
            row |= {
                "dry": found.peak_allocated_bytes,
                "phase": found.peak_phase,
                "seconds": round(found.run_s, 1),
                "answers": len(found.answers),
            }
        except LoadmasterError as error:
            row["refused"] = str(error)
        except Exception as error:
            row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        print(json.dumps(row), flush=True)


def main() -> int:
    """Compare; exit code 1 where a job fails or the worst difference is above six per cent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--jobs", default="", help="only jobs whose name holds this")
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        child(given.names[0], given.layers, given.seq, given.jobs)
        return 0
    from loadmaster.models.readers import catalogue

    differences: list[float] = []
    failures = 0
    for name in given.names or catalogue.names():
        options = ["--layers", str(given.layers), "--seq", str(given.seq), "--jobs", given.jobs, "--child"]
        done = subprocess.run(
            [sys.executable, __file__, name, *options], capture_output=True, text=True, check=False
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not rows:
            failures += 1
            print(
                f"{name:44} failed: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:160]}",
                flush=True,
            )
        for row in rows:
            failures += "failed" in row
            show(row, differences)
    if differences:
        worst = max(differences, key=abs)
        print(
            f"{len(differences)} jobs: median {statistics.median(map(abs, differences)):.2%}, worst {worst:+.2%}"
        )
    return 1 if failures or any(abs(each) > 0.06 for each in differences) else 0


def show(row: dict[str, Any], differences: list[float]) -> None:
    """One row of the table."""
    start = f"{row['model']:44} {row['job']:24}"
    if "dry" not in row:
        print(
            start,
            "refused" if "refused" in row else "FAILED",
            row.get("refused") or row.get("failed"),
            flush=True,
        )
        return
    difference = row["closed"] / row["dry"] - 1
    differences.append(difference)
    sizes = f"{row['dry'] / 2**20:10,.1f} {row['closed'] / 2**20:10,.1f} MiB {difference:+8.2%}"
    print(
        start,
        sizes,
        f"{row['phase']:14} {row['seconds']:5.1f} s",
        f"{row['answers']} stated" if row["answers"] else "",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
