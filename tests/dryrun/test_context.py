"""A with block on the simulated device, one step of a module, the self-test, and what is refused. Bytes are by hand."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import nn

from loadmaster.dryrun import selftest
from loadmaster.dryrun.assume import UnsupportedOperatorError, parse_assumption
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.context import open_context, run_step
from loadmaster.dryrun.cuda_api import RefusedError
from loadmaster.errors import BadValueError, LoadmasterError

MIB = 2**20
WORKSPACE = 2 * 4096 * 1024 + 8 * 16 * 1024
"""cuBLAS' on compute capability 8.0 (CublasHandlePool.cpp: :4096:2:16:8); forward and backward have one each."""


def block(size_bytes: int) -> int:
    return -(-size_bytes // 512) * 512


def state_of_torch():
    names = (
        "is_available",
        "device_count",
        "memory_allocated",
        "Stream",
        "mem_get_info",
        "get_device_properties",
    )
    return (
        [getattr(torch.cuda, name) for name in names], torch.cuda.is_available(), torch.compile, torch.save, torch.load,
        torch.Generator, nn.Module._apply, nn.Parameter.__new__, torch.Tensor.pin_memory, threading.Thread.run,
        torch.Tensor._make_subclass, torch.version.cuda, torch._C._only_lift_cpu_tensors(), torch.autograd.backward,
    )  # fmt: skip


def test_inside_the_block_there_is_a_card_and_behind_it_torch_is_as_before():
    before = state_of_torch()
    card = Card(name="NVIDIA L4", total_bytes=22 * 2**30, usable_bytes=21 * 2**30, capability=(8, 9))
    with open_context(card) as d:
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name(0) == "NVIDIA L4"
        assert torch.cuda.get_device_properties(0).total_memory == 22 * 2**30
        assert torch.cuda.mem_get_info()[1] == 22 * 2**30
        kept = torch.ones(1000, device="cuda")
        assert torch.cuda.memory_allocated() == block(4000)
        assert kept.device == torch.device("cuda", 0)
        assert (kept * 2).is_cuda
        assert torch.cuda.max_memory_allocated() == 2 * block(4000)
        host = torch.arange(3)
        assert host.sum().item() == 3
        assert type(host) is torch.Tensor
        assert host.pin_memory().to("cuda", non_blocking=True).tolist() == [0, 1, 2]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda.Event().record()
        generator = torch.Generator(device="cuda").manual_seed(1)
        assert isinstance(generator, torch.Generator)
        assert torch.randn(3, device="cuda", generator=generator).shape == (3,)
    assert state_of_torch() == before
    assert d.result.peak_allocated_bytes == 2 * block(4000)
    assert d.result.card.name == "NVIDIA L4"


def test_an_exception_passes_unchanged_and_torch_is_as_before():
    before = state_of_torch()
    context = open_context()
    error = KeyError("mine")

    def program():
        with context:
            torch.ones(3, device="cuda")
            raise error

    with pytest.raises(KeyError) as caught:
        program()
    assert caught.value is error
    assert state_of_torch() == before
    assert context.result.peak_allocated_bytes == 512


def test_one_dry_run_at_a_time_and_a_result_only_behind_the_block():
    with open_context() as d:
        with pytest.raises(LoadmasterError, match="under way in this process already"), open_context():
            pass
        with pytest.raises(LoadmasterError, match="only after its with block"):
            _ = d.result
        assert torch.cuda.is_available()


def test_a_model_built_on_the_host_costs_no_host_memory_and_keeps_ties_and_optimizer():
    with open_context():
        model = nn.Sequential(*[nn.Linear(32768, 32768, bias=False) for _ in range(8)])  # 32 GiB
        model[1].weight = model[0].weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert torch.cuda.memory_allocated() == 0
        model.to("cuda", dtype=torch.bfloat16)
        assert model[1].weight is model[0].weight
        assert torch.cuda.memory_allocated() == 7 * 2 * 2**30
        assert optimizer.param_groups[0]["params"][0] is model[0].weight
        twin = copy.deepcopy(model[0])
        assert isinstance(twin.weight, nn.Parameter)
        assert torch.cuda.memory_allocated() == 8 * 2 * 2**30


def test_mixed_precision_with_a_scaler_takes_every_step():
    """The optimizer was made before the model moved. Between steps: weights and two moments (step counts are the host's), the
    batch, scale and growth tracker, loss, norm, the cuBLAS workspaces."""
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    weights = sum(block(4 * each.numel()) for each in model.parameters())
    with open_context() as d:
        model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
        optimizer = torch.optim.AdamW(model.parameters())
        model.cuda()
        x, y = torch.randn(32, 64).cuda(), torch.randint(0, 10, (32,)).cuda()
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert torch.isfinite(norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        small = block(32 * 64 * 4) + block(32 * 8) + 4 * 512
        assert torch.cuda.memory_allocated() == 3 * weights + small + 2 * WORKSPACE
        assert scaler.get_scale() == 65536.0
        assert d.session.watch.steps == 2
    assert d.result.steps == 2
    assert d.result.answers == ()


def test_saving_is_left_out_and_counted_small_files_are_read(tmp_path):
    torch.save({"x": torch.arange(4)}, tmp_path / "data.pt")
    with open_context() as d:
        torch.save(nn.Linear(3, 3).cuda().state_dict(), tmp_path / "model.pt")
        assert torch.load(tmp_path / "data.pt")["x"].tolist() == [0, 1, 2, 3]
        assert torch.load(tmp_path / "data.pt", map_location="cuda")["x"].is_cuda
    assert d.result.skipped == (("torch.save", 1),)
    assert not (tmp_path / "model.pt").exists()


def test_a_large_file_is_read_as_shapes(tmp_path):
    torch.save({"w": torch.zeros(20 * MIB)}, tmp_path / "large.pt")  # 80 MiB
    with open_context():
        on_host = torch.load(tmp_path / "large.pt")["w"]
        assert on_host.shape == (20 * MIB,)
        assert on_host.device.type == "cpu"
        assert torch.cuda.memory_allocated() == 0
        kept = torch.load(tmp_path / "large.pt", map_location="cuda:0")["w"]
        assert torch.cuda.memory_allocated() == 80 * MIB
        del kept


def test_questions_for_data_are_answered_and_listed():
    with open_context() as d:
        x = torch.randn(4, 4).cuda().relu() @ torch.randn(4, 4, device="cuda")
        assert x.sum().item() == 1.0
        assert f"{x.mean():.2f}" == "1.00"
        assert not torch.isnan(x).any()
        assert x[x > 0].shape[0] == 16
        lengths = torch.tensor([3, 1]).cuda()
        mask = torch.arange(4, device="cuda")[None] < lengths[:, None]
        assert mask.sum().item() == 4
        assert x.new_zeros(8).reshape(2, 4)[mask].shape == (4,)
        assert torch.unique(torch.tensor([2, 2, 5]).cuda()).tolist() == [2, 5]
        assert torch.bincount(torch.tensor([2, 2, 5]).cuda()).tolist() == [0, 0, 2, 0, 0, 1]
    questions = {(each.question, each.answer): each for each in d.result.answers}
    assert questions["value of a tensor", "1.0"].count >= 1
    assert "test_context.py" in questions["value of a tensor", "1.0"].asker


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: torch.ones(3, device="cuda:1"), "cuda:1: this dry run simulates one GPU"),
        (lambda: torch.ones(3, device="cuda").to("cuda:2"), "cuda:2: this dry run simulates one GPU"),
        (lambda: nn.DataParallel(nn.Linear(3, 3)), "use DistributedDataParallel"),
        (lambda: nn.LazyLinear(3), "give them the size of their input"),
        (lambda: torch.cuda.CUDAGraph(keep_graph=True), "CUDA graphs are not replayed"),
        (lambda: torch.distributed.init_process_group("nccl"), "NCCL isn't simulated"),
        (lambda: torch.bincount(torch.randint(0, 9, (99,), device="cuda")), "give it minlength"),
    ],
)
def test_what_can_not_be_simulated_is_refused(ask, sentence):
    with open_context(), pytest.raises(RefusedError, match=sentence):
        ask()


def test_pointers_and_numpy_are_refused_as_torch_does_it():
    with open_context():
        x = torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="compiled kernel"):
            x.data_ptr()
        with pytest.raises(
            TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            x.numpy()
        embedding = nn.Embedding(9, 4, sparse=True).cuda()
        with pytest.raises(LoadmasterError, match="sparse tensors aren't simulated"):
            embedding(torch.tensor([1]).cuda()).sum().backward()


@pytest.fixture
def unknown_operator():
    library = torch.library.Library("loadmaster_test", "DEF")
    library.define("mystery(Tensor x) -> Tensor")
    yield torch.ops.loadmaster_test.mystery
    library._destroy()


def test_an_operator_without_a_fake_kernel_is_named_with_its_module(unknown_operator):
    class Odd(nn.Module):
        def forward(self, x):
            return unknown_operator(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = Odd()

        def forward(self, x):
            return self.odd(x)

    with (
        open_context(),
        pytest.raises(UnsupportedOperatorError, match="loadmaster_test::mystery in odd") as caught,
    ):
        Net()(torch.ones(300, device="cuda"))
    assert "--assume loadmaster_test::mystery=like:0" in caught.value.hint
    rule = parse_assumption("loadmaster_test::mystery=like:0,float16")
    with open_context(assumptions=(rule,)):
        out = Net()(torch.ones(300, device="cuda"))
        assert out.dtype == torch.float16
        assert torch.cuda.memory_allocated() == block(300 * 2)


@pytest.mark.parametrize("text", ["mystery=like:0", "a::b", "a::b=like", "a::b=like:0,float17", "a::b=same"])
def test_a_bad_assumption_is_a_bad_value(text):
    with pytest.raises(BadValueError, match="assume"):
        parse_assumption(text)


def test_the_programs_own_errors_are_torchs(capfd):
    with open_context(), pytest.raises(RuntimeError, match="same reduction dim"):
        torch.ones(3, 4, device="cuda") @ torch.ones(3, 4, device="cuda")
    assert "Traceback" not in capfd.readouterr().err


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)

    def forward(self, x):
        return self.layer(x) + 1


WEIGHTS = 256 * 256 * 4 + 256 * 4
BATCH = 8 * 256 * 4


@pytest.mark.parametrize("where", ["cpu", "meta", "factory"])
def test_a_step_of_a_module(where):
    """The peak is in the optimizer's second step: weights, gradients, two moments, one temporary, the batch, the loss."""
    model = Net
    if where != "factory":
        with torch.device(where):
            model = Net()
    run = run_step(model, torch.randn(8, 256))
    peaks = {(each.step, each.phase): each.allocated_bytes for each in run.phases}
    assert peaks[2, "optimizer step"] == 5 * WEIGHTS + BATCH + 512 + 2 * WORKSPACE
    assert run.steps == 2
    assert sum(each.size_bytes for each in run.categories) == run.peak_allocated_bytes


def test_a_step_with_an_optimizer_of_the_modules_and_a_step_of_ones_own():
    model = Net()
    weight = model.layer.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(net, batch, optimizer):
        net(batch["x"]).float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run = run_step(model, {"x": torch.randn(8, 256)}, step, optimizer=optimizer, steps=3)
    peaks = {(each.step, each.phase): each.allocated_bytes for each in run.phases}
    # Momentum is added in place: weights, gradients and one state.
    assert peaks[1, "optimizer step"] == 3 * WEIGHTS + BATCH + 2 * WORKSPACE
    assert torch.equal(model.layer.weight, weight)
    assert model.layer.weight.grad is None
    assert optimizer.state == {}


def test_a_step_that_runs_out_of_memory_says_where():
    card = Card(limited=True, usable_bytes=24 * MIB, total_bytes=24 * MIB)
    run = run_step(
        nn.Sequential(Net(), nn.Linear(256, 65536)), torch.randn(8, 256), card=card
    )  # 64 MiB of weights
    assert run.oom is not None
    assert run.oom.phase == "load"
    assert run.oom.requested_bytes == 64 * MIB
    assert run.oom.capacity_bytes == 24 * MIB
    assert not run.oom.handled


def test_code_that_handles_running_out_of_memory_goes_on():
    card = Card(limited=True, usable_bytes=24 * MIB, total_bytes=24 * MIB)
    with open_context(card) as d:
        size = 64 * MIB
        while True:
            try:
                torch.empty(size, dtype=torch.uint8, device="cuda")
                break
            except torch.cuda.OutOfMemoryError:
                size //= 2
        assert size == 16 * MIB
    assert d.result.oom is not None
    assert d.result.oom.handled


def test_the_self_test_says_what_is_off(monkeypatch):
    selftest._passed.clear()
    optimizers = __import__("importlib").import_module("torch.optim.adam")
    monkeypatch.setattr(optimizers, "_default_to_fused_or_foreach", lambda *_, **__: (False, False))
    with pytest.raises(selftest.SelfTestError, match="AdamW's temporaries takes") as caught:
        selftest.check()
    assert torch.__version__ in str(caught.value)
    monkeypatch.undo()
    selftest.check()
