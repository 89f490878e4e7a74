"""Options of training that are seldom used: each is taken, moves the answer or its words, and comes back as it was said."""

import json

import pytest

from loadmaster.cli.main import main

CASES = {
    "--optimizer galore_adamw --optimizer-rank 64 --precision bf16": {"optimizer": "galore_adamw", "optimizer_rank": 64},
    "--optimizer paged_adamw_32bit": {"optimizer": "paged_adamw"},
    "--precision megatron": {"precision": "megatron"},
    "--checkpointing every:3": {"checkpointing": "every:3"},
    "--checkpointing selective": {"checkpointing": "selective"},
    "--method dora --lora-dropout 0.05": {"method": "lora", "dora": True, "lora_dropout": 0.05},
    "--method qlora --dora": {"method": "qlora", "dora": True},
    "--freeze first:2,embeddings": {"freeze": "embeddings,first:2"},
    "--loss cut --precision bf16": {"loss": "cut"},
    "--attention flash3": {"attention": "flash3"},
}  # fmt: skip
REFUSED = {
    "--checkpointing every:0": "every:2",
    "--checkpointing every:x": "every:2",
    "--lora-dropout 0.1": "lora",
    "--method lora --lora-dropout 1.5": "0.05",
    "--method lora --lora-dropout much": "0.05",
    "--dora": "lora",
    "--method dora --framework litgpt": "DoRA",
    "--method lora --freeze embeddings": "full training",
    "--freeze first:x": "freeze",
    "--optimizer-rank 8": "adamw",
    "--loss cut --precision fp32": "16-bit",
}


def ask(capsys, words):
    code = main(["plan", "Qwen/Qwen2.5-0.5B", "--vram", "80GiB", *words.split()])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("words", CASES)
def test_it_is_taken_and_comes_back(capsys, words):
    code, out, _ = ask(capsys, f"{words} --json")
    assert code == 0
    said = json.loads(out)["words"]
    assert {field: said[field] for field in CASES[words]} == CASES[words]


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(capsys, words):
    code, out, err = ask(capsys, words)
    assert (code, out) == (2, "")
    assert REFUSED[words] in err


def test_rules_are_compared_in_words_and_json(capsys):
    _, out, _ = ask(capsys, "--compare-rules")
    for word in ("What common formulas say", "Megatron-LM", "34sbhL", "this ledger, allocated", "leaves out"):
        assert word in out
    rules = json.loads(ask(capsys, "--compare-rules --json")[1])["rules_of_thumb"]
    assert {"ZeRO paper, model states", "LLaMA-Factory's table"} <= {rule["name"] for rule in rules}
    assert all(rule["source"] for rule in rules[1:])
