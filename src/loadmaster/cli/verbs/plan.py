"""Whether a job fits a card and RAM, and what would make it fit.

loadmaster plan Qwen/Qwen2.5-7B --gpu rtx4090 --method lora --seq 4096
loadmaster plan meta-llama/Llama-3.1-8B --task serve --batch 8 --seq 8192 --new-tokens 512
loadmaster plan --params 13B --vram 48GiB --method qlora --explain

Exit code 0: it fits (also tightly); 3: it doesn't; 1: there is no verdict; 2: the question was wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from loadmaster.errors import BadValueError

LONGEST_NUMBER = 20  # digits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``loadmaster plan``."""
    parser.usage = "loadmaster plan MODEL [options]"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a name (Qwen/Qwen2.5-7B), or the path of a folder, config.json, .safetensors or .gguf file",
    )
    parser.add_argument("--params", metavar="N", help="a model of this many parameters (7B), or their number")
    add_card(parser.add_argument_group("card"))
    add_job(parser.add_argument_group("job"))
    add_training(parser.add_argument_group("training"))
    add_inference(parser.add_argument_group("inference (--task infer or serve)"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--explain", action="store_true", help="every entry: formula, largest tensors, source"
    )
    output.add_argument(
        "--rule-of-thumb", action="store_true", help="what popular rules say, and what they leave out"
    )
    output.add_argument(
        "--compare-rules", action="store_true", help="what published formulas say, and by what they differ"
    )
    output.add_argument("--json", action="store_true", help="print JSON (docs/json.md)")


def add_card(group: argparse._ArgumentGroup) -> None:
    """Which card the job is for."""
    group.add_argument(
        "--gpu", metavar="NAME", help="rtx4090, a100-80gb, ...; auto (default): this machine's"
    )
    group.add_argument("--vram", metavar="SIZE", help="a card known by its memory alone: 24GiB")


def add_job(group: argparse._ArgumentGroup) -> None:
    """What every job has."""
    group.add_argument("--task", metavar="TASK", help="finetune (default), train, infer, serve")
    group.add_argument("--method", metavar="METHOD", help="full (default), lora, dora, qlora")
    group.add_argument(
        "--precision",
        metavar="P",
        help="amp: float32 weights under bf16 autocast (default of full training); bf16 (default else), fp16, fp32; "
        "bf16-master, fp16-master: float32 copies in the optimizer; megatron: and float32 gradients",
    )
    add_number(group, "--batch", "sequences at once (micro-batch); default 1")
    add_number(group, "--seq", "tokens in a sequence, prompt and answer together; default 2048")
    group.add_argument(
        "--attention",
        metavar="KIND",
        help="sdpa (default), flash, efficient, math, eager, flash2, flash3, flex",
    )
    group.add_argument(
        "--quantization",
        metavar="FORMAT",
        help=f"of the weights, for qlora (default nf4) and inference: {_formats()}",
    )
    group.add_argument(
        "--framework",
        metavar="NAME",
        help="transformers (default; with a version: 'transformers 4.40'), torchtune, litgpt",
    )
    add_number(group, "--images", "images a sequence, for models that see; default 1")
    add_number(group, "--source-seq", "tokens of the encoder, for encoder-decoders; default as --seq")


def add_training(group: argparse._ArgumentGroup) -> None:
    """What training has beside."""
    add_number(group, "--grad-accumulation", "micro-batches in a step; default 1")
    add_number(group, "--eval-batch", "sequences at once in evaluation (Trainer: 8); default: no evaluation")
    group.add_argument(
        "--checkpointing",
        metavar="KIND",
        help="none (default); full: every layer; every:2: every second; selective: torchtitan's, by operator",
    )
    group.add_argument(
        "--loss",
        metavar="KIND",
        help="hf (default: transformers' own), native, chunked, fused (Liger), cut (Apple)",
    )
    group.add_argument("--optimizer", metavar="NAME", help=f"adamw (default); {_optimizers()}")
    group.add_argument(
        "--optimizer-implementation", metavar="KIND", help="foreach (default), fused, for-loop"
    )
    add_number(group, "--optimizer-rank", "rank of GaLore's projections; default 128")
    add_number(group, "--rank", "rank of LoRA's adapters; default 16")
    group.add_argument("--targets", metavar="A,B", help="modules with adapters; default all-linear")
    group.add_argument(
        "--lora-dropout", metavar="P", type=_fraction, help="dropout before LoRA's adapters; default 0"
    )
    group.add_argument(
        "--freeze", metavar="A,B", help="embeddings, head, towers (all but the decoder), first:N layers"
    )
    group.add_argument("--dora", action="store_true", default=None, help="DoRA's magnitudes on lora or qlora")
    group.add_argument(
        "--optimizer-in-backward",
        action="store_true",
        default=None,
        help="each gradient is used and freed at once",
    )
    group.add_argument(
        "--offload", metavar="A,B", help="to host memory: optimizer, gradients, activations (of checkpoints)"
    )
    group.add_argument(
        "--compile", action="store_true", default=None, help="torch.compile over model and loss"
    )
    group.add_argument(
        "--hold-outputs",
        action="store_true",
        default=None,
        help="the loop keeps the model's outputs in a variable",
    )
    group.add_argument(
        "--dataset", metavar="SIZE", help="of it in RAM: 20GiB; default: read from files as needed"
    )
    add_number(group, "--workers", "processes of the data loader; default 0")
    add_number(group, "--prefetch", "batches that each holds ready; default 2")
    group.add_argument("--pin-memory", action="store_true", default=None, help="page-locked batches")


def _formats() -> str:
    return f"{_files('quantizations')}; gptq-8bit, gptq-g32, fp8-row, Q4_K_M and other GGUF types"


def _optimizers() -> str:
    return _files("optimizers", but="adamw")


def _files(folder: str, but: str = "") -> str:
    """The names of the files in a folder of jobs, without loading them."""
    found = (Path(__file__).parents[2] / "jobs" / folder).glob("[!_]*.py")
    return ", ".join(sorted(path.stem for path in found if path.stem != but))


def add_inference(group: argparse._ArgumentGroup) -> None:
    """What inference has beside."""
    add_number(group, "--new-tokens", "tokens of --seq that are generated; default 0")
    add_number(group, "--prefill-chunk", "prompt tokens processed at once; default: the whole prompt")
    group.add_argument("--logits", metavar="WHICH", help="last (default), all")
    group.add_argument(
        "--kv-dtype",
        metavar="FORMAT",
        help="format of the KV cache, such as fp8 or q8_0; default: as computed",
    )
    group.add_argument(
        "--engine",
        metavar="NAME",
        dest="framework",
        help="vllm, llama.cpp: how much KV cache the server's budget leaves (same as --framework)",
    )
    group.add_argument(
        "--memory-utilization",
        metavar="SHARE",
        type=_share,
        help="vllm's gpu_memory_utilization; default 0.9",
    )
    add_number(group, "--max-sequences", "vllm's max_num_seqs; --prefill-chunk is its max_num_batched_tokens")


def add_number(group: argparse._ArgumentGroup, option: str, text: str, dest: str | None = None) -> None:
    """An option that is a whole number; ``dest``: its field where that has another name."""
    dest = dest or option[2:].replace("-", "_")
    group.add_argument(option, metavar="N", type=_whole(option), help=text, dest=dest)


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValueError("--memory-utilization", text[:40], "a share of the card, such as 0.9") from None


def _fraction(text: str) -> float:
    """Reads a number from 0 to 1; its range is checked where the job is made."""
    try:
        return float(text)
    except ValueError:
        raise BadValueError("--lora-dropout", text[:40], "a number from 0 to 1, such as 0.05") from None


def _whole(option: str) -> Callable[[str], int]:
    """Reads a whole number; its range is checked where the job is made."""

    def read(text: str) -> int:
        digits = text.strip()
        number = digits.removeprefix("-")
        if not (number.isascii() and number.isdigit()):
            raise BadValueError(option, text[:40], "a whole number, such as 8")
        if len(digits) > LONGEST_NUMBER:
            raise BadValueError(
                option, f"{text[:LONGEST_NUMBER]}...", f"a number of at most {LONGEST_NUMBER} digits"
            )
        return int(digits)

    return read


def run(arguments: argparse.Namespace) -> int:
    """Plan and print; 3 when the card or the host's memory is too small for the job."""
    from loadmaster.cli import output
    from loadmaster.workflows.plan import plan

    question = {field: value for field, value in vars(arguments).items() if value is not None}
    explain, thumb, compare, as_json = (
        question.pop(field) for field in ("explain", "rule_of_thumb", "compare_rules", "json")
    )
    made = plan(**question)
    if as_json:
        from loadmaster.plan.published_rules import compare_rules
        from loadmaster.plan.rules_of_thumb import rules_of_thumb
        from loadmaster.render.plan_json import plan_json

        rules = (*(rules_of_thumb(made) if thumb else ()), *(compare_rules(made) if compare else ()))
        output.put_json(plan_json(made, rules))
    else:
        from loadmaster.render.plan import plan_text
        from loadmaster.render.terminal import look_of

        look = look_of(sys.stdout)
        text = plan_text(made, look, explain=explain, rule_of_thumb=thumb, compare_rules=compare)
        sys.stdout.write(text)
    if "does_not_fit" in (made.verdict, made.ram_verdict):
        return 3
    return 1 if made.verdict is None else 0
