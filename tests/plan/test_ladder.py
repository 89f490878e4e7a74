"""The ladder: what each change saves, the combination that fits, the words that ask for it."""

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.cli.main import main
from loadmaster.jobs import changes
from loadmaster.jobs.job import Precision
from loadmaster.jobs.make import make_job
from loadmaster.jobs.words import words
from loadmaster.records import replace
from loadmaster.render.command import command, command_line, command_lines

UNFIT = [
    {"model": "Qwen/Qwen2.5-7B", "gpu": "rtx4090", "method": "lora", "seq": 4096},
    {"model": "Qwen/Qwen2.5-7B", "gpu": "rtx4090"},
    {"model": "Qwen/Qwen2.5-0.5B", "vram": "12GiB", "batch": 16},
    {"model": "Qwen/Qwen2.5-0.5B", "vram": "6GiB", "attention": "eager", "seq": 4096},
    {"model": "meta-llama/Llama-3.1-8B", "vram": "24GiB", "task": "infer", "batch": 8, "seq": 8192},
    {"model": "openai-community/gpt2", "vram": "3GiB", "task": "train", "batch": 32},
]


@pytest.fixture(scope="module", params=UNFIT, ids=lambda q: f"{q['model']}-{len(q)}")
def unfit(request):
    return lm.plan(**request.param)


def test_rungs_save_what_they_say(unfit):
    assert unfit.verdict == "does_not_fit"
    asked = unfit.ledger.peak.allocated.likely
    by_name = {change.NAME: change for change in changes.every()}
    for rung in unfit.ladder:
        assert rung.saved_bytes > 0
        assert rung.allocated_bytes == asked - rung.saved_bytes
        changed = by_name[rung.change].apply(unfit.job)
        again = lm.plan(unfit.model, **device_of(unfit), **words(changed))
        assert again.ledger.peak.allocated.likely == rung.allocated_bytes
        assert again.verdict == rung.verdict
    saved = [rung.saved_bytes for rung in unfit.ladder]
    assert saved == sorted(saved, reverse=True)


def test_the_ladder_ends_in_a_combination_that_fits_when_planned_by_its_own_command(unfit, capsys):
    found = unfit.fitting
    assert found.verdict in ("fits", "tight")
    asked = command(unfit, found.job)
    assert asked[:2] == ("loadmaster", "plan")
    assert main(asked[1:]) == 0
    first = capsys.readouterr().out
    assert first.partition("\n\n")[2].startswith({"fits": "✓ Fits", "tight": "! Tight"}[found.verdict])


def test_no_change_of_the_combination_is_idle(unfit):
    """Without any one of them it doesn't fit as well."""
    order = ["does_not_fit", "tight", "fits"]
    found = unfit.fitting
    by_name = {change.NAME: change for change in changes.every()}
    for left_out in found.changes:
        job = unfit.job
        for name in found.changes:
            if name != left_out and by_name[name].applies(job):
                job = by_name[name].apply(job)
        again = lm.plan(unfit.model, **device_of(unfit), **words(job))
        assert order.index(again.verdict) < order.index(found.verdict) or job == found.job


def test_where_nothing_fits_the_least_is_said(plans):
    plan = plans["nothing fits"]
    assert plan.fitting is None
    assert plan.usable_bytes.likely < plan.least_bytes < plan.ledger.peak.allocated.likely


def test_a_job_that_fits_has_no_ladder(plans):
    for name in ("fits", "tight", "small"):
        assert (plans[name].ladder, plans[name].fitting, plans[name].least_bytes) == ((), None, None)


def device_of(plan):
    """The keyword arguments that name the plan's device."""
    options = dict(zip(plan.asked[-2::2], plan.asked[-1::2], strict=True))
    return {option.removeprefix("--"): value for option, value in options.items()}


JOBS = st.fixed_dictionaries(
    {},
    optional={
        "precision": st.sampled_from(["fp32", "amp", "bf16", "fp16"]),
        "batch": st.integers(1, 64),
        "seq": st.integers(1, 9000),
        "grad_accumulation": st.integers(1, 8),
        "eval_batch": st.one_of(st.none(), st.integers(1, 64)),
        "checkpointing": st.sampled_from(["none", "full"]),
        "attention": st.sampled_from(["eager", "sdpa", "flash", "efficient", "math"]),
        "loss": st.sampled_from(["hf", "native", "chunked", "fused"]),
        "optimizer": st.sampled_from(["adamw", "adamw_8bit", "sgd", "sgdm"]),
        "kv_dtype": st.sampled_from(["fp8", "bf16"]),
        "prefill_chunk": st.integers(1, 4096),
        "workers": st.integers(0, 8),
        "pin_memory": st.booleans(),
    },
)
TASKS = st.sampled_from(
    [{"task": "train"}, {"task": "infer"}, {"method": "lora"}, {"method": "qlora", "rank": 4}, {}]
)


@given(JOBS, TASKS)
@settings(deadline=None, max_examples=100)
def test_words_of_a_job_make_the_job(how, task):
    job = make_job(**task, **how)
    assert make_job(**words(job)) == job
    for change in changes.applicable(job):
        changed = change.apply(job)
        assert make_job(**words(changed)) == changed


def test_a_job_that_no_words_make_has_no_command(plans):
    plan = plans["fits"]
    odd = replace(plan.job, precision=Precision(weights="float16", autocast="bfloat16"))
    assert words(odd) is None
    assert command(plan, odd) is None


def test_the_command_is_quoted_and_broken_before_options(plans):
    asked = (
        "loadmaster",
        "plan",
        "my model's/config.json",
        "--gpu",
        "RTX 4090",
        "--method",
        "lora",
        "--batch",
        "12",
    )
    assert shlex.split(command_line(asked)) == list(asked)
    lines = command_lines(asked, 55)
    assert len(lines) > 1
    assert all(len(line) <= 55 for line in lines)
    assert shlex.split(" ".join(line.removesuffix("\\") for line in lines)) == list(asked)
