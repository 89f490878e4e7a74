"""Several GPUs: each term of a rank's memory against arithmetic done here, on models small enough to add up by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from loadmaster.dryrun.card import Card
from loadmaster.dryrun.events import Block, Trace
from loadmaster.dryrun.layouts import fsdp, groups, tensor_parallel
from loadmaster.dryrun.layouts.apply import roles, wrap
from loadmaster.dryrun.layouts.describe import Parallel, check_heads, parse_parallel
from loadmaster.dryrun.layouts.run import Role, simulate_ranks
from loadmaster.dryrun.result import DryRun
from loadmaster.dryrun.session import Session
from loadmaster.dryrun.summary import summarise
from loadmaster.errors import BadValueError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module.*view tensor:UserWarning")

WIDTH, LAYERS = 512, 4
LAYER = 2 * 4 * WIDTH * WIDTH
"""Parameters of a layer: two matrices of 4·512 × 512."""
MODEL = LAYERS * LAYER


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return out


def stack() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*[Layer() for _ in range(LAYERS)])


def trained(parallel: Parallel, rank: int = 0, steps: int = 3) -> Session:
    """Steps of AdamW on the little model, as this rank."""
    session = Session()
    with session:
        model = wrap(session, stack(), parallel, rank, name="model")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(steps):
            model(torch.zeros(8, WIDTH, device="cuda")).float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        del model, optimizer
    return session


def most(trace: Trace, wanted: Callable[[Block], bool]) -> int:
    """The most bytes that wanted blocks ask for at once."""
    now = highest = 0
    for event in trace.events:
        block = trace.blocks[event if event is not None and event >= 0 else ~(event or 0)]
        if event is not None and wanted(block):
            now += block.requested_bytes if event >= 0 else -block.requested_bytes
            highest = max(highest, now)
    return highest


def is_a(category: str, phase: str | None = None, step: int | None = None) -> Callable[[Block], bool]:
    return lambda block: (
        block.category == category
        and (phase is None or block.phase == phase)
        and (step is None or block.step == step)
    )


def test_fsdp2_shards_gathers_and_reduces_as_the_arithmetic_says() -> None:
    """Four ranks, parameters in fp32, gathered in bf16, gradients reduced in fp32.

    In backward a layer's gradients lie in the reduce-scatter's input (4 bytes per parameter) while the next layer is there
    whole (2) and the one after it is being gathered (2) from this rank's copy in bf16 (2 over the ranks). In forward a layer
    is copied out (2) of what was gathered (2), and what the last one was gathered into (2) is let go after that
    (FSDPCommContext.all_gather_state).
    """
    ranks = 4
    found = trained(parse_parallel(gpus=ranks, param_dtype="bf16", reduce_dtype="fp32"))
    trace = found.tracker.trace
    assert most(trace, is_a("parameters")) == MODEL * 4 // ranks
    assert most(trace, is_a("optimizer states")) == 2 * MODEL * 4 // ranks
    whole = [b for b in trace.blocks if b.category == "gradients" and not b.stream]
    shards = [b for b in trace.blocks if b.category == "gradients" and b.stream]
    assert [b.requested_bytes for b in whole] == [LAYER // 2 * 2] * 2 * LAYERS * 3, "of each matrix, in bf16"
    assert [b.requested_bytes for b in shards] == [LAYER * 4 // ranks] * LAYERS * 3
    assert len({b.stream for b in shards}) == 1, "reduced on a stream of its own"
    assert most(trace, is_a("gathered", "backward")) == LAYER * (4 + 2 + 2) + LAYER * 2 // ranks
    assert most(trace, is_a("gathered", "forward")) == LAYER * (2 + 2 + 2)
    gathers = [b for b in trace.blocks if b.requested_bytes == LAYER * 2 and b.stream]
    assert len(gathers) == 3 * 2 * LAYERS, "once for forward and once for backward"


def test_fsdp2_that_keeps_what_it_gathered_gathers_once() -> None:
    found = trained(parse_parallel(gpus=4, param_dtype="bf16", reduce_dtype="fp32", reshard="false"))
    trace = found.tracker.trace
    assert len([b for b in trace.blocks if b.requested_bytes == LAYER * 2 and b.stream]) == 3 * LAYERS
    assert (
        most(trace, lambda b: b.category == "gathered" and b.stream == 0 and b.phase == "forward")
        == MODEL * 2
    )


def test_fsdp2_reshards_to_a_part_of_the_ranks() -> None:
    """reshard_after_forward=2: after its forward each layer keeps a half in bf16."""
    found = trained(parse_parallel(gpus=4, param_dtype="bf16", reduce_dtype="fp32", reshard=2))
    kept = [b for b in found.tracker.trace.blocks if b.op == "clone" and b.phase == "forward"]
    assert {b.category for b in kept} == {"gathered"}
    assert sum(b.requested_bytes for b in kept) == 3 * MODEL * 2 // 2


def test_replicas_of_shards_divide_by_the_shards_only() -> None:
    found = trained(parse_parallel(gpus=8, replicate=2))
    assert most(found.tracker.trace, is_a("parameters")) == MODEL * 4 // 4
    assert most(found.tracker.trace, is_a("optimizer states")) == 2 * MODEL * 4 // 4


def test_offloaded_shards_leave_the_card_between_steps() -> None:
    """CPUOffloadPolicy: only cuBLAS' workspace stays; shards come over for a gather and gradients go back."""
    found = trained(parse_parallel(gpus=4, offload=True))
    trace = found.tracker.trace
    assert {b.category for b in trace.alive(len(trace.events) - 1)} <= {"workspace", None}
    assert most(trace, is_a("parameters")) == most(trace, is_a("optimizer states")) == 0
    assert most(trace, is_a("gathered")) >= LAYER * 4


@pytest.mark.parametrize(("rank", "rows"), [(0, (683, 171)), (2, (682, 170))])
def test_lengths_that_do_not_divide_leave_the_last_rank_less(rank: int, rows: tuple[int, int]) -> None:
    """2048 and 512 rows over three ranks: 683 and 171 on the first two. Parameters are padded to that on the last one too."""
    trace = trained(parse_parallel(gpus=3), rank).tracker.trace
    up, down = rows
    assert most(trace, is_a("optimizer states")) == LAYERS * 2 * 4 * (up * WIDTH + down * 4 * WIDTH)
    padded = [b for b in trace.blocks if b.category == "parameters" and b.died is None]
    assert sum(b.requested_bytes for b in padded) == LAYERS * 4 * (683 * WIDTH + 171 * 4 * WIDTH)


def test_ranks_that_differ_are_named() -> None:
    model = stack()
    assert roles(parse_parallel(gpus=8), model) == [Role("every rank", tuple(range(8)))]
    assert roles(parse_parallel(gpus=3), model) == [Role("ranks 0-1", (0, 1)), Role("rank 2", (2,))]
    # Shards are the inner dimension of 2 replicas: ranks 2 and 5 are the last of three.
    assert roles(parse_parallel(gpus=6, replicate=2), model)[1] == Role("ranks 2, 5", (2, 5))
    assert roles(parse_parallel(gpus=3, strategy="ddp"), model) == [Role("every rank", (0, 1, 2))]
    # 5 rows over 4 ranks are 2, 2, 1 and 0.
    small = nn.Linear(3, 5, bias=False, device="meta")
    assert [role.ranks for role in roles(parse_parallel(gpus=4), small)] == [(0, 1), (2,), (3,)]


def test_ddp_buckets_are_its_reducers_own() -> None:
    """reducer.cpp: one bucket for all until the order of gradients is known, then the first of at least 1 MiB, others of
    at least 25: of eight matrices of 4 MiB that is one and seven."""
    found = trained(parse_parallel(gpus=4, strategy="ddp"))
    buckets = [
        b for b in found.tracker.trace.blocks if b.category == "gathered" and b.requested_bytes > 2**20
    ]
    broadcast, first, *rebuilt = [b.requested_bytes for b in buckets]
    assert broadcast == first == MODEL * 4, "parameters are sent from rank 0 in one piece of at most 250 MB"
    assert sorted(rebuilt) == [4 * 2**20, 28 * 2**20]


def test_ddp_gradients_that_are_views_of_buckets_cost_nothing() -> None:
    plain = trained(parse_parallel(gpus=4, strategy="ddp"))
    view = trained(parse_parallel(gpus=4, strategy="ddp", bucket_view=True))
    static = trained(parse_parallel(gpus=4, strategy="ddp", bucket_view=True, static_graph=True))
    plain_peak, view_peak, static_peak = (
        max(each.tracker.trace.allocated_bytes) for each in (plain, view, static)
    )
    assert plain_peak - view_peak == MODEL * 4
    assert static_peak - view_peak == 512, "the map of used parameters"


def test_tensor_parallel_cuts_what_the_models_plan_cuts() -> None:
    """Llama: projections, embedding and head are halved on two ranks, norms are whole."""
    hidden, middle, vocab, heads, kv = 64, 160, 1000, 4, 2
    norms = 3 * hidden
    attention = hidden * hidden * 2 + hidden * (hidden * kv // heads) * 2
    cut = vocab * hidden * 2 + attention + 3 * hidden * middle
    for parallel, shards in (
        (parse_parallel(gpus=2, tensor=2), 1),
        (parse_parallel(gpus=4, tensor=2), 2),
    ):
        model = llama(hidden, middle, vocab, heads, kv)
        session = Session()
        with session:
            model = wrap(session, model, parallel, 0)
            found = sum(getattr(p, "_local_tensor", p).numel() for p in model.parameters())
            ids = torch.zeros(2, 32, dtype=torch.long, device="cuda")
            optimizer = torch.optim.AdamW(model.parameters())
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            states = sum(
                s._local_tensor.numel() for each in optimizer.state.values() for s in each.values() if s.dim()
            )
        assert found == cut // 2 // shards + norms // shards
        assert states == 2 * found


def test_a_plan_is_also_done_by_torchs_own_styles() -> None:
    """As with a transformers that has no DTensor styles: the same shards, and a step runs."""
    from torch.distributed.device_mesh import init_device_mesh

    model = llama(64, 160, 1000, 4, 2)
    session = Session()
    with session:
        groups.start(session._patches, session, 2, 0)
        tensor_parallel.apply_plan(model, init_device_mesh("cuda", (2,)), tensor_parallel.plan_of(model))
        fsdp.materialise(session, model)
        local = [getattr(p, "_local_tensor", p).numel() for p in model.parameters()]
        ids = torch.zeros(2, 32, dtype=torch.long, device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
    norms = 3 * 64
    whole = sum(p.numel() for p in llama(64, 160, 1000, 4, 2).parameters())
    assert sum(local) == (whole - norms) // 2 + norms


def llama(hidden: int, middle: int, vocab: int, heads: int, kv: int) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=1,
        hidden_size=hidden,
        intermediate_size=middle,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        vocab_size=vocab,
    )
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def test_a_tied_head_stays_one_tensor() -> None:
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=64, intermediate_size=64, num_attention_heads=4, vocab_size=128,
        tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    session = Session()
    with session:
        wrapped = wrap(session, model, parse_parallel(gpus=2, tensor=2), 0)
        assert wrapped.lm_head.weight is wrapped.model.embed_tokens.weight
        assert wrapped.lm_head.weight._local_tensor.shape == (64, 64)


def test_a_model_without_a_plan_is_refused_in_a_sentence() -> None:
    session = Session()
    with session, pytest.raises(UsageError, match="Sequential has no tensor-parallel plan"):
        wrap(session, stack(), parse_parallel(gpus=2, tensor=2), 0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"gpus": 8, "tensor": 3}, "--tensor-parallel is 3; expected a divisor of the 8 GPUs: 1, 2, 4, 8"),
        ({"gpus": 8, "replicate": 3}, "--replicate is 3; expected a divisor of the 8 data-parallel ranks"),
        ({"gpus": 8, "reshard": "5"}, "--reshard is '5'; expected true, false, or a divisor of the 8 shards"),
        ({"gpus": 8, "strategy": "zero"}, "--strategy is 'zero'; expected ddp or fsdp2"),
        ({"gpus": 8, "param_dtype": "int4"}, "--param-dtype is 'int4'"),
        ({"gpus": 4, "strategy": "ddp", "offload": True}, "--offload is True; expected --strategy fsdp2"),
        ({"gpus": 4, "strategy": "ddp", "tensor": 2}, "--strategy is 'ddp'; expected fsdp2"),
        ({"gpus": 0}, "--gpus is 0; expected at least 1"),
    ],
)
def test_numbers_that_do_not_go_together(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValueError) as raised:
        parse_parallel(**words)
    assert sentence in str(raised.value)
    assert raised.value.exit_code == 2


def test_words_become_a_layout() -> None:
    assert parse_parallel(gpus=16, tensor=2, replicate=2, reshard="4", param_dtype="bf16") == Parallel(
        data_parallel=8, fsdp=4, replicate=2, tensor=2, reshard=True, param_dtype="bfloat16"
    )
    assert parse_parallel(gpus=4, strategy="ddp") == Parallel(
        data_parallel=4, fsdp=1, replicate=4, strategy="ddp"
    )
    assert str(parse_parallel(gpus=16, tensor=2, replicate=2)) == (
        "16 GPUs, HSDP, 2 replicas of 4 shards, tensor parallel 2"
    )


def test_heads_have_to_divide() -> None:
    config = type("Config", (), {"num_attention_heads": 32, "num_key_value_heads": 8})()
    check_heads(parse_parallel(gpus=8, tensor=8), config)
    with pytest.raises(BadValueError, match=r"divisor of num_key_value_heads \(8\): 1, 2, 4, 8"):
        check_heads(parse_parallel(gpus=16, tensor=16), config)


def test_the_worst_rank_is_the_answer() -> None:
    parallel = parse_parallel(gpus=3)

    def run_one(rank: int) -> DryRun:
        session = trained(parallel, rank, steps=2)
        return summarise(session, name=f"rank {rank}", program="", started_s=0.0)

    found = simulate_ranks(run_one, roles(parallel, stack()))
    assert found.name == "rank 0"
    assert [(each.name, each.ranks) for each in found.ranks] == [("ranks 0-1", (0, 1)), ("rank 2", (2,))]
    first, last = found.ranks
    assert first.allocated_bytes == found.peak_allocated_bytes
    assert first.allocated_bytes > last.allocated_bytes
    assert sum(share.size_bytes for share in found.categories) == found.peak_allocated_bytes


def test_a_rank_that_runs_out_of_memory_is_the_worst() -> None:
    def run_one(rank: int) -> DryRun:
        session = Session(Card(limited=True, usable_bytes=2**28, total_bytes=2**28))
        with session:
            if rank:
                with pytest.raises(torch.OutOfMemoryError):
                    torch.empty(2**29, device="cuda")
            else:
                torch.empty(2**20, device="cuda")
        return summarise(session, name=f"rank {rank}", program="", started_s=0.0)

    found = simulate_ranks(run_one, [Role("rank 0", (0,)), Role("rank 1", (1,))])
    assert found.name == "rank 1"
    assert found.oom is not None


@contextmanager
def torchrun(world: int, rank: int = 0) -> Iterator[None]:
    added = {
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def test_a_program_that_makes_its_own_group_gets_the_fake_one() -> None:
    """As under torchrun: the module is on the card when it is sharded, whose full parameters are then given back."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    session = Session()
    with torchrun(8, rank=3), session:
        dist.init_process_group("nccl")
        torch.cuda.set_device(0)
        assert (dist.get_world_size(), dist.get_rank()) == (8, 3)
        with torch.device("cuda"):
            model = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        assert torch.cuda.memory_allocated() == MODEL * 4
        mesh = init_device_mesh("cuda", (8,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert torch.cuda.memory_allocated() == MODEL * 4 // 8
        model(torch.zeros(8, WIDTH, device="cuda")).sum().backward()
        dist.barrier()
        dist.destroy_process_group()
    assert not dist.is_initialized()
    assert session.notes == [
        "torch.distributed: rank 3 of 8 is simulated; collectives take their memory and move nothing"
    ]


def test_ddp_of_a_program_as_people_write_it() -> None:
    from torch.nn.parallel import DistributedDataParallel

    session = Session()
    with torchrun(2), session:
        dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
        model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False).to("cuda"), device_ids=[0])
        for _ in range(2):
            model(torch.zeros(8, WIDTH, device="cuda")).sum().backward()
        assert model.module.weight.grad is not None
    assert not dist.is_initialized()
    buckets = [
        b for b in session.tracker.trace.blocks if b.category == "gathered" and b.requested_bytes >= 2**20
    ]
    assert [b.requested_bytes for b in buckets][:1] == [WIDTH * WIDTH * 4]


def test_every_rank_is_taken_to_hold_what_this_one_holds() -> None:
    session = Session()
    with torchrun(4), session:
        dist.init_process_group("nccl")
        count = torch.tensor([7]).cuda()
        dist.all_reduce(count)
        assert count.item() == 28
        dist.all_reduce(count, op=dist.ReduceOp.MAX)
        assert count.item() == 28
        lengths = torch.empty(4, dtype=torch.long, device="cuda")
        dist.all_gather_single(lengths, torch.tensor([5]).cuda())
        assert lengths.tolist() == [5, 5, 5, 5]
        objects: list[Any] = [None] * 4
        dist.all_gather_object(objects, {"loss": 1})
        assert objects == [{"loss": 1}] * 4
        assert dist.new_group([0, 1], backend="gloo").size() == 2
        work = dist.all_reduce(torch.ones(2, device="cuda"), async_op=True)
        assert work.wait()
    assert session.values.stated == {}
