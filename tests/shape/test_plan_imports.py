"""``loadmaster plan`` and ``lm.plan`` stay light: no torch, no hub; NumPy only when a search begins."""

import pytest

import loadmaster

HEAVY = {"torch", "transformers", "huggingface_hub", "textual", "starlette"}
PLAN = ["plan", "Qwen/Qwen2.5-7B", "--gpu", "rtx4090"]  # 15.2 GB of bf16 weights on a card of 24 GiB
FITS = ["--task", "infer", "--seq", "1024", "--batch", "1"]
DOES_NOT_FIT = ["--task", "finetune", "--method", "full", "--seq", "1024", "--batch", "1"]


def command(arguments, code):
    return f"from loadmaster.cli.main import main; assert main({arguments}) == {code}"


@pytest.mark.parametrize("arguments", [["help", "plan"], ["plan", "--help"]])
def test_help_calls_no_workflow(arguments, loaded_by):
    modules = loaded_by(command(arguments, 0))
    assert {*HEAVY, "numpy", "pynvml"}.isdisjoint(modules)
    assert [m for m in modules if m.startswith(("loadmaster.workflows.", "loadmaster.memory."))] == []


@pytest.mark.parametrize("options", [[], ["--json"], ["--explain"]])
def test_a_plan_that_fits_needs_neither_numpy_nor_a_driver(options, loaded_by):
    assert {*HEAVY, "numpy", "pynvml"}.isdisjoint(loaded_by(command([*PLAN, *FITS, *options], 0)))


def test_a_ladder_needs_no_torch(loaded_by):
    assert HEAVY.isdisjoint(loaded_by(command([*PLAN, *DOES_NOT_FIT], 3)))


def test_a_plan_for_this_machine_needs_no_torch(loaded_by):
    arguments = ["plan", "Qwen/Qwen2.5-7B", "--gpu", "auto", *FITS]
    assert HEAVY.isdisjoint(
        loaded_by(f"from loadmaster.cli.main import main; assert main({arguments}) in (0, 3)")
    )


def test_the_function_needs_no_torch(loaded_by):
    assert HEAVY.isdisjoint(
        loaded_by(
            "import loadmaster as lm; lm.plan('Qwen/Qwen2.5-7B', gpu='rtx4090', method='lora', seq=4096)"
        )
    )


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import loadmaster.plan; ",
        "from loadmaster.workflows import plan; ",
        "from loadmaster import plan; ",
    ],
)
def test_plan_is_the_function_whatever_was_imported_before(first, python):
    code = f"{first}import json, loadmaster, loadmaster.plan\nprint(json.dumps(loadmaster.plan.__module__))"
    assert python(code) == "loadmaster.workflows.plan"


def test_the_room_is_still_imported_by_its_name(loaded_by):
    assert "loadmaster.plan" in loaded_by("import loadmaster; loadmaster.plan; import loadmaster.plan")


def test_plan_says_how_it_is_called():
    assert loadmaster.plan.__doc__
