"""Layers of many slots where no engine of test_engines.py takes them: other shapes, ties, low precision, on a GPU."""

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d

from mppfl.training import flat_model, make_model
from mppfl.training.engines import (
    ROUNDED,
    LayeredGradients,
    batch_norm_relu,
    relu_pool,
    slot_convolution,
)
from tests.tolerances import assert_float32_close


def draws(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 4)])
def test_a_slot_convolution_is_the_convolution_of_each_slot(side, height, width):
    x, taps = draws(2, 3, height, width, 4), draws(2, side, side, 4, 7, seed=1)
    convolved = slot_convolution(x, taps)
    for slot in range(2):
        plain = conv2d(x[slot].permute(0, 3, 1, 2), taps[slot].permute(3, 2, 0, 1), padding=side // 2)
        torch.testing.assert_close(convolved[slot], plain.permute(0, 2, 3, 1))
    assert torch.autograd.gradcheck(slot_convolution, (x, taps), fast_mode=True)


def test_of_pixels_that_are_alike_the_first_takes_the_gradient_as_in_pytorch():
    x = torch.ones((1, 1, 4, 4, 1), dtype=torch.float64, requires_grad=True)
    (back,) = torch.autograd.grad(relu_pool(x).sum(), x)
    plain = x.detach()[0].permute(0, 3, 1, 2).requires_grad_()
    (expected,) = torch.autograd.grad(max_pool2d(plain.relu(), 2).sum(), plain)
    torch.testing.assert_close(back[0], expected.permute(0, 2, 3, 1))
    assert back.sum() == 4


def test_rounded_copies_follow_the_weights_as_they_descend():
    model = flat_model(make_model("cnn_fmnist", (1, 8, 8), 3))
    rounding, plain = (LayeredGradients(model, torch.bfloat16, rounded=rounded) for rounded in (True, False))
    starts = model.initial_weights(0).expand(2, -1)
    held, expected = rounding.held(model.parts(starts)), plain.held(model.parts(starts))
    inputs = draws(2, 4, 1, 8, 8).detach().float()
    labels, weight = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]]), torch.full((2, 4), 0.25)
    for _ in range(3):
        rounding.descend(held, inputs, labels, weight, 0.1)
        plain.descend(expected, inputs, labels, weight, 0.1)
    parts = rounding.given(held)
    assert parts.keys() == model.shapes.keys()
    for name, part in plain.given(expected).items():
        assert_float32_close(parts[name], part, steps=100)
    copies = [name for name in held if name not in expected]
    assert len(copies) == len(expected)
    assert all(torch.equal(held[name], held[name.removesuffix(ROUNDED)].bfloat16()) for name in copies)
    assert not torch.equal(parts["0.weight"], model.parts(starts)["0.weight"])


EPS = 1e-5


def normed(slots=3, examples=5, side=4, channels=6, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=dtype)

    x = 3 * draw(slots, examples, side, side, channels) + 2
    return x, 1 + draw(slots, channels), draw(slots, channels)


def test_padding_gives_0_and_nothing_goes_back_to_it():
    x, scale, shift = normed(slots=2)
    present = torch.tensor([[True, True, True, True, False], [False] * 5])
    normalised = batch_norm_relu(x.requires_grad_(), scale, shift, present, EPS)
    (back,) = torch.autograd.grad(normalised.square().sum(), x)
    for numbers in (normalised, back):
        assert numbers[0, :4].any()
        assert not numbers[0, 4].any()
        assert not numbers[1].any()


def test_low_precision_is_averaged_in_a_higher_one():
    x, scale, shift = normed(examples=64, side=16, dtype=torch.float32)
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
    given = [each.to(dtype) for each in normed(4, 7, side, channels)]
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
