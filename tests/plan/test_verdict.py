"""Verdicts, margins and exit-worthy facts of a plan."""

import pytest

import loadmaster as lm
from loadmaster.hardware import Absent, Device, Host, Link, Machine, find_gpu
from loadmaster.plan.verdict import ram_verdict
from loadmaster.records import replace
from loadmaster.units import GIB, MIB

SMALL = {"model": "Qwen/Qwen2.5-0.5B", "task": "infer", "seq": 512}


def test_each_question_has_its_verdict(plans):
    verdicts = {name: plan.verdict for name, plan in plans.items()}
    assert verdicts == {
        "does not fit": "does_not_fit", "fits": "fits", "tight": "tight", "nothing fits": "does_not_fit", "small": "fits",
    }  # fmt: skip


def test_a_verdict_goes_with_its_numbers(plan):
    peak, room = plan.ledger.peak, plan.usable_bytes
    assert peak.allocated.low <= peak.allocated.likely <= peak.allocated.high
    assert peak.allocated.likely <= peak.reserved.likely <= peak.process.likely
    if plan.verdict == "fits":
        assert peak.allocated.high <= room.likely
        assert plan.margin_bytes == room.likely - peak.allocated.likely >= 0
    if plan.verdict == "does_not_fit":
        assert plan.margin_bytes < 0
    assert plan.fits == (plan.verdict in ("fits", "tight"))


def test_entries_of_the_peak_phase_sum_to_its_allocated_bytes(plan):
    peak = plan.ledger.peak
    assert sum(entry.bytes.likely for entry in plan.ledger.at(peak.phase)) == peak.allocated.likely


def test_every_phase_sums_to_its_entries_and_the_peak_is_the_highest(plan):
    for phase in plan.ledger.phases:
        assert sum(entry.bytes.likely for entry in plan.ledger.at(phase.phase)) == phase.allocated.likely
    assert max(p.allocated.likely for p in plan.ledger.phases) == plan.ledger.peak.allocated.likely


def machine(*gpus, ram=64 * GIB, absent=()):
    return Machine(gpus=gpus, host=Host(ram_total_bytes=ram, ram_available_bytes=ram), absent=absent)


def card(name, index, held=0):
    return replace(find_gpu(name), index=index, held_bytes=held, link=Link())


def test_auto_takes_the_card_with_the_most_free_memory_and_says_so():
    here = machine(card("rtx4090", 0, held=20 * GIB), card("rtx4090", 1), card("rtx3060 12gb", 2))
    plan = lm.plan(**SMALL, gpu="auto", machine=here)
    assert plan.device.index == 1
    assert any("3 GPUs" in note and "GPU 1" in note for note in plan.notes)


def test_no_argument_means_this_machine():
    here = machine(card("rtx4090", 0))
    plan = lm.plan(**SMALL, machine=here)
    assert plan.device.index == 0
    assert plan.asked[-2:] == ("--gpu", "auto")


def test_without_a_gpu_the_verdict_is_about_the_cpu():
    here = machine(absent=[Absent(vendor="NVIDIA", reason="no driver")])
    plan = lm.plan(**SMALL, machine=here)
    assert (plan.device.name, plan.verdict, plan.ram_verdict) == ("CPU of this machine", "fits", "fits")
    # 64 GiB are available; Python with torch and transformers takes some 400 MiB of them.
    assert plan.usable_bytes.likely == 64 * GIB - 400 * MIB
    assert any("no driver" in note for note in plan.notes)
    large = lm.plan("Qwen/Qwen2.5-7B", batch=1, seq=1024, machine=here)
    assert large.verdict == "does_not_fit"
    assert not {"offload_optimizer", "optimizer_paged"} & {rung.change for rung in large.ladder}


def test_where_not_even_ram_is_known_there_is_no_verdict():
    plan = lm.plan(**SMALL, machine=Machine(host=Host()))
    assert (plan.device, plan.verdict, plan.ram_verdict) == (None, None, None)
    assert plan.ledger.peak.allocated.likely > 0


def test_a_unet_whose_weights_fit_gets_no_verdict():
    """Its activations aren't modelled: the weights can rule a card out, but not in."""
    model = "stabilityai/stable-diffusion-xl-base-1.0"
    assert lm.plan(model, task="infer", vram="24GiB").verdict is None
    assert lm.plan(model, task="infer", vram="4GiB").verdict == "does_not_fit"
    flux = lm.plan("black-forest-labs/FLUX.1-dev", task="infer", gpu="a100-80gb")
    assert (flux.verdict, flux.job.seq_len) == ("fits", 64 * 64 + 512)
    assert any("1024 × 1024" in note for note in flux.notes)


def test_ram_that_is_certainly_not_there():
    plan = lm.plan(**SMALL, machine=machine(card("rtx4090", 0), ram=GIB // 4))
    assert (plan.verdict, plan.ram_verdict) == ("fits", "does_not_fit")


def test_ram_is_only_judged_where_the_job_would_run(plans):
    assert all(plan.ram_verdict is None and plan.host is None for plan in plans.values())


def test_ram_verdicts(plans):
    ledger = plans["fits"].ledger
    assert ram_verdict(ledger, None) is None
    assert ram_verdict(ledger, ledger.ram.low - 1) == "does_not_fit"
    assert ram_verdict(ledger, ledger.ram.low) == "tight"
    assert ram_verdict(ledger, ledger.ram.likely) == "fits"


def test_several_cards_are_planned_as_one_with_a_note(plans):
    plan = plans["nothing fits"]
    assert plan.device.count == 1
    assert any("8 cards" in note and "doesn't add up" in note for note in plan.notes)


def test_a_sequence_is_by_default_as_long_as_the_model_reaches():
    assert lm.plan("openai-community/gpt2", vram="24GiB").job.seq_len == 1024
    assert lm.plan("Qwen/Qwen2.5-0.5B", vram="24GiB").job.seq_len == 2048


def test_more_tokens_than_positions_get_a_note():
    plan = lm.plan("openai-community/gpt2", vram="24GiB", seq=2048)
    assert any("1,024 positions" in note for note in plan.notes)


def test_a_model_spec_can_be_planned_again(plans):
    spec = plans["small"].model
    again = lm.plan(spec, vram="2GiB", task="infer")
    assert again.ledger.peak == plans["small"].ledger.peak
    assert again.asked == (spec.name, "--vram", "2GiB")


@pytest.mark.parametrize("vram", ["24GiB", 24 * GIB, "24G"])
def test_vram_is_text_or_bytes(vram):
    plan = lm.plan(**SMALL, vram=vram)
    assert plan.usable.visible_bytes.likely == 24 * GIB


def test_device_is_a_catalogue_card(plans):
    device = plans["does not fit"].device
    assert isinstance(device, Device)
    assert device.gpu.compute_capability == "8.9"
