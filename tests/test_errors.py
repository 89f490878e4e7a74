"""The error tree: every error is a LoadmasterError, one sentence, and ends in the exit code that README promises."""

import inspect

import pytest

from loadmaster import errors

EXIT_CODES = {  # 1: failure, 2: the question was wrong
    "LoadmasterError": 1,
    "UsageError": 2,
    "UnknownNameError": 2,
    "AmbiguousNameError": 2,
    "BadValueError": 2,
    "BadFileError": 2,
    "MissingExtraError": 1,
    "OfflineError": 1,
}


def test_every_error_has_the_exit_code_it_is_documented_with():
    found = {
        name: error.exit_code
        for name, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, Exception)
    }
    assert found == EXIT_CODES


@pytest.mark.parametrize("name", EXIT_CODES)
def test_every_error_is_in_the_tree_and_in_its_drawing(name):
    assert issubclass(getattr(errors, name), errors.LoadmasterError)
    assert name in errors.__doc__


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.UnknownNameError("GPU", "rtx4091"), "unknown GPU 'rtx4091'"),
        (
            errors.UnknownNameError("GPU", "rtx4091", ["RTX 4090"]),
            "unknown GPU 'rtx4091'; did you mean RTX 4090?",
        ),
        (
            errors.UnknownNameError("GPU", "h", ["H100", "H200", "H20"]),
            "unknown GPU 'h'; did you mean H100, H200 or H20?",
        ),
        (
            errors.AmbiguousNameError("GPU", "a100", ["A100 40GB", "A100 80GB"]),
            "GPU 'a100' is ambiguous; say which: A100 40GB, A100 80GB",
        ),
        (errors.BadValueError("batch", 0, "1 or more"), "batch is 0; expected 1 or more"),
        (errors.BadFileError("config.json", "is not JSON"), "config.json: is not JSON"),
        (
            errors.MissingExtraError("the dry run", "dryrun"),
            "the dry run needs an optional part; install it with: pip install 'loadmaster[dryrun]'",
        ),
    ],
)
def test_an_error_is_one_clear_sentence(error, sentence):
    assert str(error) == sentence


def test_a_hint_is_kept_apart_from_the_sentence():
    error = errors.OfflineError("the hub can't be reached", hint="download it first")
    assert (str(error), error.hint) == ("the hub can't be reached", "download it first")
