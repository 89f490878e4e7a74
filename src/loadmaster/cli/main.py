"""``loadmaster VERB``: finds the verb's file, parses its options, runs it and turns errors into one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from loadmaster import __version__
from loadmaster.errors import LoadmasterError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_VERBS = Path(__file__).with_name("verbs")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Knows its width: argparse makes a formatter for every parser and would load shutil to ask for the terminal's."""

    def __init__(self, prog: str) -> None:
        columns = os.environ.get("COLUMNS", "")
        try:
            width = int(columns) if columns else os.get_terminal_size().columns
        except (OSError, ValueError):
            width = 80
        super().__init__(prog, width=max(width, 20) - 2)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are UsageErrors, so that every error is printed the same way."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving."""
        raise UsageError(message, hint=f"{self.prog} --help lists the options")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print; argparse itself says nothing where that fails."""
        (file or sys.stdout).write(self.format_help())


def verbs() -> dict[str, str]:
    """Every verb with the first line of its docstring, read without importing it."""
    import ast

    found = {}
    for path in _verb_files():
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem.replace("_", "-")] = doc.partition("\n")[0]
    return found


def _verb_files() -> list[Path]:
    return sorted(_VERBS.glob("[!_]*.py"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 yes, 1 failure, 2 usage, 3 does not fit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:
        _complain("standard output is closed, so there is nowhere to print to")
        return 1
    if isinstance(sys.stdout, TextIOWrapper):
        # A name may hold bytes that are no text; a question mark is better than no answer.
        sys.stdout.reconfigure(errors="replace")
    with _interruptible():
        try:
            code = _dispatch(arguments)
            sys.stdout.flush()
            return code
        except LoadmasterError as error:
            _complain(str(error), error.hint)
            return error.exit_code
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            # The reader of a pipe has left (``| head``); say nothing.
            _drop_output()
            return 1
        except UnicodeEncodeError:
            _complain("a name holds bytes that are not UTF-8, which JSON can't hold")
            return 2
        except OSError as error:
            _drop_output()
            what = error.filename or "standard output can't be written"
            _complain(f"{what}: {error.strerror or error}")
            return 1


def _complain(sentence: str, hint: str | None = None) -> None:
    """One line on standard error and one for the hint; a terminal gets them wrapped."""
    if sys.stderr is None:
        return
    lines = [f"loadmaster: {sentence}", *([f"  {hint}"] if hint else [])]
    with suppress(OSError):
        if sys.stderr.isatty():
            from loadmaster.render.terminal import look_of, plain, wrap

            look = look_of(sys.stderr)
            wrapped = [
                wrap(plain(line.strip()), look.width, first="  " * bool(n), indent="  ")
                for n, line in enumerate(lines)
            ]
            sys.stderr.write(look.out(line for part in wrapped for line in part))
        else:
            sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def _drop_output() -> None:
    """What is still in the buffer goes nowhere, also at interpreter shutdown."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Control-C ends the program also where Python can't raise it, in a ``__del__``: it would be printed and lost."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            os._exit(130)
        before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["help"] and arguments[1:]:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"loadmaster {__version__}\n")
        return 0
    name = arguments[0]
    files = {path.stem.replace("_", "-"): path.stem for path in _verb_files()}
    if name not in files:
        import difflib

        near = difflib.get_close_matches(name, files, n=2)
        raise UnknownNameError("command", name, near, hint="loadmaster --help lists the commands")
    module = importlib.import_module(f"loadmaster.cli.verbs.{files[name]}")
    parser = Parser(
        prog=f"loadmaster {name}",
        description=module.__doc__,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    words = arguments[1:]
    if hasattr(module, "arrange"):  # a verb that reads its words otherwise than argparse would
        words = module.arrange(words)
    try:
        return int(module.run(parser.parse_args(words)))
    except SystemExit as leaving:  # --help
        return leaving.code if isinstance(leaving.code, int) else 0


def _help() -> str:
    lines = [
        "Loadmaster: what fits, where each piece goes, before the job starts.",
        "",
        "usage: loadmaster COMMAND [options]",
        "",
        "commands:",
    ]
    lines += [f"  {name:<10} {text}" for name, text in verbs().items()]
    lines += [
        "",
        "loadmaster COMMAND --help tells more. Exit codes: 0 yes, 1 failure, 2 usage, 3 does not fit.",
        "",
    ]
    return "\n".join(lines)
