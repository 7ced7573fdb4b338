"""Convolution and normalisation of many lanes are those of PyTorch, lane by lane, forward and backward."""

import pytest
import torch
from torch.nn.functional import conv2d, group_norm

from mppfl.learning.convolution import lane_convolution, squared_norms_of_taps
from mppfl.learning.normalisation import group_norm_relu


def draws(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize(("height", "width"), [(6, 6), (5, 4)])
def test_a_lane_convolution_is_the_convolution_of_each_lane(side, height, width):
    x, taps = draws(2, 3, height, width, 4), draws(2, side, side, 4, 7, seed=1)
    found = lane_convolution(x, taps)
    for lane in range(2):
        plain = conv2d(x[lane].permute(0, 3, 1, 2), taps[lane].permute(3, 2, 0, 1), padding=side // 2)
        torch.testing.assert_close(found[lane], plain.permute(0, 2, 3, 1))
    assert torch.autograd.gradcheck(lane_convolution, (x, taps), fast_mode=True)


def test_squared_norms_are_those_of_each_examples_own_gradient():
    x, taps, upstream = draws(2, 3, 4, 4, 2), draws(2, 3, 3, 2, 5, seed=1), draws(2, 3, 4, 4, 5, seed=2).detach()
    found = squared_norms_of_taps(x.detach(), upstream, 3, 3)
    for lane in range(2):
        for example in range(3):
            out = lane_convolution(x[lane, example][None, None], taps[lane][None])
            (gradient,) = torch.autograd.grad((out * upstream[lane, example]).sum(), taps)
            assert found[lane, example].item() == pytest.approx(gradient.square().sum().item())


def test_group_norm_with_relu_is_that_of_each_lane():
    x, scale, shift = draws(2, 3, 4, 5, 8), draws(2, 8, seed=1), draws(2, 8, seed=2)
    found = group_norm_relu(x, scale, shift, 4, 1e-5)
    for lane in range(2):
        plain = group_norm(x[lane].permute(0, 3, 1, 2), 4, scale[lane], shift[lane], 1e-5).relu()
        torch.testing.assert_close(found[lane], plain.permute(0, 2, 3, 1))
    assert torch.autograd.gradcheck(
        lambda *inputs: group_norm_relu(*inputs, 4, 1e-5), (x, scale, shift), fast_mode=True
    )
