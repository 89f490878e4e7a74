"""The simulated device against real training on the CPU: the same tensors are born and die in the same order, to the byte.

The real run is recorded by PyTorch's own profiler, which sees every allocation of the CPU's allocator, also those inside
kernels. What a GPU doesn't have is left out by size: the CPU generator's state that checkpointing keeps (5,056 B) and the
partial sums of the CPU's layer norm (4 KiB here); all tensors that count are larger.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SMALLEST = 5_120
SEQ, VOCAB = 64, 1024
COMMON = {"hidden_size": 256, "num_attention_heads": 4, "vocab_size": VOCAB, "use_cache": False}
LLAMA = {"num_hidden_layers": 2, "intermediate_size": 512, "num_key_value_heads": 2, **COMMON}


def language(kind: str, auto: str = "AutoModelForCausalLM", **fields: Any) -> Callable[[], Any]:
    def build() -> Any:
        config = transformers.AutoConfig.for_model(kind, **fields)
        config._attn_implementation = "eager"
        return getattr(transformers, auto).from_config(config, dtype=torch.float32)

    return build


def checkpointed(build: Callable[[], Any]) -> Callable[[], Any]:
    def checkpointing() -> Any:
        model = build()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    return checkpointing


def lora(build: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    def adapted() -> Any:
        peft = pytest.importorskip("peft")
        return peft.get_peft_model(build(), peft.LoraConfig(r=8, target_modules="all-linear", **options))

    return adapted


def cnn() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 512),
    )  # fmt: skip


def tokens(model: Any, device: str) -> Any:
    ids = torch.randint(0, VOCAB, (2, SEQ)).to(device)
    return model(input_ids=ids, labels=ids).loss


def encoded(model: Any, device: str) -> Any:
    ids = torch.randint(0, VOCAB, (2, SEQ)).to(device)
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss


def images(model: Any, device: str) -> Any:
    pixels, labels = torch.rand(4, 3, 32, 32).to(device), torch.randint(0, 512, (4,)).to(device)
    return torch.nn.functional.cross_entropy(model(pixels), labels)


MIXTRAL = language("mixtral", num_local_experts=4, num_experts_per_tok=2, **LLAMA)
BERT = {
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
}
T5 = {
    "d_model": 256,
    "d_kv": 64,
    "d_ff": 512,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0,
    "vocab_size": VOCAB,
}
MODELS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "llama": (language("llama", **LLAMA), tokens),
    "llama, tied": (language("llama", tie_word_embeddings=True, **LLAMA), tokens),
    "llama, checkpointing": (checkpointed(language("llama", **LLAMA)), tokens),
    "llama, LoRA": (lora(language("llama", **LLAMA)), tokens),
    "llama, LoRA, checkpointing": (checkpointed(lora(language("llama", **LLAMA))), tokens),
    "llama, DoRA": (lora(language("llama", **LLAMA), use_dora=True), tokens),
    "mixtral": (MIXTRAL, tokens),
    "mixtral, checkpointing": (checkpointed(MIXTRAL), tokens),
    "bert": (language("bert", "AutoModelForMaskedLM", **COMMON, **BERT), encoded),
    "t5": (language("t5", "AutoModelForSeq2SeqLM", decoder_start_token_id=0, use_cache=False, **T5), tokens),
    "qwen3": (language("qwen3", head_dim=64, **LLAMA), tokens),
    "gemma2": (language("gemma2", head_dim=64, **LLAMA), tokens),
    "cnn": (cnn, images),
}


SCRATCH: dict[str, dict[int, str]] = {
    "t5": {65536: "aten::sum of a strided gradient makes it contiguous"},
    "cnn": {
        4 * 3 * 9 * 32 * 32 * 4: "im2col columns of the first convolution",
        4 * 32 * 9 * 16 * 16 * 4: "im2col columns of the second",
        4 * 64 * 16 * 16 * 4: "slow_conv2d's contiguous gradient",
        4 * 32 * 32 * 32 * 4: "the same of the first",
    },
}
"""What kernels of the CPU take beside tensors, by size."""


def train(
    model: Any, loss_of: Callable[..., Any], device: str, optimizer: dict[str, Any], micro_batches: int
) -> None:
    params = [p for p in model.parameters() if p.requires_grad]
    made = torch.optim.AdamW(params, **optimizer)
    for _ in range(2):
        for _ in range(micro_batches):
            loss_of(model, device).backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        made.step()
        made.zero_grad()


def real(build: Callable[[], Any], loss_of: Any, **how: Any) -> list[int]:
    torch.manual_seed(0)
    model = build().train()
    with (
        torch.backends.mkldnn.flags(enabled=False),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler,
    ):
        train(model, loss_of, "cpu", **how)
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return [event.nbytes() for event in events if abs(event.nbytes()) >= SMALLEST]


def simulated(build: Callable[[], Any], loss_of: Any, **how: Any) -> list[int]:
    from loadmaster.dryrun.programs import quirks
    from loadmaster.dryrun.session import Session

    with torch.device("meta"):
        model = build().train()
    with Session() as session:
        quirks.apply(session._patches)
        session.device_module(model)
        trace = session.tracker.trace
        first = len(trace.events)
        train(model, loss_of, "cuda", **how)
        events = trace.events[first:]
    found = []
    for event in events:
        assert event is not None
        block = trace.blocks[max(event, ~event)]
        if block.category != "workspace" and block.requested_bytes >= SMALLEST:
            found.append(block.requested_bytes if event >= 0 else -block.requested_bytes)
    return found


def compare(name: str, optimizer: dict[str, Any], micro_batches: int = 1) -> None:
    build, loss_of = MODELS[name]
    how = {"optimizer": optimizer, "micro_batches": micro_batches}
    theirs, ours = real(build, loss_of, **how), simulated(build, loss_of, **how)
    assert len(theirs) > 50
    rest = difflib.SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    for tag, first, beyond, at, to in rest:
        if tag != "equal":
            assert tag == "delete", (tag, theirs[first - 3 : beyond + 3], ours[at - 3 : to + 3])
            assert {abs(size) for size in theirs[first:beyond]} <= SCRATCH.get(name, {}).keys(), first


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_in_order(name: str) -> None:
    compare(name, {"foreach": True})


@pytest.mark.parametrize("implementation", ["for-loop", "fused"])
def test_other_optimizer_implementations(implementation: str) -> None:
    compare("llama", {"fused": True} if implementation == "fused" else {"foreach": False})


def test_gradient_accumulation() -> None:
    compare("llama", {"foreach": True}, micro_batches=2)
