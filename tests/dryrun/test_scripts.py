"""Training scripts as they are, with plain loops. Bytes are worked out from the script's own shapes."""

from __future__ import annotations

import os
import sys
import textwrap

import pytest
import torch
from tests.dryrun.running import WORKSPACE, block, run
from tests.dryrun.tiny import llama_shapes, make_folder

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.scripts.run import run_script
from loadmaster.errors import BadFileError, LoadmasterError

LIBRARY = torch.library.Library("odd", "DEF")
LIBRARY.define("raw(Tensor x) -> Tensor")


def write(folder, text):
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return path


def test_a_loop_with_workers_and_pinned_memory(tmp_path):
    ran = run(tmp_path / "work", "cnn_loop.py", "--batch", 64)
    assert ran.code == 0, ran.errors
    shapes = [32 * 3 * 9, 32, 32, 32, 64 * 32 * 9, 64, 64, 64, 10 * 64 * 64, 10]
    weights = sum(block(4 * each) for each in shapes)
    statistics = (
        2 * (2 * block(32 * 4)) // 2 + 2 * block(64 * 4) + 2 * block(8)
    )  # running mean and variance, batches seen
    batch = 64 * 3 * 32 * 32 * 4 + block(64 * 8)
    # After the first step: weights, gradients and momentum; the loss.
    assert ran.peaks[1, "optimizer step"] == 3 * weights + statistics + batch + 512 + 2 * WORKSPACE
    assert ran.run.steps == 2
    assert "loss 1.000" in ran.out
    assert any(each.asker.endswith("cnn_loop.py:40") for each in ran.run.answers)
    assert any("stopped after 2 optimizer steps" in each for each in ran.run.notes)


def test_to_the_end_with_evaluation_and_without_its_files(tmp_path):
    ran = run(tmp_path / "work", "cnn_loop.py", "--batch", 128, "--out", "here.pt", steps=99)
    assert ran.code == 0, ran.errors
    assert ran.run.steps == 2
    assert dict(ran.run.skipped) == {"torch.save": 1}
    assert list((tmp_path / "work").iterdir()) == []
    assert (3, "evaluate") in ran.peaks
    assert any("ran to its end, with 2 optimizer steps" in each for each in ran.run.notes)


def test_float16_with_a_scaler_fused_adamw_and_generation(tmp_path):
    """Between steps: float32 weights and two moments, step counts of fused AdamW on the device; the batch; scale, growth
    tracker, loss and norm; the cuBLAS workspaces. The head is tied."""
    ran = run(tmp_path / "work", "gpt2_amp.py", steps=9)
    assert ran.code == 0, ran.errors
    width, vocabulary, positions, layers = 256, 5000, 128, 2
    layer = [
        width, width, width * 3 * width, 3 * width, width * width, width, width, width, width * 4 * width, 4 * width,
        4 * width * width, width,
    ]  # fmt: skip
    shapes = [vocabulary * width, positions * width, *(layer * layers), width, width]
    weights = sum(block(4 * each) for each in shapes)
    expected = 3 * weights + 512 * len(shapes) + 4 * 128 * 8 + 4 * 512 + 2 * WORKSPACE
    assert ran.out.splitlines()[:2] == [f"scale 65536.0 allocated {expected}"] * 2
    assert "torch.Size([4, 12])" in ran.out
    assert ran.run.steps == 2
    assert any("torch.compile is left out" in each for each in ran.run.notes)


def test_a_checkpoint_of_which_only_the_header_is_there(tmp_path):
    """bfloat16 weights, gradients, two moments and one temporary of the foreach kernels; rotary frequencies twice (of 32
    numbers); the batch and the loss."""
    folder = make_folder(tmp_path / "tiny")
    ran = run(tmp_path / "work", "llama_local.py", folder, tmp_path / "out")
    assert ran.code == 0, ran.errors
    weights = sum(
        block(2 * shape[0] * (shape[1] if len(shape) > 1 else 1)) for shape in llama_shapes().values()
    )
    buffers, small = 2 * 512, 2 * 256 * 8 + 512
    assert f"loaded {weights + buffers}" in ran.out
    assert f"allocated {3 * weights + buffers + small + 2 * WORKSPACE}" in ran.out
    assert ran.peaks[1, "optimizer step"] == 5 * weights + buffers + small + 2 * WORKSPACE
    assert ran.run.steps == 2
    assert not (tmp_path / "out").exists()
    assert dict(ran.run.attention).keys() == {"flash"}


def here(path, *argv, steps=2, limit=0, assume=()):
    """In this process: for scripts that use torch only."""
    card = Card(limited=True, usable_bytes=limit, total_bytes=limit) if limit else None
    return run_script(path, [str(each) for each in argv], card, steps=steps, assume=assume)


def test_running_out_of_memory_is_a_result(tmp_path):
    script = write(
        tmp_path,
        """
        import sys, torch
        model = torch.nn.Linear(1024, 1024).cuda()
        try:
            model(torch.ones(2**20, 1024, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            sys.exit("out of memory")
        """,
    )
    found = here(script, limit=64 * 2**20)
    assert found.oom is not None
    assert found.oom.requested_bytes == 4 * 2**30
    assert (found.oom.op, found.oom.handled) == ("ones", False)


def test_a_script_that_finds_its_batch_goes_on(tmp_path, capsys):
    """16384 rows of 1024 in float32 are 64 MiB for the input alone: too much beside its output and weights. Half is tried until
    all is there."""
    script = write(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(1024, 1024).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch, step = 16384, 0
        while step < 9:
            try:
                model(torch.ones(batch, 1024, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                batch //= 2
                torch.cuda.empty_cache()
                print("batch", batch)
        """,
    )
    found = here(script, limit=100 * 2**20)
    tried = [int(each) for each in capsys.readouterr().out.split()[1::2]]
    assert tried == [16384 >> times for times in range(1, len(tried) + 1)]
    assert 2 * 4096 * tried[-1] < 100 * 2**20  # input and output
    assert found.oom is not None
    assert found.oom.handled
    assert found.steps == 2


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x.cpu().nump()", "train.py, line 4: AttributeError: 'Tensor' object has no attribute 'nump'"),
        ("x.numpy()", "train.py, line 4: TypeError: can't convert cuda:0 device type tensor to numpy."),
        (
            "torch.ones(1, device='cuda:1')",
            "train.py, line 4: cuda:1: this dry run simulates one GPU",
        ),
        ("raise SystemExit(3)", "train.py ended with exit code 3"),
        ("raise SystemExit('no data')", "train.py ended with exit code 1: no data"),
        ("x.cpu().to_sparse().cuda()", "train.py, line 4: sparse tensors aren't simulated"),
        ("torch.ops.odd.raw(x)", "train.py, line 4: odd::raw has no fake kernel"),
        ("def", "train.py, line 4: SyntaxError"),
    ],
)
def test_what_fails_is_one_sentence_with_the_scripts_line(tmp_path, line, sentence):
    script = write(
        tmp_path,
        f"""
        import torch
        x = torch.ones(3, device="cuda")
        {line}
        """,
    )
    before = sys.argv, list(sys.path), dict(os.environ)
    with pytest.raises(LoadmasterError) as caught:
        here(script)
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code == 1
    assert before == (sys.argv, sys.path, dict(os.environ))
    assert not torch.cuda.is_available()


def test_a_script_runs_as_python_would_run_it_and_can_not_swallow_its_end(tmp_path, capsys):
    """With two optimizers both make their steps: the second round ends with the second one's."""
    script = write(
        tmp_path,
        """
        import os, sys
        import torch
        import beside
        assert __name__ == "__main__", __name__
        print(sys.argv[1:], beside.NAME, os.path.basename(sys.argv[0]), os.environ["HF_HUB_OFFLINE"])
        model = torch.nn.Linear(8, 8).cuda()
        one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
        for step in range(100):
            try:
                model(torch.ones(2, 8, device="cuda")).sum().backward()
                one.step()
                print("one")
                other.step()
                print("other")
            except Exception:
                print("swallowed")
        """,
    )
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    found = here(script, "--lr", 0.1)
    assert capsys.readouterr().out.splitlines() == [
        "['--lr', '0.1'] beside train.py 1", "one", "other", "one",
    ]  # fmt: skip
    assert found.steps == 4
    assert found.program.endswith("train.py --lr 0.1")


def test_an_optimizer_that_steps_seldom_is_waited_for_and_one_that_never_does_is_named(tmp_path):
    """A critic that makes five steps for one of the generator's: ten and two. Adam has two moments of each matrix then."""
    script = write(
        tmp_path,
        """
        import sys, torch
        parts = [torch.nn.Linear(1024, 1024, bias=False).cuda() for _ in range(2)]
        critic, generator = (torch.optim.Adam(part.parameters()) for part in parts)
        for step in range(1000):
            parts[0](torch.ones(2, 1024, device="cuda")).sum().backward()
            critic.step()
            critic.zero_grad()
            if step % 5 == 4 and len(sys.argv) == 1:
                parts[1](torch.ones(2, 1024, device="cuda")).sum().backward()
                generator.step()
                generator.zero_grad()
        """,
    )
    found = here(script)
    assert found.steps == 12
    states = {share.name: share.size_bytes for share in found.categories}["optimizer states"]
    assert states == 4 * 2**22
    found = here(script, "never")
    assert found.steps == 20
    assert any("made no step until then" in note and note.endswith("Adam") for note in found.notes)


def test_an_assumed_operator_is_counted(tmp_path):
    script = write(
        tmp_path,
        """
        import torch
        x = torch.ops.odd.raw(torch.ones(1000, device="cuda"))
        """,
    )
    found = here(script, assume=("odd::raw=like:0,float64",))
    assert found.peak_allocated_bytes == block(4000) + block(8000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained('someone/no-model')",
        "import datasets; datasets.load_dataset('someone/no-data')",
    ],
)
def test_what_is_not_in_the_cache_is_not_asked_of_a_network(tmp_path, line):
    ran = run(tmp_path / "work", write(tmp_path / "s", line))
    assert ran.code == 1
    assert (
        "OfflineError: train.py, line 1: the script asks for something of the Hugging Face Hub" in ran.errors
    )


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BadFileError, match="there is no such file"):
        here(tmp_path / "none.py")
