"""The picture of a dry run as a file, and whether files can be written at all."""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.dryrun.files import write_whole
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import BadFileError, BadValueError, MissingExtraError


def check_output(path: str | os.PathLike[str], what: str) -> None:
    """Raises BadFileError where a file can't be written, before a long run rather than after it."""
    target = Path(path)
    try:
        if target.is_dir():
            raise BadFileError(path, f"is a folder; --{what} names a file")
        if not target.absolute().parent.is_dir():
            raise BadFileError(path, "its folder does not exist")
        if what == "snapshot" and target.suffix.lower() not in (".pickle", ".pkl"):
            # Not over a script whose name was taken for the option's.
            raise BadValueError("--snapshot", os.fspath(path), "a file that ends in .pickle or .pkl")
    except (OSError, ValueError) as error:
        raise BadFileError(path, f"is not a path that can be written ({error})") from None
    if not os.access(target.absolute().parent, os.W_OK):
        raise BadFileError(path, "its folder can't be written")


def check_picture(path: str | os.PathLike[str] | None) -> None:
    """Raises before a run what would go wrong after it: another kind of file, matplotlib missing."""
    if path is None:
        return
    check_output(path, "picture")
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".html"):
        raise BadValueError("--picture", os.fspath(path), "a file that ends in .png or .html")
    from importlib.util import find_spec

    if kind == ".png" and find_spec("matplotlib") is None:
        raise MissingExtraError("a PNG picture", "picture")


def write_picture(run: DryRun, path: str | os.PathLike[str]) -> None:
    """Write the timeline as .png or .html, whole or not at all; raises BadFileError, MissingExtraError."""
    check_picture(path)
    if Path(path).suffix.lower() == ".png":
        from loadmaster.render.dryrun_picture import dryrun_png

        write_whole(path, dryrun_png(run))
    else:
        from loadmaster.render.dryrun_page import dryrun_page

        write_whole(path, dryrun_page(run).encode("utf-8", "replace"))
