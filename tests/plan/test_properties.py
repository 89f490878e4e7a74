"""What holds for every job: sizes, monotony, and an answer or one clear error for anything asked."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.errors import BadValueError, LoadmasterError
from loadmaster.jobs.make import Words, make_job
from loadmaster.memory import predict
from loadmaster.models import read_model
from loadmaster.records import replace
from loadmaster.units import MIB

MODELS = ["Qwen/Qwen2.5-0.5B", "openai-community/gpt2", "EleutherAI/pythia-70m", "google/gemma-3-270m"]
ORDER = ["does_not_fit", "tight", "fits"]
QUICK = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])

models = st.sampled_from(MODELS)
tasks = st.sampled_from(
    [{}, {"method": "lora"}, {"method": "qlora"}, {"task": "infer"}, {"task": "serve"}, {"task": "train"}]
)
choices = st.fixed_dictionaries(
    {
        "attention": st.sampled_from(["eager", "sdpa", "math"]),
        "loss": st.sampled_from(["hf", "native", "chunked", "fused"]),
        "optimizer": st.sampled_from(["adamw", "adamw_8bit", "sgd", "sgdm"]),
        "logits": st.sampled_from(["last", "all"]),
        "grad_accumulation": st.sampled_from([1, 4]),
    }
)  # fmt: skip
sizes = st.tuples(st.integers(1, 12), st.integers(1, 3000))


def ledger(model, job):
    return predict(read_model(model), job, compute_capability="8.9")


@given(models, tasks, choices, sizes)
@QUICK
def test_bytes_are_never_negative_and_intervals_are_ordered(model, task, how, size):
    found = ledger(model, make_job(**task, **how, batch=size[0], seq=size[1]))
    for interval in [
        *(entry.bytes for entry in found.entries), *(phase.allocated for phase in found.phases),
        found.peak.allocated, found.peak.reserved, found.peak.process, found.ram, found.disk,
    ]:  # fmt: skip
        assert 0 <= interval.low <= interval.likely <= interval.high


@given(models, tasks, choices, sizes, st.integers(0, 8), st.integers(0, 2000))
@QUICK
def test_more_batch_or_length_never_needs_less(model, task, how, size, more_batch, more_seq):
    job = make_job(**task, **how, batch=size[0], seq=size[1])
    less = ledger(model, job)
    wider = ledger(model, replace(job, micro_batch=job.micro_batch + more_batch))
    longer = ledger(model, replace(job, seq_len=job.seq_len + more_seq))
    for more in (wider, longer):
        assert more.peak.allocated.likely >= less.peak.allocated.likely
        assert more.ram.likely >= less.ram.likely


@given(models, st.sampled_from([{}, {"method": "lora"}, {"task": "train"}]), choices, sizes)
@QUICK
def test_more_checkpointing_never_keeps_more_activations(model, task, how, size):
    job = make_job(**task, **how, batch=size[0], seq=size[1])
    kept = ledger(model, job)
    recomputed = ledger(model, replace(job, checkpointing="full"))

    def saved(found, phase):
        return sum(entry.bytes.likely for entry in found.at(phase) if entry.component == "activations")

    # At the end of forward everything saved for backward is there.
    assert saved(recomputed, "forward") <= saved(kept, "forward")


@given(models, tasks, sizes, st.integers(600, 40000), st.integers(0, 10000))
@QUICK
def test_a_bigger_card_never_turns_fit_into_unfit(model, task, size, mib, more):
    how = {**task, "batch": size[0], "seq": size[1]}
    small = lm.plan(model, vram=mib * MIB, **how)
    big = lm.plan(small.model, vram=(mib + more) * MIB, **how)
    assert ORDER.index(big.verdict) >= ORDER.index(small.verdict)


@given(models, sizes, st.integers(0, 400))
@QUICK
def test_around_the_peak_a_bigger_card_is_no_worse(model, size, step):
    """Cards a few MiB apart, where fragmentation decides."""
    job = {"method": "lora", "batch": size[0], "seq": size[1]}
    peak = lm.plan(model, vram="500GiB", **job)
    context = peak.usable.context_bytes.likely
    around = [peak.ledger.peak.allocated.likely + context + (step + more) * MIB for more in (0, 2, 20, 100)]
    verdicts = [ORDER.index(lm.plan(peak.model, vram=size_bytes, **job).verdict) for size_bytes in around]
    assert verdicts == sorted(verdicts)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["lora", "infer", "bf16", "full", "fused", "adamw", "eager", "24GiB", "auto", "q_proj"]),
    st.binary(max_size=4), st.lists(st.integers(), max_size=2), st.just({}),
)  # fmt: skip
FIELDS = sorted({*Words.__struct_fields__, "gpu", "vram", "params", "machine"})
WILD = [
    b"",
    b"x",
    3,
    -1,
    0,
    1.5,
    math.nan,
    math.inf,
    True,
    [],
    [3],
    (),
    {},
    {"a": 1},
    object(),
    "",
    " ",
    "\n",
    "é" * 50,
]


def plan_or_sentence(arguments):
    if arguments.get("gpu") is None and arguments.get("vram") is None:
        arguments = {**arguments, "vram": "24GiB"}
    error = None
    try:
        plan = lm.plan("EleutherAI/pythia-70m", **arguments)
    except LoadmasterError as raised:
        error = str(raised)
    if error is None:
        assert plan.ledger.peak.allocated.likely > 0
    else:
        assert "\n" not in error
        assert 0 < len(error) < 400


@given(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4))
@settings(deadline=None, max_examples=150)
def test_any_arguments_give_a_plan_or_one_sentence(arguments):
    plan_or_sentence(arguments)


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_any_type_gives_a_plan_or_one_sentence(field):
    for value in WILD:
        for around in ({}, {"method": "qlora"}, {"task": "infer"}):
            plan_or_sentence({**around, field: value})


@pytest.mark.parametrize("field", ["machine", "offload", "framework", "vram", "gpu", "targets", "optimizer"])
@pytest.mark.parametrize("value", [3, b"", {}, object()])
def test_a_wrong_type_is_a_wrong_value(field, value):
    with pytest.raises(BadValueError):
        lm.plan("EleutherAI/pythia-70m", **{"vram" if field != "gpu" else "machine": None, field: value})


@pytest.mark.parametrize("model", [b"x", 5, 1.5, ["a"], object()])
def test_a_model_is_a_name_a_path_or_a_spec(model):
    with pytest.raises(LoadmasterError):
        lm.plan(model, vram="24GiB")
