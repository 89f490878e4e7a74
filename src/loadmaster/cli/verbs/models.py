"""Models: the catalogue, and what follows from one model's shapes.

loadmaster models list qwen --family qwen2    the catalogue
loadmaster models show Llama-3.1-8B           layers, parameters by role, KV bytes and FLOPs per token
loadmaster models show ./checkpoint           a folder, config.json, .safetensors or .gguf (headers only)
loadmaster models show --params 7B            a Llama-like network of that size
"""

from __future__ import annotations

import argparse


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
    from loadmaster.cli import output
    from loadmaster.render import models as render
    from loadmaster.workflows import models as workflow

    if arguments.question == "list":
        listed = workflow.list_models(arguments.filter, arguments.family)
        if arguments.json:
            output.put_json(render.list_json(listed))
        else:
            width = output.columns(whole=True)
            output.put_parts(render.list_text(listed, width), width=width)
        return 0
    shown = workflow.show_model(arguments.model, arguments.params)
    if arguments.json:
        output.put_json(render.show_json(shown))
    else:
        output.put_parts(render.show_text(shown), width=output.columns(whole=True))
    return 0
