"""Runs a training step operator by operator on a GPU that isn't there.

loadmaster dryrun Qwen/Qwen2.5-7B --gpu rtx4090 --method lora --checkpointing full
loadmaster dryrun --vram 24GiB train.py --epochs 1
loadmaster dryrun my_package.models:build --gpu a100-80gb --try-alloc-conf

MODEL is run as a Job says, by the options of loadmaster plan. A script runs unmodified, with your own rights, until --steps
optimizer steps are done; what follows its name are its own arguments. A factory (module:function, or a file with build())
returns a model and a batch. Needs torch, but no GPU.

Exit code 0: it fits, or no card was named; 3: it runs out of memory; 1: it could not be run; 2: the question was wrong.
"""

from __future__ import annotations

import argparse
import re
import sys

from loadmaster.cli.main import Parser
from loadmaster.cli.verbs import plan as plan_verb

USUAL_TRIED = ""
"""Stands for the usual settings of the allocator."""
_CONF = re.compile(r"backend:|\w+:(?:True|False|[\[\d.])")
"""How settings begin, and no factory (``module:function``) or model."""
_MINE = {"explain", "json", "picture", "compare", "arguments", "model"}


def arrange(words: list[str]) -> list[str]:
    """A ``--try-alloc-conf`` without settings doesn't swallow the word behind it: settings have a colon."""
    found = list(words)
    for at, word in enumerate(words):
        if word.endswith(".py"):
            break
        if word == "--try-alloc-conf" and (at + 1 == len(words) or not _is_conf(words[at + 1])):
            found[at] = "--try-alloc-conf="
    return found


def _is_conf(word: str) -> bool:
    return _CONF.match(word) is not None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``loadmaster dryrun``."""
    parser.usage = "loadmaster dryrun [options] MODEL | FACTORY | SCRIPT.py [arguments of the script]"
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="as for plan; or module:function, or the path of a script"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="arguments of a script")
    _options(parser)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--params", metavar="N", help="a Llama of this many parameters (7B)")
    plan_verb.add_card(parser.add_argument_group("card"))
    run = parser.add_argument_group("run")
    plan_verb.add_number(
        run, "--steps", "optimizer steps that are run; default 2: the second sees the optimizer's states"
    )
    run.add_argument(
        "--alloc-conf", metavar="CONF", help="the allocator's settings; default: PYTORCH_ALLOC_CONF"
    )
    run.add_argument(
        "--try-alloc-conf", metavar="CONF", nargs="?", action="append", const=USUAL_TRIED,
        help="whether other settings help; without CONF the usual ones",
    )  # fmt: skip
    run.add_argument(
        "--assume",
        metavar="OP=RULE",
        action="append",
        help="what an operator of no known result returns: like:0",
    )
    run.add_argument(
        "--no-script", action="store_true", help="refuse to run code of yours: models by name only"
    )
    _layout(parser.add_argument_group("several GPUs (models by name)"))
    plan_verb.add_job(parser.add_argument_group("job (models by name)"))
    plan_verb.add_training(parser.add_argument_group("training (models by name)"))
    plan_verb.add_inference(parser.add_argument_group("inference (--task infer)"))
    output = parser.add_argument_group("output")
    output.add_argument(
        "--explain", action="store_true", help="the largest tensors at the peak, and who made them"
    )
    output.add_argument(
        "--compare",
        metavar="WITH",
        choices=("plan",),
        help="plan: what loadmaster plan predicts, side by side",
    )
    output.add_argument("--snapshot", metavar="FILE", help="a memory snapshot for pytorch.org/memory_viz")
    output.add_argument("--picture", metavar="FILE", help="the run over time as .png or .html")
    output.add_argument("--json", action="store_true", help="print JSON (docs/dryrun.md)")


def _layout(group: argparse._ArgumentGroup) -> None:
    plan_verb.add_number(group, "--gpus", "how many; default 1")
    group.add_argument("--strategy", metavar="KIND", help="fsdp2 (default), ddp")
    plan_verb.add_number(group, "--tensor-parallel", "ranks of tensor parallelism; default 1", dest="tensor")
    plan_verb.add_number(group, "--replicate", "copies of the sharded model (HSDP); default 1")
    group.add_argument(
        "--reshard", metavar="WHEN", help="true (default), false, or over how many ranks (FSDP2)"
    )
    group.add_argument("--param-dtype", metavar="FORMAT", help="what FSDP2 gathers and computes in")
    group.add_argument("--reduce-dtype", metavar="FORMAT", help="what it reduces gradients in")
    group.add_argument("--cpu-offload", action="store_true", default=None, help="FSDP2's CPUOffloadPolicy")
    group.add_argument(
        "--bucket-view", action="store_true", default=None, help="DDP's gradient_as_bucket_view"
    )
    plan_verb.add_number(group, "--bucket-mb", "DDP's bucket_cap_mb; default 25")


def run(arguments: argparse.Namespace) -> int:
    """Dry-run and print; 3 when it runs out of memory."""
    from loadmaster.dryrun.pictures import check_picture, write_picture
    from loadmaster.workflows.dryrun import ask, run_asked
    from loadmaster.workflows.programs import kind_of

    kind = kind_of(arguments.model, arguments.arguments)
    if arguments.arguments and kind != "script":
        arguments = _after_the_name(arguments)
    question = {
        field: value for field, value in vars(arguments).items() if value is not None and field not in _MINE
    }
    check_picture(arguments.picture)
    asked = ask(arguments.model, argv=arguments.arguments or (), **question)
    if kind != "model":
        _warn(arguments)
    from loadmaster.cli.progress import ProgressLine

    line = ProgressLine()
    try:
        found = run_asked(asked, line.progress, line.output if kind != "model" else None)
    finally:
        line.clear()
    if arguments.picture is not None:
        write_picture(found, arguments.picture)
    plan = asked.plan if arguments.compare and asked.request.layout is None else None
    if arguments.compare and plan is None:
        sys.stderr.write(
            "loadmaster: there is no plan to compare with: it knows models by name, of known families, on one GPU\n"
        )
    _print(found, arguments, plan)
    return 3 if found.fits is False else 0


def _print(found: object, arguments: argparse.Namespace, plan: object) -> None:
    from loadmaster.cli import output

    if arguments.json:
        from loadmaster.render.dryrun_json import dryrun_json

        output.put_json(dryrun_json(found, plan))  # type: ignore[arg-type]
        return
    from loadmaster.render.dryrun import dryrun_text
    from loadmaster.render.terminal import look_of

    sys.stdout.write(dryrun_text(found, look_of(sys.stdout), explain=arguments.explain, plan=plan))  # type: ignore[arg-type]


def _after_the_name(arguments: argparse.Namespace) -> argparse.Namespace:
    """Options behind a model's name are ours."""
    parser = Parser(prog="loadmaster dryrun", allow_abbrev=False)
    _options(parser)
    rest, arguments.arguments = arguments.arguments, []
    return parser.parse_args(rest, namespace=arguments)


CARD = {"--gpu", "--vram"}
BEFORE = {"--alloc-conf", "--try-alloc-conf", "--snapshot", "--picture", "--no-script"}
"""Options that a script seldom has itself."""


def _warn(arguments: argparse.Namespace) -> None:
    if sys.stderr is not None:
        name = arguments.model
        words = (
            f"loadmaster: {name} is run with your own rights, as python would run it (--no-script refuses)\n"
        )
        suspects = BEFORE if arguments.gpu or arguments.vram else BEFORE | CARD
        passed = [word for each in arguments.arguments if (word := each.partition("=")[0]) in suspects]
        if passed:
            said = "goes to the script; for loadmaster it stands before that name"
            words += f"loadmaster: {', '.join(passed)} behind {name} {said}\n"
        sys.stderr.write(words.encode("utf-8", "replace").decode())
        sys.stderr.flush()
