"""ModelSpec: a network as repeated blocks with shapes; it knows no batch, precision or device.

A family (``families/<model_type>.py``) turns a config into these records; everything else is derived from them:
``models/parameters.py`` lists the parameter tensors, ``memory/`` the tensors that live during a step.
Unknown is ``None``, never 0.
"""

from __future__ import annotations

from typing import Literal

from loadmaster.records import Record


class Linear(Record, kw_only=True):
    """One weight matrix of ``inputs`` × ``outputs`` (torch.nn.Linear, or Conv1D of GPT-2), named as in the checkpoint
    relative to its layer, for example ``self_attn.q_proj``; LoRA targets match the last part of the name."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    inputs_first: bool = False
    """The weight is inputs × outputs (GPT-2's Conv1D), not outputs × inputs."""
    role: str | None = None
    """What it counts as (``attention``, ``mlp`` ...); None: what its place says."""
    derived: bool = False
    """Its class is derived from torch.nn.Linear (FalconLinear): adapters reach it, loaders that pack nn.Linear itself don't."""
    kept: bool = False
    """The class keeps it in float32 where weights are float16, and 4-bit loaders leave it (``_keep_in_fp32_modules``)."""


class Convolution(Record, kw_only=True):
    """A convolution layer, ``kernel`` by spatial axis; ``stride`` above one shrinks the plane."""

    name: str
    inputs: int
    outputs: int
    kernel: tuple[int, ...]
    stride: int = 1
    groups: int = 1
    bias: bool = True


class Parameter(Record, kw_only=True):
    """A parameter tensor that is no linear layer and no norm: convolution, sink, position table, scale ..."""

    name: str
    shape: tuple[int, ...]
    role: str | None = None
    """What it counts as (``position``, ``head`` ...); None: what its place says."""


class Norm(Record, kw_only=True):
    """A normalisation over ``size`` values. ``rms`` is written out in float32 by transformers' RMSNorm classes
    (``native`` False); ``layer`` is torch.nn.LayerNorm's own kernel. ``weight`` False: no parameters."""

    kind: Literal["rms", "layer", "group"]
    size: int
    weight: bool = True
    bias: bool = False
    native: bool = False
    plus_one: bool = False
    """Gemma's RMSNorm multiplies by (1 + weight) in float32, before casting back."""
    narrow: bool = False
    """Only the statistics are in float32; the values themselves are multiplied as they come (T5)."""
    wide_scale: bool = False
    """The weight multiplies the float32 values, and the product is cast back (OLMo 2, gpt-oss)."""
    name: str = ""
    """Module name in the checkpoint, relative to its layer (``self_attn.q_norm``); full outside the layers."""


class Latent(Record, kw_only=True):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): ranks and the split of a head."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int


class Attention(Record, kw_only=True, tag=True):
    """Softmax attention. ``projections`` are the query/key/value matrices in the order they run: three, one fused,
    or MLA's chain; ``head_dim`` is a query/key head (MLA: nope + rope), ``value_dim`` a value head."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    projections: tuple[Linear, ...]
    output: Linear
    window: int | None = None
    """Most keys a query can see (sliding window or chunk); None: all of them."""
    position: Literal["rope", "alibi", "learned", "relative", "none"] = "rope"
    bias: Literal["none", "made", "shared"] = "none"
    """A bias of every head, query and key that is added to the scores (T5): made in this layer, or handed on from the one that
    made it. Of a cross-attention it is zeros."""
    relative: tuple[str, ...] = ()
    """DeBERTa's terms of content and position in the scores: ``c2p``, ``p2c``."""
    span: int = 0
    """Distances each way that ``relative`` terms tell apart."""
    block_mask: bool = False
    """The class hands SDPA a mask of queries × keys in the weights' format, which keeps pictures apart (Pixtral)."""
    head_major: bool = False
    """Queries, keys and values are laid out head by head before the kernel (Whisper)."""
    rotary_dim: int | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    inner_norms: tuple[tuple[str, Norm], ...] = ()
    """Norms inside the projections: MLA's on its two latents."""
    latent: Latent | None = None
    softcap: bool = False
    """Scores go through tanh before softmax (Gemma 2): rules out fused kernels that lack it."""
    sinks: int = 0
    """Learned sink logits (gpt-oss): one per head; rules out SDPA. The tensor itself is in ``extra``."""
    gated_output: bool = False
    """The attention output is multiplied by a sigmoid gate (Qwen3-Next)."""
    cross: bool = False
    """Keys and values come from another tower; their cache is that tower's length."""
    causal: bool = True
    masked: bool = False
    """The model hands over an explicit mask even where it is causal alone (pictures' tokens that see each other): no flash."""
    shares_kv: bool = False
    """Reads the cache of an earlier layer (Gemma 3n): no keys and values of its own."""
    clip_qkv: bool = False
    grouping: Literal["gqa", "repeat", "broadcast"] = "gqa"
    """How fewer key heads meet all query heads under SDPA: its own grouping, copies made before, or broadcasting, which
    leaves only the math path (Falcon 7B)."""
    wide_softmax: bool = True
    """Eager attention takes its softmax in float32 (not so in BERT, T5, Whisper, GPT-2 ...)."""
    sdpa: bool = True
    """Whether transformers' class can use scaled_dot_product_attention; without it the default is eager attention."""
    dropout: float = 0.0
    """Of the attention weights."""
    cached_heads: int | None = None
    """Heads in the KV cache where they are not ``kv_heads`` (Falcon 40B caches keys copied to all query heads)."""
    extra: tuple[Parameter, ...] = ()
    """Its own parameters besides projections and norms: sinks, relative position tables."""


class StateSpace(Record, kw_only=True, tag=True):
    """A recurrent mixer: Mamba 1 or 2, or a gated delta rule (Qwen3-Next's linear attention). ``inner`` is its width,
    ``conv_channels`` the width of its short convolution; states are per sequence, whatever its length."""

    kind: Literal["mamba1", "mamba2", "gated_delta"]
    inner: int
    state: int
    conv_kernel: int
    conv_channels: int
    heads: int | None = None
    head_dim: int | None = None
    groups: int | None = None
    dt_rank: int | None = None
    projections: tuple[Linear, ...] = ()
    output: Linear
    extra: tuple[Parameter, ...] = ()
    inner_norms: tuple[tuple[str, Norm], ...] = ()


class Mlp(Record, kw_only=True, tag=True):
    """A feed-forward: ``projections`` in (gate and up, one fused, or one), the activation, ``output``."""

    width: int
    gated: bool
    activation: str
    projections: tuple[Linear, ...]
    output: Linear
    dropout: float = 0.0
    """Of what goes into ``output`` (T5)."""


class Experts(Record, kw_only=True, tag=True):
    """A mixture of experts: ``count`` copies of ``expert`` of which a token takes ``per_token``; ``shared`` is for
    all. ``stacked``: the weights are 3-D tensors, not a list of modules, so that LoRA's all-linear and 4-bit loaders
    pass them by."""

    count: int
    per_token: int
    expert: Mlp
    router: Linear
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    stacked: bool = False
    wide_weights: bool = False
    """Routing weights stay in float32, and so what the experts' outputs become by them."""
    wide_router: bool = False
    """The router's product is taken in float32, from copies of its input and its weight."""
    all_tokens: bool = False
    """Every expert runs on all tokens, which scores have set to zero where it isn't chosen (Llama 4)."""
    inputs_first: bool = False
    """A stacked tensor is experts × inputs × outputs (gpt-oss, Llama 4), not experts × outputs × inputs."""
    extra: tuple[Parameter, ...] = ()


Mixer = Attention | StateSpace
FeedForward = Mlp | Experts


class Block(Record, kw_only=True):
    """One kind of layer. ``norms`` are named by their place: ``pre_mixer``, ``post_mixer``, ``pre_cross``,
    ``pre_feedforward``, ``post_feedforward``, ``out``; in a ``parallel`` block feed-forward and mixer read the same
    input (GPT-J, NeoX, Falcon, Phi-2), through ``pre_mixer`` alone where ``pre_feedforward`` is missing. ``post_norm``:
    norms come after the residual sum (BERT)."""

    name: str = "layer"
    mixer: Mixer | None = None
    cross: Attention | None = None
    feedforward: FeedForward | None = None
    norms: tuple[tuple[str, Norm], ...] = ()
    parallel: bool = False
    post_norm: bool = False
    modulated: bool = False
    """Its norms are scaled and shifted, and what it adds is gated, by vectors of the time step (diffusion transformers)."""
    linears: tuple[Linear, ...] = ()
    convolutions: tuple[Convolution, ...] = ()
    extra: tuple[Parameter, ...] = ()
    scale: int = 1
    """In an image tower: its plane is the tower's, divided by this on each side."""
    dropout: float = 0.0
    """Of what the mixer and the feed-forward add to the residual stream (GPT-2, OPT, BERT: 0.1 by default)."""


class Embedding(Record, kw_only=True):
    """A look-up table of ``rows`` × ``width``: tokens, positions, token types."""

    name: str
    role: Literal["token", "position", "type", "other"]
    rows: int
    width: int


class Head(Record, kw_only=True):
    """The output projection to ``vocab`` logits; ``tied`` shares the token table. ``linears`` come before it (BERT).
    ``per_token`` False: one row of logits for a whole input (a classifier)."""

    name: str = "lm_head"
    vocab: int
    inputs: int
    tied: bool
    per_token: bool = True
    bias: bool = False
    softcap: bool = False
    upcast: bool = True
    """The class' own loss casts the logits to float32 (ForCausalLMLoss); T5, Whisper and BART take them as they are."""
    always_tied: bool = False
    """transformers 5 ties it whatever the config says (T5Config)."""
    last_only: bool = True
    """Its forward can be asked for the last token's logits alone (logits_to_keep); T5's and Whisper's can't."""
    linears: tuple[Linear, ...] = ()
    norms: tuple[tuple[str, Norm], ...] = ()
    extra: tuple[Parameter, ...] = ()


class Tower(Record, kw_only=True):
    """A stack of blocks of one width: the decoder, an encoder, a vision tower. ``layout[i]`` is the index in ``blocks``
    of layer i; its tensors are named ``prefix.i.name`` in the checkpoint, or in full where ``prefix`` is empty.
    ``linears`` and ``norms`` are outside the layers (projector, final norm)."""

    name: str
    hidden: int
    prefix: str = ""
    blocks: tuple[Block, ...]
    layout: tuple[int, ...]
    embeddings: tuple[Embedding, ...] = ()
    norms: tuple[tuple[str, Norm], ...] = ()
    linears: tuple[Linear, ...] = ()
    convolutions: tuple[Convolution, ...] = ()
    extra: tuple[Parameter, ...] = ()
    tokens: int | None = None
    """Its fixed sequence length (image patches, audio frames); None: the job's length."""
    input_values: int = 0
    """Values of one picture or sound as a batch brings it."""
    stem: int = 0
    """Values of one input that what stands before its layers keeps for backward (Whisper's convolutions)."""
    modality: Literal["text", "vision", "audio", "image_latent", "image"] = "text"
    plane: tuple[int, ...] | None = None
    """An image tower's usual height and width: pixels (``image``) or latents (``image_latent``)."""


class Stored(Record, kw_only=True):
    """The tensor files a model was read from: total bytes, bytes by number format, the largest file."""

    total_bytes: int
    dtypes: tuple[tuple[str, int], ...]
    """(number format, bytes) for each that occurs; a tuple, so that a spec can be a key."""
    largest_file_bytes: int
    files: int
    parameters: int | None = None
    """Values in the files, or None where a packed format hides the count."""

    @property
    def by_dtype_bytes(self) -> dict[str, int]:
        """Bytes by number format."""
        return dict(self.dtypes)


class ModelSpec(Record, kw_only=True):
    """A network. ``origin`` says where it was read; ``warnings`` name fields that could matter and were not used."""

    name: str
    model_type: str
    towers: tuple[Tower, ...]
    head: Head | None
    stored_dtype: str | None = None
    quantization: str | None = None
    """The format the checkpoint itself is in when it isn't plain (fp8, mxfp4, gptq, awq, Q4_K_M ...)."""
    max_positions: int | None = None
    stored: Stored | None = None
    published_parameters: int | None = None
    published_note: str | None = None
    """What the published count holds besides the parameters, where the two differ."""
    origin: str
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    """What had to be assumed because the source doesn't say (``--params 7B``)."""
    exact: bool = True
    """False: shapes are guessed from a count or from tensor names, so the ledger's interval is wider."""

    @property
    def decoder(self) -> Tower:
        """The tower whose output meets the head: the last text tower; in an image pipeline the one that denoises."""
        denoisers = [tower for tower in self.towers if tower.modality == "image_latent"]
        if denoisers and self.head is None:
            return denoisers[0]
        text = [tower for tower in self.towers if tower.modality == "text"]
        return (text or list(self.towers))[-1]
