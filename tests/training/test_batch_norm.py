"""Batch norm with ReLU for many slots: PyTorch's own for every slot, padding left out, gradients and all."""

import pytest
import torch
from torch import nn

from mppfl.training.engines import batch_norm_relu

EPS = 1e-5


def drawn(slots=3, examples=5, side=4, channels=6, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=dtype)

    x = 3 * draw(slots, examples, side, side, channels) + 2
    return x, 1 + draw(slots, channels), draw(slots, channels)


def by_pytorch(x, scale, shift, size):
    """One slot's first `size` examples."""
    pictures = x[:size].permute(0, 3, 1, 2)
    found = nn.functional.batch_norm(pictures, None, None, scale, shift, training=True, eps=EPS).relu()
    return found.permute(0, 2, 3, 1)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 2, 1), (3, 5, 4)])
def test_every_slot_is_normalised_as_by_pytorch_over_its_own_examples(sizes):
    x, scale, shift = (each.requires_grad_() for each in drawn())
    present = torch.arange(5)[None] < torch.tensor(sizes)[:, None]
    weigh = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    ours = batch_norm_relu(x, scale, shift, present, EPS)
    theirs = [by_pytorch(*each) for each in zip(x, scale, shift, sizes, strict=True)]
    for slot, size in enumerate(sizes):
        torch.testing.assert_close(ours[slot, :size], theirs[slot])
    mine = (ours * weigh).sum()  # padding gives 0, and nothing goes back to it
    plain = sum((found * weigh[slot, : sizes[slot]]).sum() for slot, found in enumerate(theirs))
    for own, reference in zip(
        torch.autograd.grad(mine, (x, scale, shift)), torch.autograd.grad(plain, (x, scale, shift)), strict=True
    ):
        torch.testing.assert_close(own, reference)


def test_gradients_agree_with_finite_differences():
    x, scale, shift = (each.requires_grad_() for each in drawn(slots=2, examples=3, side=2, channels=2))
    present = torch.tensor([[True, True, True], [True, True, False]])

    assert torch.autograd.gradcheck(lambda *given: batch_norm_relu(*given, present, EPS), (x, scale, shift))


def test_padding_gives_0_and_nothing_goes_back_to_it():
    x, scale, shift = drawn(slots=2)
    present = torch.tensor([[True, True, True, True, False], [False] * 5])
    found = batch_norm_relu(x.requires_grad_(), scale, shift, present, EPS)
    (back,) = torch.autograd.grad(found.square().sum(), x)
    for each in (found, back):
        assert each[0, :4].any()
        assert not each[0, 4].any()
        assert not each[1].any()


def test_low_precision_is_averaged_in_a_higher_one():
    x, scale, shift = drawn(examples=64, side=16, dtype=torch.float32)
    low, present = (x + 50).bfloat16(), torch.ones(3, 64, dtype=torch.bool)
    rounded = batch_norm_relu(low, scale.bfloat16(), shift.bfloat16(), present, EPS)
    assert rounded.dtype == torch.bfloat16
    exact = batch_norm_relu(low.double(), scale.bfloat16().double(), shift.bfloat16().double(), present, EPS)
    torch.testing.assert_close(rounded.double(), exact, atol=0.05, rtol=2**-6)  # of bfloat16's eight bits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize(("side", "channels"), [(32, 64), (2, 512), (3, 16)])
def test_kernels_compute_the_same(dtype, within, side, channels):
    given = [each.to(dtype) for each in drawn(4, 7, side, channels)]
    present = torch.arange(7)[None] < torch.tensor([7, 4, 1, 6])[:, None]
    weigh = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        x, scale, shift = (each.to(device, kind).requires_grad_() for each in given)
        y = batch_norm_relu(x, scale, shift, present.to(device), EPS)
        loss = (y * weigh.to(device, kind)).sum()
        found.append([y, *torch.autograd.grad(loss, (x, scale, shift))])
    for ours, plain in zip(found[1], found[0], strict=True):
        apart = (ours.double().cpu() - plain).norm() / plain.norm()
        assert apart < within
