"""Models that generate no text are spoken of in words that fit them."""

import pytest

import loadmaster as lm
from loadmaster.render.plan import plan_text
from loadmaster.render.terminal import Look

BERT, CLIP, VIT, SDXL = (
    "google-bert/bert-base-uncased", "openai/clip-vit-base-patch32", "google/vit-base-patch16-224",
    "stabilityai/stable-diffusion-xl-base-1.0",
)  # fmt: skip


def said(model, **how):
    return " ".join(plan_text(lm.plan(model, gpu="rtx4090", **how), Look(120), explain=True).split())


@pytest.mark.parametrize("model", [BERT, CLIP, VIT, SDXL])
@pytest.mark.parametrize("task", ["infer", "serve"])
def test_nothing_is_prefilled_or_cached(model, task):
    text = said(model, task=task)
    for words in ("prefill", "KV cache", "kv cache", "decode ", "last token"):
        assert words not in text
    assert " forward " in text


@pytest.mark.parametrize(
    ("model", "how", "words"),
    [
        (VIT, {"batch": 8}, "batch of 8 images (197 patches each)"),
        (VIT, {}, "batch of 1 image (197 patches each)"),
        (SDXL, {"batch": 2}, "batch of 2 images of 128 × 128 latents"),
        ("black-forest-labs/FLUX.1-dev", {"seq": 4096}, "batch of 1 image (4,096 patches each)"),
        (BERT, {"batch": 8}, "batch 8 × 512 tokens"),
        ("Qwen/Qwen2.5-0.5B", {"seq": 1024, "batch": 2}, "batch 2 × 1,024 tokens"),
    ],
)  # fmt: skip
def test_a_batch_is_of_what_the_model_takes(model, how, words):
    assert words in said(model, **how)


def test_what_generates_still_prefills():
    text = said("Qwen/Qwen2.5-0.5B", task="infer", new_tokens=5)
    for words in ("prefill", "KV cache in bfloat16", "kv cache", "decode"):
        assert words in text
