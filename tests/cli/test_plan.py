"""``loadmaster plan`` as people and scripts call it."""

import json
import os
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from loadmaster.cli.main import main
from loadmaster.jobs import job as jobs
from loadmaster.jobs import optimizers

MODEL, CARD = "Qwen/Qwen2.5-0.5B", ["--gpu", "rtx4090"]
DOES_NOT_FIT = ["Qwen/Qwen2.5-7B", *CARD, "--method", "lora", "--seq", "4096"]


@pytest.fixture
def ask(capsys, monkeypatch):
    """Runs ``loadmaster plan`` here; gives exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        code = main(["plan", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def shell(*arguments, **environment):
    """The same in a process of its own, piped."""
    return subprocess.run(
        [sys.executable, "-m", "loadmaster", "plan", *arguments],
        capture_output=True, timeout=60, check=False,
        env={**{k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "verdict"),
    [
        ([MODEL, *CARD, "--task", "infer"], 0, "✓ Fits"),
        ([*DOES_NOT_FIT, "--checkpointing", "full"], 0, "! Tight"),
        (DOES_NOT_FIT, 3, "✗ Does not fit"),
        (["--params", "7B", "--vram", "24GiB", "--method", "qlora", "--seq", "512"], 0, "✓ Fits"),
        (["--params", "70B", "--vram", "24GiB"], 3, "✗ Does not fit"),
    ],
)
def test_the_exit_code_is_the_verdict(arguments, code, verdict, ask):
    found, out, err = ask(*arguments)
    assert (found, err) == (code, "")
    assert out.split("\n\n")[1].startswith(verdict)
    assert ask(*arguments, "--json")[0] == code


def test_every_option_is_taken(ask):
    training = (
        "--task finetune --method lora --precision bf16 --batch 2 --seq 512 --grad-accumulation 2 --optimizer adamw "
        "--optimizer-implementation fused --checkpointing full --attention sdpa --loss chunked --rank 8 --targets "
        "q_proj,v_proj --workers 2 --prefetch 4 --pin-memory --explain --rule-of-thumb"
    )
    code, out, err = ask(MODEL, *CARD, *training.split())
    assert (code, err) == (0, "")
    for words in ("rank 8", "batch 2 × 512", "2 accumulated", "pinned buffers", "Rules of thumb", "source:"):
        assert words in " ".join(out.split())
    inference = (
        "--task serve --batch 4 --seq 2048 --new-tokens 128 --prefill-chunk 256 --logits all --kv-dtype fp8"
    )
    fields = json.loads(ask(MODEL, "--vram", "24GiB", *inference.split(), "--json")[1])
    assert fields["words"] == {
        "task": "serve", "batch": 4, "seq": 2048, "new_tokens": 128, "prefill_chunk": 256, "logits": "all",
        "kv_dtype": "float8_e4m3",
    }  # fmt: skip


def test_help_names_every_choice(ask):
    code, out, _ = ask("--help")
    assert code == 0
    words = set(re.findall(r"[\w-]+", out))
    for choices in (jobs.Task, jobs.Method, jobs.Checkpointing, jobs.AttentionKind, jobs.LossKind):
        assert set(typing.get_args(choices)) <= words
    assert set(optimizers.names()) <= words
    for group in ("card:", "job:", "training:", "inference (--task infer or serve):", "output:"):
        assert group in out


def test_json_carries_the_command_that_gives_it(ask):
    first = json.loads(ask(*DOES_NOT_FIT, "--json")[1])
    words = shlex.split(first["command"])
    assert words[:2] == ["loadmaster", "plan"]
    again = json.loads(ask(*words[2:], "--json")[1])
    assert again["peak"] == first["peak"]


def test_the_printed_command_fits_when_pasted(ask):
    out = ask(*DOES_NOT_FIT)[1]
    pasted = out[out.index("  loadmaster plan") :].split("\n\n")[0].replace("\\\n", " ")
    code, again, _ = ask(*shlex.split(pasted)[2:])
    assert code == 0
    assert "✓ Fits" in again


def test_rules_of_thumb_are_in_the_json_when_asked_for(ask):
    assert json.loads(ask(*DOES_NOT_FIT, "--json")[1])["rules_of_thumb"] == []
    rules = json.loads(ask(*DOES_NOT_FIT, "--json", "--rule-of-thumb")[1])["rules_of_thumb"]
    assert [rule["name"] for rule in rules] == ["training", "RAM", "largest batch"]


@pytest.mark.parametrize("columns", [80, 120])
def test_piped_output_is_plain_and_as_wide_as_asked(columns):
    done = shell(*DOES_NOT_FIT, "--explain", COLUMNS=str(columns), PYTHONIOENCODING="utf-8")
    out = done.stdout.decode()
    assert (done.returncode, done.stderr) == (3, b"")
    assert "\x1b" not in out
    assert max(len(line) for line in out.splitlines()) <= columns
    assert max(len(line) for line in out.splitlines()) > columns - 12


def test_a_pipe_that_is_not_utf8_gets_ascii():
    done = shell(*DOES_NOT_FIT, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (3, b"")
    assert done.stdout.isascii()
    assert b"x Does not fit: needs" in done.stdout


def test_this_machine_is_planned_for_when_no_card_is_named():
    done = shell(MODEL, "--task", "infer", PYTHONIOENCODING="utf-8")
    assert done.returncode in (0, 3)
    assert "available here" in " ".join(done.stdout.decode().split())


def test_a_config_file_is_planned(ask, tmp_path):
    config = {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 128, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    code, out, _ = ask(str(path), *CARD, "--json")
    fields = json.loads(out)
    assert (code, fields["verdict"], fields["job"]["seq_len"]) == (0, "fits", 128)
    code, out, _ = ask(str(path), "--vram", "400MiB", "--batch", "4096")
    assert code == 3


BAD = [
    ([], "no model named"),
    ([MODEL, *CARD, "--batch", "0"], "batch is 0; expected a whole number from 1"),
    ([MODEL, *CARD, "--batch", "-1"], "batch is -1"),
    ([MODEL, *CARD, "--batch", "1e9"], "--batch is '1e9'; expected a whole number"),
    ([MODEL, *CARD, "--batch", "99999999999999999999999999"], "at most 20 digits"),
    ([MODEL, *CARD, "--batch", "1073741824"], "expected a whole number from 1 to"),
    ([MODEL, *CARD, "--batch", "2.5"], "--batch is '2.5'"),
    ([MODEL, *CARD, "--batch", ""], "--batch is ''"),
    ([MODEL, *CARD, "--seq", "-5"], "seq is -5"),
    ([MODEL, *CARD, "--seq", "abc"], "--seq is 'abc'"),
    ([MODEL, *CARD, "--seq", "\u0663"], "expected a whole number"),
    ([MODEL, *CARD, "--seq", "nan"], "--seq is 'nan'"),
    ([MODEL, *CARD, "--workers", "5000"], "workers is 5000"),
    ([MODEL, *CARD, "--method", "lora", "--rank", "0"], "rank is 0"),
    ([MODEL, *CARD, "--rank", "8"], "unless method is lora or qlora"),
    (
        [MODEL, *CARD, "--method", "lora", "--targets", "q_porj"],
        "expected modules that Qwen/Qwen2.5-0.5B has: ",
    ),
    ([MODEL, *CARD, "--method", "lora", "--targets", ","], "targets is ','"),
    ([MODEL, *CARD, "--task", "infer", "--method", "lora"], "adapters only exist in training"),
    ([MODEL, *CARD, "--task", "infer", "--new-tokens", "99999"], "new_tokens is 99999; expected at most seq"),
    ([MODEL, *CARD, "--optimizer", "adamv"], "unknown optimizer 'adamv'; did you mean adamw?"),
    ([MODEL, *CARD, "--optimizer-implementation", "fast"], "unknown implementation of adamw 'fast'"),
    ([MODEL, *CARD, "--task", "fintune"], "unknown task 'fintune'; did you mean finetune?"),
    ([MODEL, *CARD, "--precision", "fp8"], "unknown precision 'fp8'"),
    ([MODEL, *CARD, "--attention", "flsh"], "did you mean flash?"),
    ([MODEL, *CARD, "--kv-dtype", "fp7"], "unknown number format 'fp7'"),
    ([MODEL, "--gpu", "rtx4091"], "unknown GPU 'rtx4091'; did you mean RTX 4090?"),
    ([MODEL, "--gpu", "a100"], "GPU 'a100' is ambiguous; say which:"),
    ([MODEL, "--gpu", ""], "GPU is ''"),
    ([MODEL, "--gpu", "rtx4090:0"], "number of GPUs is 0"),
    ([MODEL, "--vram", "24 parsecs"], "memory size is '24 parsecs'"),
    ([MODEL, "--vram", "0"], "memory size is '0'"),
    ([MODEL, "--vram", "24"], "memory size is '24'; expected a unit: 24 of what? Say 24GiB or 24GB"),
    ([MODEL, "--vram", "1.5"], "1.5 of what? Say 24GiB or 24GB"),
    (
        [MODEL, *CARD, "--method", "full", "--targets", "q_proj"],
        "targets is 'q_proj'; expected no targets unless",
    ),
    ([MODEL, "--vram", "-3GiB"], "argument --vram: expected one argument"),
    ([MODEL, *CARD, "--vram", "24GiB"], "give gpu or vram, not both"),
    (["--params", "many", *CARD], "params is 'many'"),
    (["--params", "0", *CARD], "params is '0'"),
    ([MODEL, "surplus", *CARD], "unrecognized arguments: surplus"),
    ([MODEL, *CARD, "--batches", "2"], "unrecognized arguments: --batches"),
    (["no/such/folder/config.json", *CARD], "no such file"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD, ids=[" ".join(words)[-40:] for words, _ in BAD])
def test_a_wrong_question_gets_one_sentence_and_exit_2(arguments, sentence, ask):
    code, out, err = ask(*arguments)
    assert (code, out) == (2, "")
    first, *hints = err.splitlines()
    assert first.startswith("loadmaster: ")
    assert sentence in first
    assert len(hints) <= 1
    assert "Traceback" not in err


FILES = {
    "truncated.json": '{"model_type": "llama", "hidden_size": ',
    "twice.json": '{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}',
    "list.json": "[1, 2]",
    "deep.json": "[" * 100000,
    "nan.json": '{"model_type": "llama", "hidden_size": NaN, "num_hidden_layers": 2, "num_attention_heads": 2}',
    "negative.json": '{"model_type": "llama", "hidden_size": -64, "num_hidden_layers": 2, "num_attention_heads": 2}',
    "binary.json": b"\x80\x04\x95pickle\xff",
    "empty.json": "",
    "short.safetensors": b"\x00\x00\x00",
    "huge.safetensors": b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
    "pickle.safetensors": b"\x80\x02}q\x00.",
    "short.gguf": b"GGUF\x03\x00",
    "absurd.gguf": b"GGUF\x03\x00\x00\x00" + b"\xff" * 16,
    "pytorch_model.bin": b"\x80\x02}q\x00.",
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_gets_one_sentence_and_exit_2(name, ask, tmp_path):
    path = tmp_path / name
    content = FILES[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, out, err = ask(str(path), *CARD)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err


def test_the_readme_shows_what_is_printed(ask):
    """Some sections are left out there; what is shown is as it is printed."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    asked, _, shown = text.partition("$ loadmaster plan ")[2].partition("```")[0].partition("\n")
    printed = ask(*shlex.split(asked))[1]
    missing = [section for section in shown.strip().split("\n\n") if section not in printed]
    assert missing == [], "python scripts/refresh_readme.py"


@pytest.mark.parametrize("text", ["gptq", "awq", "fp8", "mxfp4", "hqq", "int8", "gptq-8bit-g32", "Q4_K_M"])
def test_inference_takes_every_format_of_weights(text, ask):
    code, out, err = ask(
        "Qwen/Qwen2.5-7B", "--vram", "80GiB", "--task", "infer", "--quantization", text, "--json"
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["words"]["quantization"] == text
    assert found["verdict"] == "fits"


def test_a_format_that_is_not_there_is_answered_with_those_that_are(ask):
    code, out, err = ask("Qwen/Qwen2.5-7B", *CARD, "--task", "infer", "--quantization", "gptqq")
    assert (code, out) == (2, "")
    assert "gptq" in err
    assert "mxfp4" in err


def test_a_server_is_asked_how_much_cache_its_budget_leaves(ask):
    asked = [
        "meta-llama/Llama-3.1-8B",
        "--gpu",
        "h100",
        "--task",
        "serve",
        "--engine",
        "vllm",
        "--seq",
        "16000",
    ]
    code, out, err = ask(*asked)
    assert (code, err) == (0, "")
    assert "for KV cache" in out.replace("\n      ", " ")
    assert re.search(r"\n +[\d,]+ tokens in blocks of 16: 26 sequences of 16,000 tokens", out)
    found = json.loads(ask(*asked, "--memory-utilization", "0.5", "--json")[1])
    assert found["budget"]["requested_bytes"] == int(found["budget"]["total_bytes"] * 0.5)
    assert ask(*asked, "--memory-utilization", "much")[0] == 2
