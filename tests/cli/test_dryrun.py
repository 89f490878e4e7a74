"""``loadmaster dryrun`` as people and scripts call it: verdicts, scripts of all kinds, bad input, interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from loadmaster.cli.main import main
from loadmaster.cli.progress import ProgressLine
from loadmaster.cli.verbs.dryrun import arrange
from loadmaster.dryrun.request import Progress
from loadmaster.render.dryrun_json import DryRunFields

WIDTH = 1024
TRAIN = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--gpu")
said = parser.parse_args()
print("the script's own words", said.gpu)
model = torch.nn.Linear(said.width, said.width, bias=False).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(9):
    model(torch.zeros(8, said.width).to("cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("never reached")
"""


def shell(*arguments, cwd=None, **environment):
    """``loadmaster dryrun`` in a process of its own, piped."""
    return subprocess.run(
        [sys.executable, "-m", "loadmaster", "dryrun", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, cwd=cwd,
        env={**{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}, **environment},
    )  # fmt: skip


@pytest.fixture
def script(tmp_path):
    """Writes a script and gives its path."""

    def write(source, name="train.py"):
        path = tmp_path / name
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return path

    return write


@pytest.fixture
def refused(capsys):
    """What the command line says of a question that it refuses, and with which code."""

    def ask(*arguments):
        code = main(["dryrun", *map(str, arguments)])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "Traceback" not in printed.err
        return code, printed.err

    return ask


# Verdicts


def test_a_script_that_fits_and_its_own_words(script):
    done = shell("--vram", "2GiB", script(TRAIN), "--gpu", "mine")
    assert done.returncode == 0, done.stderr
    assert "✓ Fits: " in done.stdout
    assert done.stderr.splitlines()[0].endswith(
        "is run with your own rights, as python would run it (--no-script refuses)"
    )
    assert done.stderr.count("own rights") == 1
    assert "the script's own words mine" in done.stderr  # standard output is the answer alone
    assert "never reached" not in done.stderr + done.stdout


def test_an_option_behind_the_script_is_the_scripts_and_is_said_to_be(script):
    path = script(TRAIN)
    said = f"loadmaster: --gpu behind {path} goes to the script; for loadmaster it stands before that name\n"
    done = shell(path, "--gpu=rtx4090", "--width=8")
    assert done.returncode == 0, done.stderr
    assert "Name a card" in done.stdout
    assert done.stderr.count(said) == 1
    assert said not in shell("--vram", "2GiB", path, "--gpu", "mine", "--width", 8).stderr


def test_json_is_the_whole_record_and_sums_exactly(script):
    done = shell("--vram", "2GiB", "--json", script(TRAIN))
    found = msgspec.json.decode(done.stdout, type=DryRunFields)
    assert found.verdict == "fits"
    assert found.steps == 2
    assert sum(share.size_bytes for share in found.categories) == found.peak_allocated_bytes
    assert sum(share.size_bytes for share in found.modules) == found.peak_allocated_bytes
    # One matrix in float32, its gradient and AdamW's two moments are there at every optimizer step.
    assert found.peak_allocated_bytes >= 4 * 4 * WIDTH * WIDTH
    at_peak = [e for e in found.ledger.entries if e.phase == found.ledger.peak.phase]
    assert (
        sum(entry.bytes.likely for entry in at_peak)
        == found.ledger.peak.allocated.likely
        == found.peak_allocated_bytes
    )


def test_a_script_that_runs_out_says_where(script):
    # A matrix of 1 GiB doesn't fit what a card of 1 GiB leaves beside its context.
    done = shell("--vram", "1GiB", "--json", script(TRAIN), "--width", 16384)
    assert done.returncode == 3, done.stderr
    found = msgspec.json.decode(done.stdout, type=DryRunFields)
    assert (found.verdict, found.oom.phase) == ("runs_out", "load")
    assert found.oom.requested_bytes == 4 * 16384**2


@pytest.mark.slow
def test_a_model_by_name_beside_its_plan(tmp_path):
    snapshot, picture = tmp_path / "run.pickle", tmp_path / "run.html"
    done = shell(
        "HuggingFaceTB/SmolLM2-135M", "--vram", "24GiB", "--seq", 256, "--compare", "plan", "--snapshot", snapshot,
        "--picture", picture, "--explain", "--try-alloc-conf",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "Plan and dry run",
        "Largest tensors at the peak",
        "expandable_segments:True",
        "layers.* ×30",
        "Attention kernels",
    ):
        assert words in done.stdout
    assert picture.read_text().startswith("<!doctype html>")
    code = (
        "import pickle; from torch.cuda._memory_viz import trace_plot; "
        f"print(len(trace_plot(pickle.load(open({str(snapshot)!r}, 'rb')))))"
    )
    viewed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert int(viewed.stdout) > 10_000, viewed.stderr


@pytest.mark.slow
def test_a_model_that_does_not_fit_says_where():
    done = shell("HuggingFaceTB/SmolLM2-135M", "--vram", "1GiB", "--seq", 256, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert found["oom"]["capacity_bytes"] < found["peak_allocated_bytes"]
    assert found["oom"]["module"]
    assert found["oom"]["phase"] in ("forward", "backward", "optimizer step")


# Scripts that go wrong


@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("import torch\ntorch.zeros(1).cuda()\nraise ValueError('no\\nluck')", 1, "train.py, line 3: ValueError: no luck"),
        ("import sys\nsys.exit(7)", 1, "train.py ended with exit code 7"),
        ("import os\nos._exit(5)", 1, "its process was left with exit code 5"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", 1, "its process was ended by SIGSEGV"),
        ("x = ", 2, "is not Python, line 1"),
    ],
)  # fmt: skip
def test_a_script_that_goes_wrong_is_one_sentence(source, code, words, script):
    done = shell("--vram", "2GiB", script(source))
    assert (done.returncode, done.stdout) == (code, "")
    ours = [line for line in done.stderr.splitlines() if line.startswith("loadmaster: ")]
    assert words in ours[-1]


def test_a_script_that_never_steps_is_run_to_its_end(script):
    done = shell("--vram", "2GiB", script("import torch\nx = torch.zeros(2**20, device='cuda')"))
    assert done.returncode == 0
    assert "4.0 MiB" in done.stdout or " 4 " in done.stdout
    assert "the script ran to its end, with 0 optimizer steps" in " ".join(done.stdout.split())


def test_a_script_that_swallows_its_end_is_left(script):
    steps = TRAIN.replace("range(9)", "range(10**9)").replace(
        "    optimizer.step()", "    try: optimizer.step()\n    except: print(step)"
    )
    done = shell(script(steps))
    assert done.returncode == 0, done.stderr
    assert "own words None\n1\n2\n3" in done.stderr
    assert "stopped after 5 optimizer steps" in done.stdout


def test_a_script_that_handles_running_out_is_said_to(script):
    source = "import torch\ntry:\n    torch.empty(2**40, device='cuda')\nexcept torch.OutOfMemoryError:\n    pass\n"
    done = shell("--vram", "2GiB", script(source + "x = torch.zeros(9, device='cuda')"))
    assert done.returncode == 0
    assert "The program handles that and goes on." in " ".join(done.stdout.split())


def test_what_lies_in_the_working_folder_stands_for_nothing(script, tmp_path):
    (tmp_path / "train").mkdir()
    script("raise RuntimeError('this is not msgspec')", "msgspec.py")
    path = script("import torch\nx = torch.zeros(9, device='cuda')", "train/run.py")
    command = Path(sys.executable).with_name("loadmaster")  # the command's own path is not the working folder
    done = subprocess.run(
        [command, "dryrun", "--vram", "2GiB", path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_the_script_too(script, tmp_path):
    written = tmp_path / "pid"
    path = script(f"import os, time\nopen({str(written)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    started = subprocess.Popen(
        [sys.executable, "-m", "loadmaster", "dryrun", "--vram", "2GiB", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (written.exists() and written.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (130, "")
    assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


# Questions that are refused before anything is run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Qwen/Qwen2.5-0.5X"], "unknown model|not in the catalogue|hub"),
        (["no-such-model-at-all"], "unknown model"),
        ([], "no model named"),
        (["missing.py"], "missing.py: there is no such file"),
        (["Qwen/Qwen2.5-0.5B", "--vram", "a lot"], "memory size is 'a lot'; expected a size such as 24GiB"),
        (["--vram", "24", "Qwen/Qwen2.5-0.5B"], "a unit: 24 of what"),
        (["Qwen/Qwen2.5-0.5B", "--gpu", "rtx4090", "--vram", "24GiB"], "a card has one size"),
        (["Qwen/Qwen2.5-0.5B", "--steps", "0"], "steps is 0"),
        (["Qwen/Qwen2.5-0.5B", "--steps", "many"], "--steps is 'many'"),
        (["Qwen/Qwen2.5-0.5B", "--alloc-conf", "expandable_segmnts:True"], "expandable_segments"),
        (["Qwen/Qwen2.5-0.5B", "--try-alloc-conf", "max_split_size_mb:1"], "max_split_size_mb"),
        (["Qwen/Qwen2.5-0.5B", "--picture", "run.gif"], "a file that ends in .png or .html"),
        (["Qwen/Qwen2.5-0.5B", "--picture", "nowhere/run.png"], "its folder does not exist"),
        (["Qwen/Qwen2.5-0.5B", "--snapshot", "train.py"], "a file that ends in .pickle or .pkl"),
        (["Qwen/Qwen2.5-0.5B", "--assume", "sort"], "NAMESPACE::OP=RULE"),
        (["Qwen/Qwen2.5-0.5B", "--compare", "rain"], "invalid choice: 'rain'"),
        (["Qwen/Qwen2.5-0.5B", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["Qwen/Qwen2.5-0.5B", "and", "more"], "unrecognized arguments: and more"),
        (["Qwen/Qwen2.5-0.5B", "--gpus", "4", "--tensor-parallel", "3"], "a divisor of the 4 GPUs"),
        (["--no-script", "package.module:build"], "--no-script says that none may run"),
    ],
)
def test_a_wrong_question_is_one_sentence(arguments, words, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, said = refused(*arguments)
    assert code == 2 or "hub" in words
    assert re.search(words, said), said
    assert len(said.splitlines()) <= 2


def test_no_script_refuses_scripts(refused, script):
    code, said = refused("--no-script", script(TRAIN))
    assert code == 2
    assert "--no-script says that none may run" in said


def test_options_of_a_job_are_not_for_scripts(refused, script):
    code, said = refused("--method", "lora", "--seq", "4", script(TRAIN))
    assert code == 2
    assert "--method, --seq: for a model by name" in said
    assert "options of the script itself come after its name" in said


def test_a_folder_is_no_snapshot_and_no_script(refused, tmp_path):
    assert "is a folder; --snapshot names a file" in refused("Qwen/Qwen2.5-0.5B", "--snapshot", tmp_path)[1]
    (tmp_path / "folder.py").mkdir()
    assert "is a folder, not a script" in refused(tmp_path / "folder.py")[1]


def test_a_script_that_may_not_be_read(refused, script, monkeypatch):
    path = script(TRAIN)

    def forbidden(_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    code, said = refused(path)
    assert (code, said) == (2, f"loadmaster: {path}: can't be read (Permission denied)\n")


def test_a_script_that_is_no_text(refused, script):
    code, said = refused(script(b"print('\xff\xfe')\n"))
    assert code == 2
    assert "is not" in said


def test_without_torch_the_install_command_is_told(refused, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest)
    )
    code, said = refused("Qwen/Qwen2.5-0.5B")
    assert code == 1
    assert (
        said
        == "loadmaster: a dry run needs an optional part; install it with: pip install 'loadmaster[dryrun]'\n"
    )


# Words


@pytest.mark.parametrize(
    ("words", "arranged"),
    [
        (["--try-alloc-conf", "train.py"], ["--try-alloc-conf=", "train.py"]),
        (["--try-alloc-conf", "Qwen/Qwen2.5-7B"], ["--try-alloc-conf=", "Qwen/Qwen2.5-7B"]),
        (["--try-alloc-conf", "my_models:build"], ["--try-alloc-conf=", "my_models:build"]),
        (
            ["--try-alloc-conf", "expandable_segments:True", "x"],
            ["--try-alloc-conf", "expandable_segments:True", "x"],
        ),
        (["--try-alloc-conf", "max_split_size_mb:64"], ["--try-alloc-conf", "max_split_size_mb:64"]),
        (["gpt2", "--try-alloc-conf"], ["gpt2", "--try-alloc-conf="]),
        (["train.py", "--try-alloc-conf", "y"], ["train.py", "--try-alloc-conf", "y"]),
    ],
)
def test_settings_to_try_do_not_swallow_the_program(words, arranged):
    assert arrange(words) == arranged


# Progress


class Terminal:
    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def fileno(self):
        raise OSError

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_is_shown_after_a_while_and_taken_away(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "70")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line = ProgressLine()
    line.progress(Progress(text="step 1 of 2, forward: 10 operators", done=0.5, total=2))
    assert terminal.text == ""
    now[0] = 3.0
    line.progress(None)
    assert terminal.text == "\r\x1b[K█████░░░░░░░░░░░░░░░ step 1 of 2, forward: 10 operators, 3 s"
    line.output(b"hello\n")
    line.clear()
    assert terminal.text.endswith("\r\x1b[Khello\n")


def test_a_file_gets_no_progress(monkeypatch, capsys):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    line = ProgressLine()
    monkeypatch.setattr(time, "monotonic", lambda: 9.0)
    line.progress(Progress(text="step 1"))
    line.clear()
    assert capsys.readouterr().err == ""
