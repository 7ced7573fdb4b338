"""On a GPU: the recorded engine and every kernel compute what the plain way computes."""

import dataclasses

import numpy as np
import pytest
import torch

from mppfl.training import TrainingConfig, make_model, train_rounds
from tests.training.trainings import batch_normed, pictures, plan_with, small_cnn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("ignore"),
]
EXACT = {"precision": "float64", "learning_rate": 0.2, "batch_size": 4, "local_epochs": 2, "clip_norm": 0.5}
FREE = (np.inf, np.inf, np.inf)


def last_record(model, config, budgets=FREE, sizes=(9, 5, 12), rounds=2):
    *_, last = train_rounds(model, pictures(sizes), plan_with(budgets, rounds), config)
    return last


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle", "full_batch_steps"])
@pytest.mark.parametrize("sizes", [(9, 5, 12), (40, 4, 4)])
def test_recorded_steps_are_the_plain_loop(privacy, momentum, sizes):
    config = TrainingConfig(privacy=privacy, momentum=momentum, num_steps=3, **EXACT)
    plain = last_record(small_cnn(), dataclasses.replace(config, engine="loop"), sizes=sizes)
    fast = last_record(small_cnn(), dataclasses.replace(config, engine="batched", device="cuda"), sizes=sizes)
    np.testing.assert_allclose(fast.weights, plain.weights, atol=1e-9, rtol=0)
    assert fast.engine.startswith("batched")


@pytest.mark.parametrize("privacy", ["client", "dpsgd_shuffle"])
@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-3), ("tf32", 0.2), ("bf16", 0.3)])
def test_lower_precision_stays_near_the_plain_loop(precision, within, privacy):
    config = TrainingConfig(privacy=privacy, batch_size=8, local_epochs=1, clip_norm=2.0, learning_rate=0.05)
    sizes, start = (64, 64, 64), make_model("cnn_fmnist", (1, 8, 8), 4)
    plain = last_record(start, dataclasses.replace(config, engine="loop"), sizes=sizes, rounds=1)
    fast = last_record(
        start, dataclasses.replace(config, precision=precision, device="cuda", engine="batched"), sizes=sizes, rounds=1
    )
    begin = torch.cat([p.detach().flatten() for p in make_model("cnn_fmnist", (1, 8, 8), 4).parameters()]).numpy()
    moved = np.linalg.norm(plain.weights - begin)
    if privacy == "dpsgd_shuffle":  # the guard against rounding shortens gradients a little more than the loop does
        within = max(within, 0.05)
    assert np.linalg.norm(fast.weights - plain.weights) < within * moved


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-3), ("bf16", 0.1)])
def test_batch_norm_is_that_of_the_plain_loop_for_uneven_clients(precision, within):
    config = TrainingConfig(privacy="client", batch_size=8, local_epochs=2, clip_norm=2.0, learning_rate=0.05)
    sizes, start = (60, 33, 12), batch_normed(channels=16)
    begin = torch.cat([p.detach().flatten() for p in start.parameters()]).numpy()
    plain = last_record(start, dataclasses.replace(config, engine="loop"), sizes=sizes, rounds=1)
    fast = last_record(
        batch_normed(channels=16),
        dataclasses.replace(config, precision=precision, device="cuda", engine="batched"),
        sizes=sizes,
        rounds=1,
    )
    assert np.linalg.norm(fast.weights - plain.weights) < within * np.linalg.norm(plain.weights - begin)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_clients_that_end_early_stay_finite_in_deep_networks_with_batch_norm(precision):
    config = TrainingConfig(batch_size=8, learning_rate=1e-3, device="cuda", engine="batched", precision=precision)
    assert last_record(batch_normed(channels=16, depth=16), config, sizes=(60, 33, 12), rounds=1).diverged == ()


def test_noise_in_recorded_gradients_has_the_variance_it_declares():
    # A learning rate so small that steps just add: update = −η Σ (clipped mean + noise).
    config = TrainingConfig(
        privacy="dpsgd_shuffle", clip_norm=0.5, learning_rate=1e-6, batch_size=4, local_epochs=2, device="cuda",
        engine="batched",
    )  # fmt: skip
    quiet = last_record(small_cnn(), config, FREE, rounds=1).weights.astype(np.float64)
    noisy = last_record(small_cnn(), dataclasses.replace(config, aggregation="num_examples"), (1.0, 1.0, 1.0), rounds=1)
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
    config = TrainingConfig(engine="batched", device="cuda", **EXACT)
    plain = last_record(small_cnn(), dataclasses.replace(config, engine="loop", device="cpu"), rounds=1)
    fast = last_record(small_cnn(), config, rounds=1)
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
    exact_x, exact_taps = (each.double().requires_grad_() for each in (x, taps))
    plain = slot_convolution(exact_x, exact_taps)
    back, to_taps = torch.autograd.grad((plain * upstream.double()).sum(), (exact_x, exact_taps))
    found = (
        convolve(x.cuda(), taps.cuda()),
        convolve(upstream.cuda(), taps.cuda(), turned=True),
        back_to_taps(x.cuda(), upstream.cuda(), side, side),
    )
    for ours, exact in zip(found, (plain.detach(), back, to_taps), strict=True):
        assert (ours.double().cpu() - exact).norm() < within * exact.norm()


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize(("side", "channels"), [(32, 64), (5, 256), (2, 512), (3, 16)])
def test_group_norm_kernels_are_the_plain_way(side, channels, dtype, within):
    from mppfl.training.engines import group_norm_relu

    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((2, 5, side, side, channels), (2, channels), (2, channels))
    ]
    given[0] += 3  # a mean that would cancel if squares were summed about 0
    upstream = torch.randn(given[0].shape, generator=generator).to(dtype)
    found = []
    for device, kind in (("cpu", torch.float64), ("cuda", dtype)):
        x, scale, shift = (each.to(device, kind).requires_grad_() for each in given)
        y = group_norm_relu(x, scale, shift, 8, 1e-5)
        found.append([y, *torch.autograd.grad((y * upstream.to(device, kind)).sum(), (x, scale, shift))])
    for exact, ours in zip(*found, strict=True):
        assert (ours.double().cpu() - exact).norm() < within * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pooling_kernels_are_the_plain_way(dtype):
    from mppfl.training.engines import relu_pool

    x, shift = torch.randn((3, 5, 28, 20, 32)).to(dtype), torch.randn((3, 32)).to(dtype)
    found, upstream = {}, torch.randn((3, 5, 14, 10, 32)).to(dtype)
    for device in ("cpu", "cuda"):
        leaves = [tensor.to(device, copy=True).requires_grad_() for tensor in (x, shift)]
        pooled = relu_pool(*leaves)
        found[device] = [pooled, *torch.autograd.grad(pooled, leaves, upstream.to(device))]
    exact = dtype == torch.float32
    for plain, fast in zip(found["cpu"], found["cuda"], strict=True):
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
