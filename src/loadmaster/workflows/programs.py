"""What the first word of ``loadmaster dryrun`` names: a model, a factory of the user's, or a script."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from loadmaster.errors import BadFileError

Kind = Literal["model", "factory", "script"]
_FACTORY = re.compile(r"(?:[A-Za-z_][\w.]*|.*\.py):[A-Za-z_]\w*")
BUILD = "build"


def kind_of(target: Any, argv: Sequence[str] = ()) -> Kind:
    """``pkg.module:factory`` and ``file.py:factory`` are factories, and so is a file.py that has a ``build()`` and nothing that
    runs as a script; every other file.py is a script; anything else is a model. Raises BadFileError for a file.py that
    can't be read."""
    text = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
    text = os.fsdecode(text) if isinstance(text, bytes) else text
    if _FACTORY.fullmatch(text) and not Path(text).exists():
        return "factory"
    if not text.endswith(".py"):
        return "model"
    return "factory" if not argv and _has_build(Path(text)) else "script"


def named(kind: Kind, target: Any) -> str:
    """The target as a request names it: a factory as ``where:function``."""
    text = os.fsdecode(os.fspath(target))
    return f"{text}:{BUILD}" if kind == "factory" and text.endswith(".py") else text


def _has_build(path: Path) -> bool:
    try:
        if path.is_dir():
            raise BadFileError(path, "is a folder, not a script")
        source = path.read_bytes()
    except FileNotFoundError:
        raise BadFileError(path, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise BadFileError(path, f"can't be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        body = ast.parse(source).body
    except UnicodeDecodeError:
        raise BadFileError(path, "is not text in the encoding that it says or in UTF-8") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise BadFileError(path, f"is not Python{line}: {reason}") from None
    main = any(isinstance(each, ast.If) and "__name__" in ast.dump(each.test) for each in body)
    return not main and any(
        isinstance(each, ast.FunctionDef) and each.name == BUILD and _without_arguments(each.args)
        for each in body
    )


def _without_arguments(arguments: ast.arguments) -> bool:
    needed = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return needed == 0 and all(default is not None for default in arguments.kw_defaults)
