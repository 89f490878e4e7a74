"""Allocated bytes of real PyTorch code, counted storage by storage on fake tensors: the outside truth for the ledger.

Runs the library's own modelling code, autograd and optimizer under FakeTensorMode on the CPU device, sees every new
storage in a dispatch mode and its death by a finalizer, and rounds to 512 bytes as CUDA's allocator does.

Where the CPU differs from CUDA the caller has to know: flash attention on CPU needs equal heads for keys and values and
no dropout, and gradients that meet are added out of place because fake tensors are tensor subclasses.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from transformers import masking_utils
from transformers.modeling_layers import GradientCheckpointingLayer


class Tracer(TorchDispatchMode):
    """Live and peak bytes of fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes: dict[int, tuple[int, str]] = {}

    def see(self, tensor: Any, name: str) -> None:
        if not isinstance(tensor, FakeTensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        size = -(-storage.nbytes() // 512) * 512
        self.sizes[key] = (size, name)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self.gone, key)

    def gone(self, key: int) -> None:
        self.live -= self.sizes.pop(key)[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            self.see(tensor, str(func))
        return out

    def mark(self) -> None:
        self.peak = self.live

    def census(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for size, label in self.sizes.values():
            found[label] += size
        return found


def to_fake(model: Any, mode: FakeTensorMode) -> Any:
    """Every parameter and buffer of a module on the meta device becomes a fake CPU tensor; ties are kept."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for name, param in list(module._parameters.items()):
            if param is None:
                continue
            if id(param) not in memo:
                fake = FakeTensor(mode, param.detach().to("meta"), torch.device("cpu"))
                memo[id(param)] = torch.nn.Parameter(fake, requires_grad=param.requires_grad)
            module._parameters[name] = memo[id(param)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = FakeTensor(mode, buffer.to("meta"), torch.device("cpu"))
    return model


def build(
    config: dict[str, Any], dtype: str, attention: str, mode: FakeTensorMode, rank: int | None = None,
    auto: str = "AutoModelForCausalLM", lora: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """transformers' model of a config, with PEFT's LoRA on all linear layers if ``rank`` is given (``lora``: more of
    LoraConfig's options)."""
    fields = {k: v for k, v in config.items() if not k.startswith("_")}
    cfg = transformers.AutoConfig.for_model(**fields)
    cfg._attn_implementation = attention
    cfg.use_cache = False
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(cfg, dtype=getattr(torch, dtype))
        if rank is not None:
            import peft

            options = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", **(lora or {})}
            wanted = peft.LoraConfig(r=rank, **options)
            model = peft.get_peft_model(model, wanted)
            for name, param in model.named_parameters():
                if "lora_" in name:
                    param.data = param.data.float()
    return to_fake(model, mode)


class Peaks(dict[str, int]):
    """Peak allocated bytes by phase: forward, backward, optimizer step."""


def train(
    config: dict[str, Any], batch: int, seq: int, *, dtype: str = "bfloat16", autocast: bool = False,
    checkpointing: bool | str = False, attention: str = "sdpa", rank: int | None = None, implementation: str = "foreach",
    auto: str = "AutoModelForCausalLM", inputs: Callable[[], dict[str, Any]] | None = None,
    lora: dict[str, Any] | None = None, frozen: tuple[str, ...] = (), eval_batch: int | None = None,
) -> Peaks:  # fmt: skip
    """Two training steps; the peaks of the second, when the optimizer's states exist; then an evaluation batch."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = build(config, dtype, attention, mode, rank, auto, lora)
    model.train()
    for pattern in frozen:
        for name, param in model.named_parameters():
            if re.search(pattern, name):
                param.requires_grad_(False)
    if checkpointing:
        _checkpoint(model, str(checkpointing))
        if rank is not None:
            model.enable_input_require_grads()
    tracer, peaks = Tracer(), Peaks()
    with mode, Unmasked(), NativeDropout():
        for tensor in [*model.parameters(), *model.buffers()]:
            tracer.see(tensor, "weights")
        trained = [p for p in model.parameters() if p.requires_grad]
        options = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        optimizer = torch.optim.AdamW(trained, **options)
        ids = torch.zeros(batch, seq, dtype=torch.long)
        with tracer:
            for _ in range(2):
                tracer.mark()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    out = model(**(inputs() if inputs else {"input_ids": ids, "labels": ids}))
                    loss = out.loss if out.get("loss") is not None else out[0].float().sum()
                    del out
                peaks["forward"] = tracer.peak
                tracer.mark()
                loss.backward()
                peaks["backward"] = tracer.peak
                del loss
                tracer.mark()
                optimizer.step()
                peaks["optimizer step"] = tracer.peak
                optimizer.zero_grad()
            if eval_batch is not None:
                peaks["evaluation"] = _evaluate(model, tracer, eval_batch, seq, autocast=autocast)
    return peaks


def _evaluate(model: Any, tracer: Tracer, batch: int, seq: int, *, autocast: bool) -> int:
    """As Trainer.prediction_step: the loss of a batch without gradients, the cache in use."""
    model.eval()
    ids = torch.zeros(batch, seq, dtype=torch.long)
    tracer.mark()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        model(input_ids=ids, labels=ids, use_cache=True)
    return tracer.peak


def _checkpoint(model: Any, kind: str) -> None:
    """Every layer, every K-th of them, or per operator as torchtitan's selective mode does."""
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if kind == "selective":
        options["context_fn"] = _selective
    model.gradient_checkpointing_enable(options)
    if kind.startswith("every:"):
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        for position, layer in enumerate(layers):
            layer.gradient_checkpointing = (position + 1) % int(kind[6:]) == 0


def _selective() -> Any:
    """torchtitan's policy: results of attention kernels and of every second aten.mm, from the first, are saved."""
    counts: Counter[bool] = Counter()
    aten = torch.ops.aten
    attention = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
    )

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        if function is aten.mm.default:
            counts[context.is_recompute] += 1
        save = function in attention or (function is aten.mm.default and counts[context.is_recompute] % 2)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def prefill(
    config: dict[str, Any], batch: int, seq: int, *, dtype: str = "bfloat16", attention: str = "sdpa"
) -> int:
    """Peak of one prefill that fills the cache and gives the last token's logits."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = build(config, dtype, attention, mode).eval()
    tracer = Tracer()
    with mode, torch.no_grad(), Unmasked():
        for tensor in [*model.parameters(), *model.buffers()]:
            tracer.see(tensor, "weights")
        ids = torch.zeros(batch, seq, dtype=torch.long)
        with tracer:
            tracer.mark()
            model(input_ids=ids, use_cache=True, logits_to_keep=1)
    return tracer.peak


class NativeDropout:
    """nn.Dropout as CUDA runs it: one kernel with a bool mask, where the CPU multiplies with noise."""

    def __enter__(self) -> None:
        self.before = torch.nn.Dropout.forward
        torch.nn.Dropout.forward = lambda module, x: (  # type: ignore[method-assign]
            torch.native_dropout(x, module.p, True)[0] if module.training and module.p else x
        )

    def __exit__(self, *_: object) -> None:
        torch.nn.Dropout.forward = self.before  # type: ignore[method-assign]


class Unmasked:
    """What transformers asks of data that fake tensors don't have: they are not a trace, and no sequences are packed."""

    NAMES: ClassVar = {
        "is_tracing": lambda *_, **__: False,
        "find_packed_sequence_indices": lambda *_, **__: None,
    }

    def __enter__(self) -> None:
        self.before = {name: getattr(masking_utils, name) for name in self.NAMES}
        for name, answer in self.NAMES.items():
            setattr(masking_utils, name, answer)

    def __exit__(self, *_: object) -> None:
        for name, before in self.before.items():
            setattr(masking_utils, name, before)
