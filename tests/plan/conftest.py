"""Plans that many tests look at, made once."""

import pytest

import loadmaster as lm

QUESTIONS = {
    "does not fit": {"model": "Qwen/Qwen2.5-7B", "gpu": "rtx4090", "method": "lora", "seq": 4096},
    "fits": {"model": "Qwen/Qwen2.5-0.5B", "gpu": "rtx4090", "task": "serve", "seq": 1024, "new_tokens": 64},
    "tight": {"model": "Qwen/Qwen2.5-7B", "gpu": "rtx4090", "method": "lora", "seq": 4096, "checkpointing": "full"},
    "nothing fits": {"model": "deepseek-ai/DeepSeek-R1", "gpu": "h100-80gb:8", "seq": 512},
    "small": {"model": "openai-community/gpt2", "vram": "2GiB", "task": "infer"},
}  # fmt: skip


@pytest.fixture(scope="session")
def plans():
    """By name, the plan of each question."""
    return {name: lm.plan(**question) for name, question in QUESTIONS.items()}


@pytest.fixture(params=QUESTIONS)
def plan(request, plans):
    """Each of the plans in turn."""
    return plans[request.param]
