"""How near the predictions come to published measurements, group by group.

loadmaster truth                          the reduced set of a source checkout
loadmaster truth --set measured.jsonl     another set, its models' configs in configs/ beside it
loadmaster truth --group NAME --rows      one group, row by row
loadmaster truth --engine dryrun          the dry run's predictions beside the closed form's
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``loadmaster truth``."""
    parser.add_argument("--set", type=Path, metavar="PATH", help="measurements, one JSON object a line")
    parser.add_argument(
        "--configs", type=Path, metavar="DIR", help="the models' configs (configs/ beside the set)"
    )
    parser.add_argument("--group", metavar="G", help="only the rows of this group")
    parser.add_argument(
        "--engine",
        metavar="E",
        default="plan",
        help="plan (default: the closed form), dryrun (each row's program, op by op: seconds a row)",
    )
    parser.add_argument(
        "--rows", action="store_true", help="every row with its prediction, or why it has none"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (sizes in bytes, unknown is null)")


def run(arguments: argparse.Namespace) -> int:
    """Score and print; always 0 unless an error is raised, whatever the score."""
    from loadmaster.cli import output
    from loadmaster.errors import BadFileError
    from loadmaster.render import truth as render
    from loadmaster.workflows.truth import score_set

    if arguments.configs is not None and not arguments.configs.is_dir():
        raise BadFileError(arguments.configs, "no such folder")
    report = score_set(arguments.set, arguments.configs, arguments.group, arguments.engine)
    if arguments.json:
        output.put_json(render.report_json(report))
        return 0
    width = output.columns()
    parts = render.report_text(report, every_row=arguments.rows, width=width)
    output.put_parts(*parts, width=width)
    return 0
