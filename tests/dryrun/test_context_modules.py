"""Modules and optimizers in a with block: made before it, not called in it, and what libraries take beside. Bytes are by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from loadmaster.dryrun.context import open_context, run_step
from loadmaster.errors import BadValueError


def block(size_bytes: int) -> int:
    return -(-size_bytes // 512) * 512


def test_a_module_from_before_is_moved_with_its_optimizer_and_is_as_before_behind_the_block():
    """On the card: two matrices (one is tied), a running mean and variance and a count, and then two moments of what is
    trained. On the host: weights, gradients, buffers, hooks and an optimizer that goes on as if nothing had been."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64, affine=False), nn.Linear(64, 64, bias=False)
    )
    model.append(nn.Linear(64, 64, bias=False))
    model[3].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.ones(2, 64)).sum()  # its graph holds the parameters
    loss.backward()
    twin = copy.deepcopy(model)
    gradient = model[0].weight.grad.clone()
    with open_context() as d:
        model.cuda()
        assert torch.cuda.memory_allocated() == 2 * 2 * block(64 * 64 * 4) + 2 * block(256) + block(8)
        model(torch.ones(2, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        shares = 4 * block(64 * 64 * 4), 2 * block(64 * 64 * 4)
    found = {share.name: share.size_bytes for share in d.result.categories}
    assert (found["optimizer states"], found["parameters"]) == shares
    assert not optimizer.state
    assert model[3].weight is model[0].weight
    assert torch.equal(model[0].weight.grad, gradient)
    assert not model[0].weight._post_accumulate_grad_hooks
    for mine, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    fresh = torch.optim.AdamW(twin.parameters())
    twin[0].weight.grad, twin[2].weight.grad = gradient.clone(), model[2].weight.grad.clone()
    optimizer.step()
    fresh.step()
    assert torch.equal(model[0].weight, twin[0].weight)


def test_modules_that_were_not_called_yet_are_parameters_and_buffers():
    with open_context() as d:
        kept = nn.Linear(1024, 1024, bias=False).cuda(), nn.Linear(1024, 1024, bias=False, device="cuda")
        norm = nn.BatchNorm1d(1024, affine=False).cuda()
    assert kept
    assert norm
    shares = {share.name: share.size_bytes for share in d.result.categories}
    assert shares == {"parameters": 2 * 2**22, "buffers": 2 * 4096 + block(8)}


def test_what_cudnn_and_lbfgs_take_beside_is_said():
    with open_context() as d:
        model = nn.Conv1d(8, 8, 3).cuda()
        optimizer = torch.optim.LBFGS(model.parameters(), history_size=5)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(1, 8, 16, device="cuda")).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    pair_bytes = 2 * 4 * (8 * 8 * 3 + 8)
    assert any(
        f"up to 5 pairs of {pair_bytes / 1024:.1f} KiB, {5 * pair_bytes / 1024:.1f} KiB in all" in note
        for note in d.result.notes
    )
    assert sum("cuDNN's workspace" in note for note in d.result.notes) == 1


def test_states_on_the_host_and_weights_on_the_card_are_an_error_as_on_a_card():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    with open_context():
        model.cuda()
        model(torch.ones(1, 8, device="cuda")).sum().backward()
        with pytest.raises(RuntimeError, match="at least two devices, cpu and cuda:0"):
            optimizer.step()


@pytest.mark.parametrize("batch_first", [True, False])
def test_sequences_are_packed_as_on_the_host(batch_first):
    lengths, shape = torch.tensor([3, 9, 9, 1]), (4, 9, 16) if batch_first else (9, 4, 16)

    def steps(device):
        x = torch.ones(shape, device=device, requires_grad=True)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        layer = nn.GRU(16, 8, batch_first=batch_first).to(device)
        padded, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first)
        padded.sum().backward()
        return packed.data.shape, packed.batch_sizes.tolist(), padded.shape, x.grad.shape

    with open_context():
        simulated = steps("cuda")
    assert simulated == steps("cpu")
    assert simulated[0] == (22, 16)  # 3 + 9 + 9 + 1


def test_an_optimizer_is_no_name():
    with pytest.raises(BadValueError, match=r"optimizer is 'sgd'; expected an optimizer"):
        run_step(nn.Linear(2, 2), torch.ones(1, 2), optimizer="sgd")


def test_gradients_of_each_sample():
    """vmap over grad: a gradient of the weight for each of 512 samples, and of nothing else."""
    with open_context():
        model = nn.Linear(64, 64, bias=False).cuda()
        weights = {name: param.detach() for name, param in model.named_parameters()}

        def loss(weights, sample):
            return torch.func.functional_call(model, weights, (sample,)).sum()

        batch = torch.zeros(512, 64, device="cuda")
        before = torch.cuda.memory_allocated()
        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, batch)
        workspace = 2 * 4096 * 1024 + 8 * 16 * 1024
        assert found["weight"].shape == (512, 64, 64)
        assert torch.cuda.memory_allocated() - before in (
            512 * 64 * 64 * 4 + n * workspace for n in (0, 1, 2)
        )
