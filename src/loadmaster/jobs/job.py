"""Job: what is run on a model and how. A choice is a field here; what follows from it is computed elsewhere.

Numeric fields may also hold NumPy arrays (many jobs at once, see ``memory.evaluate``); everything that people type is
checked by ``jobs.make`` before a Job is built, because record constructors don't check types.
"""

from __future__ import annotations

from typing import Literal

from loadmaster.jobs.frameworks import Facts, facts
from loadmaster.records import Record

Task = Literal["train", "finetune", "infer", "serve"]
Method = Literal["full", "lora", "qlora"]
Checkpointing = str
"""``none``; ``full``: every layer; ``every:K``: every K-th layer; ``selective``: every layer, but attention's result and
every second matrix product are kept (torchtitan's selective, per operator)."""
AttentionKind = Literal["eager", "sdpa", "flash", "efficient", "math", "flash2", "flash3", "flex"]
"""``sdpa`` chooses among PyTorch's kernels ``flash``, ``efficient`` and ``math``; ``flash2`` and ``flash3`` are the flash-attn
packages, ``flex`` is compiled flex_attention."""
LossKind = Literal["hf", "native", "chunked", "fused", "cut"]


class Precision(Record, kw_only=True):
    """Number formats: of the weights kept on the device, of autocast if it is on (None: it is off), of the optimizer's own
    copy of 16-bit weights (``master``), and of the buffer that gradients are added up in (None: the weights' own)."""

    weights: str = "bfloat16"
    autocast: str | None = None
    master: str | None = None
    gradients: str | None = None


class Optimizer(Record, kw_only=True):
    """Which optimizer (a file in ``jobs/optimizers``) and which of its implementations runs on CUDA."""

    name: str = "adamw"
    implementation: Literal["for-loop", "foreach", "fused"] = "foreach"
    rank: int | None = None
    """Of GaLore's projections; None: its usual one."""


class Lora(Record, kw_only=True):
    """Low-rank adapters as PEFT builds them (arXiv:2106.09685). ``targets``: ``all-linear`` or last parts of module
    names. ``dtype``: PEFT keeps adapters in float32 on a half-precision base (autocast_adapter_dtype)."""

    rank: int = 16
    targets: tuple[str, ...] = ("all-linear",)
    dropout: float = 0.0
    dtype: str = "float32"
    dora: bool = False
    """DoRA (arXiv:2402.09353): a trained magnitude for each output beside the low-rank direction."""
    parameters: tuple[tuple[str, int], ...] = ()
    """PEFT's target_parameters: last parts of names, each with how many times ``rank`` its adapter has."""


class Quantization(Record, kw_only=True):
    """How frozen weights are packed: ``dtype`` is a file in ``jobs/quantizations``, which makes these from words (``named``).
    ``block``: values to a scale, where the format leaves a choice; ``double``: the scales are packed too (bitsandbytes, groups
    of 256); ``variant``: which of the format's kernels or types. The default is QLoRA's (arXiv:2305.14314 §3)."""

    dtype: str = "nf4"
    bits: int = 4
    block: int = 64
    double: bool = True
    compute: str = "bfloat16"
    upcast_rest: bool = True
    """prepare_model_for_kbit_training: what stays unquantised (embedding, norms, head) becomes float32."""
    variant: str | None = None


class Layout(Record, kw_only=True):
    """Over how many devices what is split. One device for now: every field is 1."""

    data: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1

    @property
    def devices(self) -> int:
        """How many devices the job takes."""
        return self.data * self.shard * self.tensor * self.pipeline * self.context


class Loader(Record, kw_only=True):
    """torch.utils.data.DataLoader: processes, batches each holds ready (its default is 2), pinned copies, and the dataset's bytes
    in RAM (0: read from files as needed, as memory-mapped Arrow tables are)."""

    workers: int = 0
    prefetch: int = 2
    pin_memory: bool = False
    dataset_bytes: int = 0


class Job(Record, kw_only=True):
    """One run on one model. ``micro_batch`` sequences of ``seq_len`` tokens go through the network at once;
    ``grad_accumulation`` of them make a step. For inference ``seq_len`` is prompt plus generated tokens."""

    task: Task = "finetune"
    method: Method = "full"
    precision: Precision = Precision()
    micro_batch: int = 1
    seq_len: int = 2048
    grad_accumulation: int = 1
    eval_batch: int | None = None
    """Sequences at once in evaluation between training steps (Trainer's per_device_eval_batch_size); None: there is none."""
    optimizer: Optimizer = Optimizer()
    checkpointing: Checkpointing = "none"
    attention: AttentionKind = "sdpa"
    loss: LossKind = "hf"
    loss_chunks: int = 8
    lora: Lora | None = None
    quantization: Quantization | None = None
    frozen: tuple[str, ...] = ()
    """Parts of full training that stay as they are: ``embeddings``, ``head``, ``towers`` (all but the decoder), ``first:N``
    layers."""
    new_tokens: int = 0
    """Tokens generated of ``seq_len``: the rest is the prompt."""
    prefill_chunk: int | None = None
    """Prompt tokens processed at once; None: the whole prompt."""
    logits: Literal["last", "all"] = "last"
    kv_dtype: str | None = None
    """None: the compute format."""
    kv_cache: bool = True
    memory_utilization: float = 0.9
    """vLLM's gpu_memory_utilization: its share of the card's memory."""
    max_sequences: int | None = None
    """vLLM's max_num_seqs; None: its default for the card. Its max_num_batched_tokens is ``prefill_chunk``."""
    layout: Layout = Layout()
    loader: Loader = Loader()
    framework: str = "transformers"
    """The library that runs the model, maybe with its version (a file in ``jobs/frameworks``)."""
    compile: bool = False
    """torch.compile over model and loss: pointwise chains are recomputed in backward instead of kept."""
    offload: tuple[Literal["optimizer", "gradients", "activations"], ...] = ()
    """What lives in host memory: optimizer states, gradients as soon as they are made, inputs of checkpointed layers."""
    optimizer_in_backward: bool = False
    """Each parameter is updated as soon as its gradient is there, which is then freed."""
    images: int = 1
    """Images a sequence (vision towers of text models)."""
    source_len: int | None = None
    """Tokens of the encoder of an encoder-decoder; None: as many as the decoder."""
    outputs_held: bool = False
    """The loop keeps ``outputs`` (so the logits) alive through backward, as ``loss = model(...).loss`` in a variable does."""

    @property
    def frozen_layers(self) -> int:
        """How many of the decoder's first layers are frozen."""
        return max((int(part[6:]) for part in self.frozen if part.startswith("first:")), default=0)

    def checkpoints(self, position: int) -> bool:
        """Whether the layer at this position of a tower is checkpointed (torchtitan counts from 1: every K-th)."""
        kind, _, every = self.checkpointing.partition(":")
        return kind != "none" and (position + 1) % int(every or 1) == 0

    @property
    def facts(self) -> Facts:
        """What the job's library does."""
        return facts(self.framework)

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.task in ("train", "finetune")

    @property
    def compute_dtype(self) -> str:
        """The format that matrix products run in."""
        if self.quantization is not None and self.precision.autocast is None:
            return self.quantization.compute
        return self.precision.autocast or self.precision.weights
