"""This machine's GPUs and memory limits, and the catalogue of GPUs.

loadmaster hardware                      this machine
loadmaster hardware list --vendor AMD    the catalogue
loadmaster hardware show a100-80gb       one card, its memory term by term
loadmaster hardware compare 4090 5090    cards side by side
"""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``loadmaster hardware`` and its three questions."""
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, unknown is null)")
    questions = parser.add_subparsers(dest="question", metavar="{list,show,compare}")
    listing = questions.add_parser("list", help="every GPU of the catalogue", allow_abbrev=False)
    listing.add_argument(
        "--vendor", help="only this vendor's: NVIDIA, AMD, Intel, Apple, Google, AWS, Huawei"
    )
    showing = questions.add_parser("show", help="one GPU, its memory term by term", allow_abbrev=False)
    showing.add_argument(
        "name", nargs="+", help="any spelling: 4090, A100-SXM4-80GB, H100:8, a100-80gb:1g.10gb"
    )
    comparing = questions.add_parser("compare", help="GPUs side by side", allow_abbrev=False)
    comparing.add_argument("names", nargs="+", metavar="name", help="two names or more")
    for question in (listing, showing, comparing):
        question.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Answer; always 0 unless an error is raised."""
    from loadmaster.cli import output
    from loadmaster.render import hardware as render
    from loadmaster.workflows import hardware as workflow

    if arguments.question is None:
        seen = workflow.this_machine()
        if arguments.json:
            output.put_json(render.machine_json(seen))
        else:
            output.put_parts(render.machine_text(seen), width=output.columns())
        return 0
    if arguments.question == "list":
        cards = workflow.list_cards(arguments.vendor)
    elif arguments.question == "show":
        cards = (workflow.show_card(" ".join(arguments.name)),)
    else:
        cards = workflow.compare_cards(arguments.names)
    if arguments.json:
        output.put_json(render.cards_json(cards))
        return 0
    width = output.columns()
    if arguments.question == "list":
        output.put_parts(render.list_text(cards), width=width)
        return 0
    shown = render.card_text(cards[0]) if len(cards) == 1 else render.compare_text(cards, width)
    output.put_parts(shown, *render.assumptions(cards), width=width)
    return 0
