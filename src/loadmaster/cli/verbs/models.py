"""Models: the catalogue, and what follows from one model's shapes.

loadmaster models list qwen --family qwen2    the catalogue
loadmaster models show Llama-3.1-8B           layers, parameters by role, KV bytes and FLOPs per token
loadmaster models show ./checkpoint           a folder, config.json, .safetensors or .gguf (headers only)
loadmaster models show --params 7B            a Llama-like network of that size
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``loadmaster models`` and its two questions."""
    questions = parser.add_subparsers(dest="question", metavar="{list,show}", required=True)
    listing = questions.add_parser("list", help="every model of the catalogue", allow_abbrev=False)
    listing.add_argument("filter", nargs="?", help="only names that hold this text")
    listing.add_argument("--family", help="only this family's, by model_type: llama, qwen3_moe ...")
    showing = questions.add_parser("show", help="one model", allow_abbrev=False)
    showing.add_argument("model", nargs="?", help="a name, a Hugging Face id, a folder or a file")
    showing.add_argument("--params", metavar="COUNT", help="no model, just a size: 7B, 350M")
    for question in (listing, showing):
        question.add_argument(
            "--json", action="store_true", help="print JSON (sizes in bytes, unknown is null)"
        )


def run(arguments: argparse.Namespace) -> int:
    """Answer; always 0 unless an error is raised."""
    from loadmaster.render import models as render
    from loadmaster.workflows import models as workflow

    if arguments.question == "list":
        listed = workflow.list_models(arguments.filter, arguments.family)
        if arguments.json:
            sys.stdout.write(render.list_json(listed) + "\n")
        else:
            console = _console()
            console.print(render.list_text(listed, console.width))
        return 0
    shown = workflow.show_model(arguments.model, arguments.params)
    if arguments.json:
        sys.stdout.write(render.show_json(shown) + "\n")
    else:
        _console().print(render.show_text(shown))
    return 0


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        # Nothing is cut or wrapped for a file or the next program.
        console.width = 200
    return console
