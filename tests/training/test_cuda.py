"""On a GPU: the recorded engine and every kernel compute what the plain way computes."""

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from mppfl.training import audit_sensitivity, make_model
from tests.training.trainings import CLIENT, FREE, WAYS, batch_normed, configured, pictures, small_cnn, trained

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]
EXACT = {"precision": "float64", "learning_rate": 0.2, "batch_size": 4, "local_epochs": 2, "clip_norm": 0.5}
ON_GPU = {"engine": "batched", "device": "cuda"}


def last_record(model, budgets=FREE, sizes=(9, 5, 12), rounds=2, **asked):
    return trained(budgets, rounds, model=model, data=pictures(sizes), **asked)[-1]


def assert_near_the_plain_loop(model, within, precision, **asked):
    """The distance to the plain loop is a small part of the way that it goes in a round."""
    begin = parameters_to_vector(model.parameters()).detach().numpy()
    plain = last_record(model, engine="loop", rounds=1, **asked).weights
    fast = last_record(model, precision=precision, rounds=1, **asked, **ON_GPU).weights
    assert np.linalg.norm(fast - plain) < within * np.linalg.norm(plain - begin)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("way", ["gradient", "client", "shuffled", "steps"])
@pytest.mark.parametrize("sizes", [(9, 5, 12), (40, 4, 4)])
def test_recorded_steps_are_the_plain_loop(way, momentum, sizes):
    asked = {**WAYS[way], "momentum": momentum, "num_steps": 3, "sizes": sizes, **EXACT}
    plain, fast = last_record(small_cnn(), engine="loop", **asked), last_record(small_cnn(), **asked, **ON_GPU)
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
    assert fast.engine.startswith("batched")


@pytest.mark.parametrize("way", ["client", "shuffled"])
@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-3), ("tf32", 0.2), ("bf16", 0.3)])
def test_lower_precision_stays_near_the_plain_loop(precision, within, way):
    if way == "shuffled":  # the guard against rounding shortens gradients a little more than the loop does
        within = max(within, 0.05)
    asked = {**WAYS[way], "batch_size": 8, "clip_norm": 2.0, "learning_rate": 0.05, "sizes": (64, 64, 64)}
    assert_near_the_plain_loop(make_model("cnn_fmnist", (1, 8, 8), 4), within, precision, **asked)


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-3), ("bf16", 0.1)])
def test_batch_norm_is_that_of_the_plain_loop_for_uneven_clients(precision, within):
    asked = {**WAYS["client"], "batch_size": 8, "local_epochs": 2, "clip_norm": 2.0, "learning_rate": 0.05}
    assert_near_the_plain_loop(batch_normed(channels=16), within, precision, sizes=(60, 33, 12), **asked)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_clients_that_end_early_stay_finite_in_deep_networks_with_batch_norm(precision, caplog):
    asked = {"batch_size": 8, "local_epochs": 5, "learning_rate": 1e-3, **CLIENT, **ON_GPU}
    model = batch_normed(channels=16, depth=16)
    last_record(model, sizes=(60, 33, 12), rounds=1, precision=precision, **asked)
    assert "NaN" not in caplog.text


def test_noise_in_recorded_gradients_has_the_variance_it_declares():
    # A learning rate so small that steps just add: update = −η Σ (clipped mean + noise).
    asked = {**WAYS["shuffled"], "learning_rate": 1e-6, "local_epochs": 2, "rounds": 1, **ON_GPU}
    quiet = last_record(small_cnn(), **asked).weights.astype(np.float64)
    noisy = last_record(small_cnn(), (1.0, 1.0, 1.0), aggregation="num_examples", **asked)
    expected = np.sqrt(((noisy.theta * noisy.noise_std) ** 2).sum())
    # 1,000 weights or so: the ratio of standard deviations is 1 ± 0.022; five of those fail once in a million.
    assert np.std(noisy.weights - quiet) / expected == pytest.approx(1, abs=0.15)


def test_running_out_of_memory_takes_fewer_clients_at_once(monkeypatch):
    from mppfl.training.cuda import CapturedDescent

    real, asked = CapturedDescent.updates, []

    def short_of_memory(self, slots, padded_to, out):
        asked.append(len(slots))
        if len(slots) > 1:
            raise torch.cuda.OutOfMemoryError("as if")
        real(self, slots, padded_to, out)

    monkeypatch.setattr(CapturedDescent, "updates", short_of_memory)
    plain = last_record(small_cnn(), engine="loop", rounds=1, **EXACT, **CLIENT)
    fast = last_record(small_cnn(), rounds=1, **EXACT, **CLIENT, **ON_GPU)
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
    assert asked[0] > 1
    assert asked[-1] == 1


LAYERS = [  # channels, out, height, width, side of the kernel, examples: every way the kernels have
    (3, 32, 6, 5, 5, 3), (24, 40, 5, 4, 3, 3), (64, 64, 8, 8, 5, 5), (128, 256, 6, 6, 3, 5), (64, 256, 4, 4, 3, 64),
    (128, 256, 4, 4, 3, 5), (128, 256, 2, 2, 3, 64), (64, 128, 2, 2, 3, 5), (64, 32, 2, 2, 3, 3),
    (64, 256, 1, 1, 3, 64),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-3), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("layer", LAYERS)
def test_convolution_kernels_are_the_plain_way(layer, dtype, within):
    from mppfl.training.cuda import back_to_taps, convolve
    from mppfl.training.engines import slot_convolution

    channels, out, height, width, side, examples = layer
    generator = torch.Generator().manual_seed(0)
    x, taps, upstream = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in (
            (2, examples, height, width, channels), (2, side, side, channels, out), (2, examples, height, width, out),
        )
    )  # fmt: skip
    exact_x, exact_taps = (tensor.double().requires_grad_() for tensor in (x, taps))
    plain = slot_convolution(exact_x, exact_taps)
    back, to_taps = torch.autograd.grad((plain * upstream.double()).sum(), (exact_x, exact_taps))
    answers = (
        convolve(x.cuda(), taps.cuda()),
        convolve(upstream.cuda(), taps.cuda(), turned=True),
        back_to_taps(x.cuda(), upstream.cuda(), side, side),
    )
    for ours, exact in zip(answers, (plain.detach(), back, to_taps), strict=True):
        assert (ours.double().cpu() - exact).norm() < within * exact.norm()


@pytest.mark.parametrize("layer", LAYERS)
def test_taps_of_float32_errors_and_bfloat16_pictures_are_summed_in_float32(layer):
    from mppfl.training.engines import gradient_of_taps

    channels, out, height, width, side, examples = layer
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, examples, height, width, channels), generator=generator).bfloat16()
    upstream = torch.randn((2, examples, height, width, out), generator=generator)
    exact = gradient_of_taps(x.double(), upstream.double(), side, side)
    ours = gradient_of_taps(x.cuda(), upstream.cuda(), side, side)
    assert ours.dtype == torch.float32
    assert (ours.double().cpu() - exact).norm() < 2.0**-14 * exact.norm()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("way", ["gradient", "steps", "shuffled", "client"])
def test_no_changed_record_moves_an_answer_farther_than_declared(way, precision):
    asked = {**WAYS[way], "precision": precision, "batch_size": 100, "clip_norm": 0.5, **ON_GPU}
    result = audit_sensitivity(small_cnn(), pictures((200, 9)), configured(**asked))
    assert result.verdict == "pass"
    assert 0.01 < result.measured / result.claimed <= 1


def assert_kernels_are_the_plain_way(operation, given, upstream, dtype, within):
    """An operation and its gradients, by kernels on the GPU, against float64 on the CPU."""
    answers = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        leaves = [tensor.to(device, kind).requires_grad_() for tensor in given]
        result = operation(*leaves)
        answers.append([result, *torch.autograd.grad((result * upstream.to(device, kind)).sum(), leaves)])
    for exact, ours in zip(*answers, strict=True):
        assert (ours.double().cpu() - exact).norm() < within * exact.norm()


def drawn(shape, dtype, generator):
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("side", "channels"), [(32, 64), (5, 256), (2, 512), (3, 16)])
def test_group_norm_kernels_are_the_plain_way(side, channels, dtype, within):
    from mppfl.training.engines import group_norm_relu

    generator = torch.Generator().manual_seed(0)
    x, scale, shift, upstream = (
        drawn(shape, dtype, generator)
        for shape in ((2, 5, side, side, channels), (2, channels), (2, channels), (2, 5, side, side, channels))
    )
    x += 3  # a mean that would cancel if squares were summed about 0
    assert_kernels_are_the_plain_way(
        lambda *leaves: group_norm_relu(*leaves, 8, 1e-5), (x, scale, shift), upstream, dtype, within
    )


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize(("side", "channels"), [(32, 64), (2, 512), (3, 16)])
def test_batch_norm_kernels_are_the_plain_way(side, channels, dtype, within):
    from mppfl.training.engines import batch_norm_relu

    generator = torch.Generator().manual_seed(0)
    x, scale, shift, upstream = (
        drawn(shape, torch.float64, generator)
        for shape in ((4, 7, side, side, channels), (4, channels), (4, channels), (4, 7, side, side, channels))
    )
    given = [tensor.to(dtype) for tensor in (3 * x + 2, 1 + scale, shift)]
    present = torch.arange(7)[None] < torch.tensor([7, 4, 1, 6])[:, None]
    assert_kernels_are_the_plain_way(
        lambda x, *more: batch_norm_relu(x, *more, present.to(x.device), 1e-5), given, upstream.to(dtype), dtype, within
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_kernels_are_the_plain_way(dtype):
    from mppfl.training.engines import relu_pool

    x, shift = torch.randn((3, 5, 28, 20, 32)).to(dtype), torch.randn((3, 32)).to(dtype)
    answers, upstream = {}, torch.randn((3, 5, 14, 10, 32)).to(dtype)
    for device in ("cpu", "cuda"):
        leaves = [tensor.to(device, copy=True).requires_grad_() for tensor in (x, shift)]
        pooled = relu_pool(*leaves)
        answers[device] = [pooled, *torch.autograd.grad(pooled, leaves, upstream.to(device))]
    exact = dtype == torch.float32
    for plain, fast in zip(answers["cpu"], answers["cuda"], strict=True):
        apart = torch.linalg.vector_norm(plain.float() - fast.cpu().float()) / torch.linalg.vector_norm(plain.float())
        assert apart < (1e-6 if exact else 0.05)  # rounding to bfloat16 lets another of four pixels be the largest


def test_the_kernel_of_a_step_rounds_what_it_has_moved():
    from mppfl.training.cuda import descend

    exact, gradient = torch.randn(100_003, device="cuda"), torch.randn(100_003, device="cuda").bfloat16()
    low, expected = exact.bfloat16(), exact - 0.1 * gradient.float()
    descend(exact, low, gradient, 0.1)
    torch.testing.assert_close(exact, expected)
    assert torch.equal(low, exact.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_of_a_private_step_is_the_plain_way(dtype):
    from mppfl.training.cuda import descend_with_noise

    part, drawn = torch.randn((5, 3, 1001), device="cuda"), torch.randn((5, 3, 1001), device="cuda")
    sums, pace = torch.randn((5, 3, 1001), device="cuda").to(dtype), torch.rand(5, device="cuda")
    noise = torch.rand((3, 7), device="cuda")[:, :5] + 0.5
    std, before, after = noise[:, :, None, None]
    expected = part - pace[:, None, None] * ((sums / before + std * drawn) / after)
    descend_with_noise(part, sums, drawn, noise, pace)
    torch.testing.assert_close(part, expected)
