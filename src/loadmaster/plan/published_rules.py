"""What published formulas and calculators say about a plan's job, each worked out from its formula, and by which components
it differs from the ledger.

Symbols: P parameters, L layers, s tokens, b sequences, h width, a heads. Every formula is evaluated here with the model's
and the job's own numbers; what a tool prints can differ by how it counts P (accelerate leaves out the output projection).
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.models.parameters import parameter_count
from loadmaster.models.spec import Attention
from loadmaster.plan.plan import Plan
from loadmaster.plan.rules_of_thumb import Rule, differences, rules_of_thumb

ACCELERATE = "accelerate commands/estimate.py estimate_training_usage"
ZERO = "Rajbhandari et al., arXiv:1910.02054 §3.1"
ZERO_ESTIMATOR = "deepspeed/runtime/zero/stage_1_and_2.py estimate_zero2_model_states_mem_needs"
ANATOMY = "Hugging Face documentation, Model memory anatomy"
MEGATRON = "Korthikanti et al., arXiv:2205.05198 equations 1-2, 6; Megatron-LM theoretical_memory_usage.py: 18 B a parameter"
ELEUTHER = "EleutherAI, Transformer Math 101 (blog.eleuther.ai/transformer-math)"
FACTORY = "LLaMA-Factory README, hardware requirement table"
ARITHMETIC = "Chen, Transformer Inference Arithmetic (kipp.ly)"


def compare_rules(plan: Plan) -> tuple[Rule, ...]:
    """The rules of thumb and the published formulas that speak of such a job."""
    thumb = [rule for rule in rules_of_thumb(plan) if rule.unit == "bytes" and rule.name != "RAM"]
    found = _training(plan) if plan.job.training else _inference(plan)
    return (*thumb, *found)


def _rule(
    plan: Plan, name: str, formula: str, counted: dict[str, int], source: str, remark: str = ""
) -> Rule:
    return Rule(
        name=name,
        formula=formula,
        unit="bytes",
        says=sum(counted.values()),
        ledger=plan.ledger.peak.allocated.likely,
        differences=differences(plan, counted),
        remark=remark,
        source=source,
    )


def _states(count: int, weights: int, gradients: int, optimizer: int, master: int = 0) -> dict[str, int]:
    found = {
        "weights": weights * count,
        "gradients": gradients * count,
        "optimizer states": optimizer * count,
        "master weights": master * count,
    }
    return {name: size for name, size in found.items() if size}


def _training(plan: Plan) -> Iterator[Rule]:
    count = parameter_count(plan.model)
    frozen = " It knows no frozen weights." if plan.job.lora is not None else ""
    if plan.job.precision.weights == "float32" and plan.job.precision.autocast is None:
        accelerate = _rule(
            plan, "accelerate estimate-memory", f"4 × {count:,} × 4 B", _states(count, 4, 4, 8), ACCELERATE
        )
    else:
        accelerate = _rule(
            plan,
            "accelerate estimate-memory",
            f"2 × {count:,} × 4 B, its largest row in 16 bits",
            {"optimizer states": 8 * count},
            ACCELERATE,
            "in 16 bits it answers with the largest of its parts, not with their sum",
        )
    yield accelerate
    yield _rule(
        plan,
        "ZeRO paper, model states",
        f"{count:,} × (2 + 2 + 12) B",
        _states(count, 2, 2, 8, 4),
        ZERO,
        f"activations and temporaries are left to the reader.{frozen}",
    )
    yield _rule(
        plan,
        "DeepSpeed ZeRO-2 estimator, one GPU",
        f"4 × {count:,} + 16 × {count:,} B",
        _states(count, 4, 4, 8, 4),
        ZERO_ESTIMATOR,
        f"model states alone.{frozen}",
    )
    optimizer = 2 if plan.job.optimizer.name.endswith("_8bit") else 8
    yield _rule(
        plan,
        "Model memory anatomy",
        f"{count:,} × (6 + 4 + {optimizer}) B",
        _states(count, 6, 4, optimizer),
        ANATOMY,
        "activations depend on length and batch, it says, and gives no formula",
    )
    yield from _with_activations(plan, count)
    yield _factory(plan, count)


def _with_activations(plan: Plan, count: int) -> Iterator[Rule]:
    sizes = _sizes(plan)
    if sizes is None:
        return
    layers, tokens, width, heads = sizes
    length, job = plan.job.seq_len, plan.job
    if job.checkpointing == "full":
        words, activations = "2sbhL", 2 * tokens * width * layers
    elif job.attention in ("eager", "math"):
        words, activations = "sbhL(34 + 5as/h)", layers * tokens * (34 * width + 5 * heads * length)
    else:
        words, activations = "34sbhL", 34 * layers * tokens * width
    numbers = f"{words} with L {layers}, sb {tokens:,}, h {width:,}, a {heads}"
    remark = (
        "its layer is GPT's: an MLP of 4h and as many key heads as heads; logits and the loss are not in it"
    )
    yield _rule(
        plan,
        "Megatron-LM",
        f"18 × {count:,} B + {numbers}",
        {**_states(count, 2, 4, 8, 4), "activations": activations},
        MEGATRON,
        remark,
    )
    yield _rule(
        plan,
        "Transformer Math 101",
        f"(2 + 2 + 12) × {count:,} B + {numbers}",
        {**_states(count, 2, 2, 8, 4), "activations": activations},
        ELEUTHER,
        remark,
    )


def _factory(plan: Plan, count: int) -> Rule:
    job = plan.job
    if job.quantization is not None:
        words, says = (
            "x/2 GB in 4 bits, x GB in 8",
            count // 2 if "8" not in job.quantization.dtype else count,
        )
    elif job.lora is not None:
        words, says = "2x GB", 2 * count
    elif job.precision.weights in ("bfloat16", "float16") and job.precision.master is None:
        words, says = "8x GB, pure bf16", 8 * count
    else:
        words, says = "18x GB", 18 * count
    return _rule(
        plan,
        "LLaMA-Factory's table",
        f"{words} for x = {count / 1e9:.2f} billion parameters",
        {"everything together": says},
        FACTORY,
        "it states neither batch nor length",
    )


def _inference(plan: Plan) -> Iterator[Rule]:
    count = parameter_count(plan.model)
    yield _rule(
        plan,
        "accelerate estimate-memory",
        f"{count:,} × 2 B",
        {"weights": 2 * count},
        "accelerate commands/estimate.py: total size of the weights",
        "weights alone: its documentation advises a fifth more",
    )
    sizes = _sizes(plan)
    if sizes is not None:
        layers, tokens, width, _ = sizes
        yield _rule(
            plan,
            "weights + KV cache of all heads",
            f"{count:,} × 2 B + 2 × 2 B × {layers} layers × {width:,} × {tokens:,} tokens",
            {"weights": 2 * count, "kv cache": 4 * layers * width * tokens},
            ARITHMETIC,
            "models with grouped heads keep fewer keys and values, windows fewer tokens",
        )


def _sizes(plan: Plan) -> tuple[int, int, int, int] | None:
    """Layers, tokens at once, width and heads of the decoder; None where it has no softmax attention."""
    tower = plan.model.decoder
    mixers = [block.mixer for block in tower.blocks if isinstance(block.mixer, Attention)]
    if not mixers:
        return None
    return len(tower.layout), plan.job.micro_batch * plan.job.seq_len, tower.hidden, mixers[0].heads
