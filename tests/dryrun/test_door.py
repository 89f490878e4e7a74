"""``lm.dryrun`` and factories: a module with its step, a block of code, a function of the user's."""

import msgspec
import pytest
import torch
from torch import nn

import loadmaster as lm
from loadmaster.dryrun.factories import FactoryError, parts_of, run_factory
from loadmaster.errors import BadFileError, BadValueError, UnknownNameError, UsageError
from loadmaster.units import MIB
from loadmaster.workflows.dryrun import ask
from loadmaster.workflows.programs import kind_of

WIDTH = 1024
MATRIX = 4 * WIDTH * WIDTH
WORKSPACE = 8_519_680
"""cuBLAS's default of 8,519,680 bytes for each thread that multiplies on a card before Hopper (CUDABlas.cpp)."""


@pytest.fixture
def square():
    return nn.Linear(WIDTH, WIDTH, bias=False)


# A module and its step


def test_a_module_with_a_step_takes_what_arithmetic_says(square):
    def step(model, batch, optimizer):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = lm.dryrun(
        square,
        torch.zeros(1, WIDTH),
        step=step,
        optimizer=lambda p: torch.optim.SGD(p, momentum=0.9, foreach=False),
    )
    shares = {share.name: share.size_bytes for share in run.categories}
    assert shares["parameters"] == shares["gradients"] == MATRIX
    assert run.fits is None
    assert run.steps == 2
    assert not square.weight.is_cuda
    assert square.weight.grad is None  # the module given is as it was


def test_a_card_that_is_too_small_is_a_verdict_not_an_error(square):
    run = lm.dryrun(square, torch.zeros(1, WIDTH), vram=300 * MIB + 4 * MATRIX)
    assert run.fits is False
    assert run.oom.capacity_bytes == run.capacity_bytes
    assert "runs out of memory" in repr(run)


def test_a_step_that_raises_raises(square):
    def step(model, batch):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        lm.dryrun(square, torch.zeros(1, WIDTH), step=step)


def test_settings_are_tried_on_the_same_run(square):
    run = lm.dryrun(square, torch.zeros(1, WIDTH), try_alloc_conf=True)
    assert {"", "expandable_segments:True"} <= {setting.conf for setting in run.settings}
    assert all(setting.fits is None for setting in run.settings)


# A block of code


def test_in_a_block_the_card_that_was_named_is_there():
    with lm.dryrun(vram="1GiB") as d:
        held = torch.zeros(WIDTH, WIDTH, device="cuda")
        assert torch.cuda.is_available()
        assert torch.cuda.memory_allocated() == MATRIX
        assert torch.cuda.get_device_properties(0).total_memory == 2**30
        del held
    assert d.result.peak_allocated_bytes == MATRIX
    assert d.result.fits
    assert not torch.cuda.is_available()


def test_running_out_in_a_block_raises_and_is_in_the_result(tmp_path):
    snapshot = tmp_path / "run.pickle"
    with pytest.raises(torch.OutOfMemoryError), lm.dryrun(vram="1GiB", snapshot=snapshot) as d:
        torch.zeros(2**30, device="cuda")
    assert d.result.fits is False
    assert snapshot.exists()


def test_a_block_is_tried_without_a_limit_under_other_settings():
    with lm.dryrun(vram="1GiB", try_alloc_conf=["expandable_segments:True"]) as d:
        held = torch.zeros(2**30, device="cuda")
        del held
    assert [setting.fits for setting in d.result.settings] == [False, False]
    assert d.result.oom.requested_bytes == 4 * 2**30


# Words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"model": 3}, "model is 'int'"),
        ({"model": "gpt2", "batch": torch.zeros(3)}, "a number of sequences where a model is named"),
        ({"method": "lora"}, "method: words for a model by name"),
        ({"vram": "1GiB", "steps": 0}, "steps is 0"),
        ({"vram": "1GiB", "alloc_conf": "nonsense"}, "nonsense"),
        ({"vram": "1GiB", "picture": "run.jpeg"}, "ends in .png or .html"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(words, said):
    with pytest.raises(UsageError, match=said):
        lm.dryrun(**words)


def test_the_environments_settings_are_the_runs_own(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert ask("gpt2", vram="24GiB").request.conf == "expandable_segments:True"
    assert ask("gpt2", vram="24GiB", alloc_conf="").request.conf == ""


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("m3max", "Apple M3 Max has no CUDA"), ("mi300x", "Instinct MI300X has no CUDA"), ("rtx4090", "")],
)
def test_a_card_without_cuda_is_said_to_be_one(gpu, said):
    for asked in (ask(params="100M", gpu=gpu), ask(__file__, gpu=gpu)):
        assert [said] * bool(said) == [note[: len(said)] for note in asked.notes if "CUDA:" in note]


def test_a_request_survives_the_pipe():
    asked = ask("Qwen/Qwen2.5-0.5B", vram="24GiB", method="lora", gpus=2, strategy="ddp").request
    assert msgspec.json.decode(msgspec.json.encode(asked), type=type(asked)) == asked
    assert asked.layout == {"gpus": 2, "strategy": "ddp"}


@pytest.mark.parametrize(
    ("source", "arguments", "kind"),
    [
        ("def build():\n    return 1", (), "factory"),
        ("def build():\n    return 1", ("--epochs", "1"), "script"),
        ("def build(path):\n    return 1", (), "script"),
        ("def build():\n    return 1\nif __name__ == '__main__':\n    build()", (), "script"),
        ("print(1)", (), "script"),
    ],
)
def test_a_file_is_a_factory_or_a_script(source, arguments, kind, tmp_path):
    path = tmp_path / "thing.py"
    path.write_text(source)
    assert kind_of(path, arguments) == kind
    assert kind_of(f"{path}:build") == "factory"


def test_what_is_no_file_of_python_is_a_model_or_a_factory():
    assert [kind_of(name) for name in ("gpt2", "Qwen/Qwen2.5-7B", "pkg.mod:make", "config.json")] == [
        "model", "model", "factory", "model",
    ]  # fmt: skip


# Factories


BUILD = """
import torch
from torch import nn

def build():
    model = nn.Linear(1024, 1024, bias=False)
    return {RETURNS}
"""


@pytest.fixture
def factory(tmp_path):
    def write(returns, name="build"):
        path = tmp_path / "a_factory.py"
        path.write_text(BUILD.replace("{RETURNS}", returns))
        return f"{path}:{name}"

    return write


@pytest.mark.parametrize(
    "returns",
    [
        "model, torch.zeros(1, 1024), lambda out: out.sum(), lambda p: torch.optim.SGD(p, foreach=False)",
        "{'model': model, 'batch': [torch.zeros(1, 1024)], 'optimizer': torch.optim.SGD(model.parameters(), foreach=False)}",
        "model.to('meta'), {'input': torch.zeros(1, 1024)}, lambda out: out.mean(), torch.optim.SGD",
    ],
)
def test_a_factory_takes_what_arithmetic_says(returns, factory):
    run = run_factory(factory(returns))
    shares = {share.name: share.size_bytes for share in run.categories}
    assert shares["parameters"] == shares["gradients"] == MATRIX
    assert shares["workspace"] == 2 * WORKSPACE
    assert run.peak_allocated_bytes < 2 * MATRIX + 2 * WORKSPACE + 64 * 1024


@pytest.mark.parametrize(
    ("returns", "name", "error", "said"),
    [
        ("model", "build", BadValueError, r"what the factory returns is 'Linear'; expected \(model, batch\)"),
        ("3, torch.zeros(1)", "build", BadValueError, "the factory's model is 'int'"),
        ("model, torch.zeros(1, 1024), 3", "build", BadValueError, "the factory's loss is 'int'"),
        ("model, None", "build", BadValueError, "the factory's batch is None"),
        ("model, torch.zeros(1, 7)", "build", FactoryError, "RuntimeError: "),
        ("model, missing", "build", FactoryError, "in a_factory.py, line 7: NameError: name 'missing'"),
        ("1", "biuld", UnknownNameError, "'biuld'; did you mean build?"),
    ],
)
def test_a_factory_that_goes_wrong_is_one_sentence(returns, name, error, said, factory, capsys):
    with pytest.raises(error, match=said):
        run_factory(factory(returns, name))


def test_a_file_that_asks_for_arguments_or_ends_finds_none_and_is_one_sentence(factory, tmp_path, capfd):
    path = tmp_path / "asks.py"
    path.write_text("import sys\nassert sys.argv == [__file__], sys.argv\nsys.exit('no data')\n")
    with pytest.raises(
        FactoryError, match=r"asks\.py can't be imported in asks.py, line 3: SystemExit: no data"
    ):
        run_factory(f"{path}:build")
    with pytest.raises(FactoryError, match="json:loads failed: TypeError: loads"):
        run_factory("json:loads")
    assert "loadmaster" not in capfd.readouterr().err


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(BadFileError, match="no_such_module: there is no module of this name"):
        run_factory("no_such_module:build")


def test_parts_have_places_and_names(square):
    batch = torch.zeros(1)
    assert parts_of((square, batch))[:2] == (square, batch)
    assert parts_of({"model": square, "batch": batch, "loss": torch.sum}).loss is torch.sum
