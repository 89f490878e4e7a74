"""What can go wrong, as a tree; every error is one sentence and knows its exit code.

LoadmasterError                exit 1
├── UsageError                 exit 2: the question was wrong
│   ├── UnknownNameError       a name that nothing has, with the nearest ones
│   ├── AmbiguousNameError     a name that several things have, with the choices
│   ├── BadValueError          a value outside what its field can be
│   └── BadFileError           a file that is missing, corrupt or not what it should be
├── MissingExtraError          exit 1: an optional part is not installed, with the install command
└── OfflineError               exit 1: something had to be fetched and could not
"""

from __future__ import annotations

from collections.abc import Iterable


class LoadmasterError(Exception):
    """Base of every error this package raises on purpose; ``str(error)`` is one clear sentence."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(LoadmasterError):
    """The question was wrong: exit code 2."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that nothing has; ``near`` holds the nearest ones, best first."""

    def __init__(self, kind: str, name: str, near: Iterable[str] = (), *, hint: str | None = None) -> None:
        self.kind, self.name, self.near = kind, name, tuple(near)
        asked = f"; did you mean {_either(self.near)}?" if self.near else ""
        super().__init__(f"unknown {kind} {name!r}{asked}", hint=hint)


class AmbiguousNameError(UsageError):
    """A name that several things have; ``choices`` holds names that are exact."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        self.kind, self.name, self.choices = kind, name, tuple(choices)
        super().__init__(f"{kind} {name!r} is ambiguous; say which: {', '.join(self.choices)}")


class BadValueError(UsageError):
    """A value outside what its field can be: ``field``, what was given, what was expected."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(f"{field} is {value!r}; expected {expected}")


class BadFileError(UsageError):
    """A file that is missing, corrupt or not what it should be; ``path`` and the reason are in the sentence."""

    def __init__(self, path: object, reason: str, *, hint: str | None = None) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{path}: {reason}", hint=hint)


class MissingExtraError(LoadmasterError):
    """An optional part is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs an optional part; install it with: pip install 'loadmaster[{extra}]'")


class OfflineError(LoadmasterError):
    """Something had to be fetched and could not be."""


def _either(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
