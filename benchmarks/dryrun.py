"""How long a dry run of one whole training step takes after imports, and how much memory, beside torch's own MemTracker.

    python benchmarks/dryrun.py [--memtracker] [--only NAME]

Each run is a process of its own. ``build`` is the model on the simulated device, ``step`` one forward, backward and optimizer
step (the slower of two for the dry run: the first, when nothing is known yet). MemTracker (torch.distributed._tools.mem_tracker)
runs the same model on fake tensors of the CPU; it knows no allocator and no GPU's kernels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from importlib.resources import files
from typing import Any

JOBS: dict[str, tuple[str, dict[str, Any], float]] = {
    "Llama-2-7B full": ("meta-llama__Llama-2-7b-hf", {"precision": "bf16", "seq": 2048}, 5),
    "Llama-3.1-8B LoRA, checkpointing": (
        "meta-llama__Llama-3.1-8B",
        {"method": "lora", "checkpointing": "full", "seq": 2048, "batch": 2},
        8,
    ),
    "Llama-3.1-70B full": ("meta-llama__Llama-3.1-70B", {"precision": "bf16", "seq": 2048}, 15),
    "Qwen3-235B-A22B full, checkpointing": (
        "Qwen__Qwen3-235B-A22B",
        {"precision": "bf16", "seq": 2048, "checkpointing": "full"},
        60,
    ),
    "DeepSeek-V3 full, checkpointing": (
        "deepseek-ai__DeepSeek-V3",
        {"precision": "bf16", "seq": 2048, "checkpointing": "full"},
        60,
    ),
}
"""Name → config, words of the job, and the bound in seconds for one full step."""


def fields_of(config: str) -> dict[str, Any]:
    path = files("loadmaster") / "data" / "models" / f"{config}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def dry_run(name: str) -> dict[str, float]:
    """In the child: seconds to build and to step, peak in GiB."""
    import torch  # noqa: F401
    import transformers  # noqa: F401

    from loadmaster.dryrun.card import Card
    from loadmaster.dryrun.programs.simulate import simulate
    from loadmaster.jobs.make import make_job

    config, words, _ = JOBS[name]
    times: list[float] = []
    began = time.perf_counter()
    found = simulate(
        fields_of(config),
        name,
        make_job(**words),
        Card(),
        progress=lambda *_: times.append(time.perf_counter()),
    )
    steps = [after - before for before, after in itertools.pairwise(times[1:])]
    return {
        "build": times[1] - began,
        "step": max(steps),
        "second": steps[-1],
        "peak": found.peak_allocated_bytes / 2**30,
    }


def mem_tracker(name: str) -> dict[str, float]:
    """In the child: the same step under torch's MemTracker."""
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import masking_utils

    from loadmaster.jobs.make import make_job

    config, words, _ = JOBS[name]
    job = make_job(**words)
    made = {k: v for k, v in fields_of(config).items() if not k.startswith("_")}
    settings = transformers.AutoConfig.for_model(**made)
    settings._attn_implementation, settings.use_cache = "sdpa", False
    masking_utils.is_tracing = lambda *_, **__: False
    masking_utils.find_packed_sequence_indices = lambda *_, **__: None
    began = time.perf_counter()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16)
        if job.lora is not None:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=job.lora.rank, target_modules="all-linear"))
        if job.checkpointing != "none":
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        built = time.perf_counter()
        with tracker:
            ids = torch.zeros(job.micro_batch, job.seq_len, dtype=torch.long)
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        ended = time.perf_counter()
    peak = max(tracker.get_tracker_snapshot("peak").values(), key=lambda each: each["Total"])["Total"]
    return {"build": built - began, "step": ended - built, "second": 0.0, "peak": peak / 2**30}


def child(which: str, name: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--child", which, "--only", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memtracker", action="store_true")
    parser.add_argument("--only", choices=list(JOBS))
    parser.add_argument("--child", choices=["dryrun", "memtracker"])
    given = parser.parse_args()
    if given.child:
        found = (dry_run if given.child == "dryrun" else mem_tracker)(given.only)
        found["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(found))
        return
    print(
        f"{'':36s} {'engine':>10s} {'build':>8s} {'step':>8s} {'2nd':>8s} {'bound':>7s} {'RSS':>9s} {'peak':>12s}"
    )
    for name, (_, _, bound) in JOBS.items():
        if given.only in (None, name):
            for which in ("dryrun", "memtracker") if given.memtracker else ("dryrun",):
                found = child(which, name)
                print(
                    f"{name:36s} {which:>10s} {found['build']:6.1f} s {found['step']:6.1f} s {found['second']:6.1f} s "
                    f"{bound:5.0f} s {found['rss']:5.2f} GiB {found['peak']:8.2f} GiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
