"""From updates to the next model: whose update counts how much, and federated averaging as plain lines compute it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pytest import approx
from scipy.stats import norm

from mppfl.errors import BadInput
from mppfl.training import (
    MOST_KINDS,
    TrainingConfig,
    WeightedMean,
    batches_of_round,
    estimated_dispersion,
    local_work,
    make_model,
    noise_aware_weights,
    server_step,
    stream,
    weights_of_updates,
)
from tests.training.trainings import CLIENT, configured, pictures, trained

FALSE_ALARM = 1e-7


def drawn_updates(num_clients=3, num_parameters=50, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((num_clients, num_parameters)))


# ---- weights ------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1e-3, 1e3)), min_size=1, max_size=8))
def test_clients_who_agree_count_by_inverse_variance_and_the_mean_is_as_precise_as_can_be(clients):
    sizes, std = np.array(clients).T
    theta, _ = weights_of_updates("noise_aware", sizes, std, drawn_updates(len(sizes)), 0.0)
    np.testing.assert_allclose(theta, std**-2 / (std**-2).sum(), rtol=1e-10)
    assert (theta**2 * std**2).sum() == approx(1 / (std**-2).sum())
    for dispersion in (1e18, math.inf):  # clients far apart count by size
        theta, used = weights_of_updates("noise_aware", sizes, std, drawn_updates(len(sizes)), dispersion)
        np.testing.assert_allclose(theta, sizes / sizes.sum(), rtol=1e-6)
        assert used == dispersion


@pytest.mark.parametrize(
    ("by_size", "energy", "dispersion", "by_hand"),
    [  # d = 3, p δ² = (1, 3), θ⁰ = (1/4, 3/4): (3/4 + m)/4 + (9/4 + m)/6 = 1 gives m = 21/20, θ = (9/20, 11/20)
        ([0.25, 0.75], [1.0, 3.0], 3.0, [9 / 20, 11 / 20]),
        ([0.1, 0.3, 0.6], [0.0, 0.0, 5.0], 0.0, [0.25, 0.75, 0.0]),  # clients agree: those without noise count by size
    ],
)
def test_the_formula_of_the_model_by_hand(by_size, energy, dispersion, by_hand):
    assert noise_aware_weights(np.array(by_size), np.array(energy), dispersion) == approx(by_hand)


def mean_squared_error(theta, by_size, energy, dispersion):
    """E|Σθ_i Δ̃_i − Σθ⁰_i Δ_i|² for updates d from their mean and noise energy e_i, where Σθ = Σθ⁰ = 1."""
    return dispersion * ((theta - by_size) ** 2).sum(-1) + (theta**2 * energy).sum(-1)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(1, 1e3), st.one_of(st.just(0.0), st.floats(1e-12, 1e3))), min_size=2, max_size=6),
    st.one_of(st.just(0.0), st.floats(1e-3, 1e4)),
    st.integers(0, 2**32),
)
def test_no_other_weights_have_a_smaller_error(clients, dispersion, seed):
    sizes, energy = np.array(clients).T
    by_size = sizes / sizes.sum()
    theta = noise_aware_weights(by_size, energy, dispersion)
    best = mean_squared_error(theta, by_size, energy, dispersion)
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 0.1, 1.0):
        steps = rng.standard_normal((20, len(sizes))) * scale
        steps -= steps.mean(1, keepdims=True)  # Σθ stays 1
        assert (mean_squared_error(theta + steps, by_size, energy, dispersion) >= best * (1 - 1e-9)).all()


# Whatever noise a budget between 1e-150 and 1e150 buys: none, next to none, or beyond all bounds.
stds = st.one_of(st.just(0.0), st.floats(1e-70, 1e70))


@settings(max_examples=60)
@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            arrays(np.float64, n, elements=st.integers(1, 10**7).map(float)),
            arrays(np.float64, n, elements=stds),
            arrays(np.float64, (n, 3), elements=st.floats(-1e6, 1e6)),
        )
    )
)
def test_noise_aware_weights_are_weights_whatever_the_noise(round_of_clients):
    sizes, std, updates = round_of_clients
    theta, dispersion = weights_of_updates("noise_aware", sizes, std, torch.from_numpy(updates))
    assert np.isfinite(theta).all()
    assert (theta >= 0).all()
    assert theta.sum() == approx(1.0, abs=1e-9)
    assert dispersion == math.inf if len(theta) == 1 else dispersion >= 0


def test_a_round_without_participants_has_nothing_to_aggregate():
    for how in ("num_examples", "uniform", "noise_aware"):
        with pytest.raises(BadInput, match="nobody participates"):
            weights_of_updates(how, [], [], torch.zeros((0, 3)))


def dispersion_among(rows, energy):
    """The estimate from uploads each of which is a kind of its own."""
    return estimated_dispersion(torch.from_numpy(rows), np.arange(len(rows)), (rows**2).sum(1), energy)


@pytest.mark.parametrize(
    "energy",
    [[30.0] * 5, [1e-3, 1.0, 30.0, 100.0, 3000.0], [0.0, 0.0, 0.0, 5.0, 50.0], [0.0] * 5, [0.0, 30.0, 30.0, 30.0, 1e9]],
    ids=["equal", "very unequal", "mostly none", "none", "one drowned"],
)
def test_the_estimate_of_the_dispersion_is_right_on_average(energy):
    rng, p, draws, dispersion = np.random.default_rng(2), 100, 1000, 30.0
    energy = np.array(energy)
    true = 5.0 + rng.standard_normal((draws, len(energy), p)) * math.sqrt(dispersion / p)
    noisy = true + rng.standard_normal(true.shape) * np.sqrt(energy / p)[:, None]
    estimates = np.array([dispersion_among(rows, energy) for rows in noisy])
    off = norm.ppf(1 - FALSE_ALARM / 2) * estimates.std() / math.sqrt(draws)
    assert (estimates == 0).mean() == 0  # what is cut off at zero would bias the mean: here nothing is
    assert off < 0.05 * dispersion  # the test can tell 5 % from nothing
    assert estimates.mean() == approx(dispersion, abs=off)


# ---- added up as they come ----------------------------------------------------------------------------------------


def mean_of(sizes, std, uploads, dispersion=None):
    mean = WeightedMean("noise_aware", sizes, std, uploads.shape[1], dispersion)
    for number, upload in enumerate(uploads):
        mean.add(number, upload)
    return mean.result()


def of_kinds(num_kinds, each, num_parameters=200, seed=4):
    """Clients of so many sizes and noises, some of each, and uploads that agree but for their noise and a little."""
    rng = np.random.default_rng(seed)
    sizes, std = rng.integers(5, 300, num_kinds), rng.lognormal(0, 1, num_kinds)
    sizes, std = (np.tile(values, each).astype(float) for values in (sizes, std))
    uploads = rng.standard_normal(num_parameters) + 0.3 * rng.standard_normal((len(sizes), num_parameters))
    return sizes, std, torch.from_numpy(uploads + std[:, None] * rng.standard_normal(uploads.shape))


@pytest.mark.parametrize(("num_kinds", "each"), [(MOST_KINDS, 1), (MOST_KINDS, 5), (3, 40)])
def test_up_to_so_many_kinds_of_clients_the_mean_is_the_exact_one(num_kinds, each):
    sizes, std, uploads = of_kinds(num_kinds, each)
    mean, theta, dispersion = mean_of(sizes, std, uploads)
    by_size, energy = sizes / sizes.sum(), uploads.shape[1] * std**2
    assert dispersion == approx(dispersion_among(uploads.numpy(), energy), rel=1e-9)
    exact = noise_aware_weights(by_size, energy, dispersion)
    np.testing.assert_allclose(theta, exact, rtol=1e-9)
    np.testing.assert_allclose(mean.numpy(), exact @ uploads.numpy(), atol=1e-12)


@pytest.mark.parametrize("dispersion", [0.0, 1.0, 1e3, 1e5, None])
@pytest.mark.parametrize("num_clients", [MOST_KINDS + 1, 500, 3000])
def test_more_kinds_of_noise_cost_less_than_a_hundredth_of_the_mean_s_error(num_clients, dispersion):
    sizes, std, uploads = of_kinds(num_clients, 1)
    mean, theta, used = mean_of(sizes, std, uploads, dispersion)
    by_size, energy = sizes / sizes.sum(), uploads.shape[1] * std**2
    assert theta.sum() == approx(1)
    np.testing.assert_allclose(mean.numpy(), theta @ uploads.numpy(), atol=1e-12)
    best = noise_aware_weights(by_size, energy, used)
    least, error = (mean_squared_error(weights, by_size, energy, used) for weights in (best, theta))
    assert least <= error * (1 + 1e-12)
    assert error <= 1.01 * least


def test_among_many_clients_those_without_noise_are_a_kind_of_their_own():
    sizes, std, uploads = of_kinds(200, 1)
    std[:3] = 0
    _, theta, _ = mean_of(sizes, std, uploads, 0.0)
    assert theta[:3] == approx(sizes[:3] / sizes[:3].sum())


def test_what_was_added_may_be_overwritten():
    sizes, std, uploads = of_kinds(70, 2)
    expected, place = mean_of(sizes, std, uploads)[0], torch.empty(uploads.shape[1], dtype=torch.float64)
    mean = WeightedMean("noise_aware", sizes, std, uploads.shape[1])
    for number, upload in enumerate(uploads):
        mean.add(number, place.copy_(upload))
    assert torch.equal(mean.result()[0], expected)


def walked(config, means, start):
    """Where the server's steps lead; none may change what it was given."""
    weights, memory = start.clone(), {}
    for mean in means:
        given = [weights, mean, *memory.values()]
        before = [tensor.clone() for tensor in given]
        weights, memory = server_step(weights, mean, memory, config)
        assert all(map(torch.equal, given, before))
    return weights


MEANS = torch.from_numpy(np.random.default_rng(7).standard_normal((5, 11)))
START = torch.linspace(-1, 1, 11, dtype=torch.float64)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("momentum", 0.0), ("momentum", 0.7)])
def test_plain_and_momentum_are_sgd_on_minus_the_mean_update(optimizer, momentum):
    config = TrainingConfig(server_optimizer=optimizer, server_learning_rate=0.3, server_momentum=momentum)
    parameter = torch.nn.Parameter(START.clone())
    sgd = torch.optim.SGD([parameter], lr=0.3, momentum=momentum)
    for mean in MEANS:
        parameter.grad = -mean.clone()
        sgd.step()
    torch.testing.assert_close(walked(config, MEANS, START), parameter.detach(), rtol=0, atol=1e-14)


def test_adam_is_fedadam_written_out():
    # Reddi et al. 2021, Algorithm 2: m ← β₁m + (1−β₁)Δ, v ← β₂v + (1−β₂)Δ², x ← x + η m/(√v + τ), no bias correction.
    config = TrainingConfig(server_optimizer="adam", server_learning_rate=0.05, server_momentum=0.9)
    x, m, v = START.numpy().copy(), np.zeros(11), np.full(11, 1e-3**2)  # v starts at τ², as the paper asks
    for delta in MEANS.numpy():
        for i in range(11):
            m[i] = 0.9 * m[i] + 0.1 * delta[i]
            v[i] = 0.99 * v[i] + 0.01 * delta[i] ** 2
            x[i] += 0.05 * m[i] / (math.sqrt(v[i]) + 1e-3)
    np.testing.assert_allclose(walked(config, MEANS, START).numpy(), x, atol=1e-13, rtol=0)


FOUR_SIZES = (9, 5, 12, 7)
PLAIN = {
    "precision": "float64", "learning_rate": 0.2, "batch_size": 4, "local_epochs": 2, "clip_norm": 1e9, "seed": 3,
    **CLIENT,
}  # fmt: skip


def federated_averages(data, config, num_rounds, participating, weighed_by):
    """Softmax regression by numpy alone: models after each round, as [weights | bias] flat, float64."""
    classes, width = data.num_classes, int(np.prod(data.input_shape))
    features = data.features.reshape(len(data.features), -1).astype(np.float64)
    first = make_model("softmax", data.input_shape, classes, seed=config.seed)[1]
    weights, bias = first.weight.detach().double().numpy(), first.bias.detach().double().numpy()
    after = []
    for round_index in range(1, num_rounds + 1):
        shares, parts = [], []
        for k in participating:
            w, b, vw, vb = weights.copy(), bias.copy(), np.zeros_like(weights), np.zeros_like(bias)
            work = local_work(len(data.members[k]), config, data.names[k])
            for rows in batches_of_round(work, config.protection, stream(config.seed, "batches", round_index, k)):
                x, y = features[data.members[k][rows]], data.labels[data.members[k][rows]]
                scores = x @ w.T + b
                odds = np.exp(scores - scores.max(1, keepdims=True))
                error = (odds / odds.sum(1, keepdims=True) - np.eye(classes)[y]) / len(rows)
                vw, vb = config.momentum * vw + error.T @ x, config.momentum * vb + error.sum(0)
                w, b = w - config.learning_rate * vw, b - config.learning_rate * vb
            shares.append(weighed_by(len(data.members[k])))
            parts.append((w, b))
        total = sum(shares)
        weights = sum(share / total * w for share, (w, _) in zip(shares, parts, strict=True))
        bias = sum(share / total * b for share, (_, b) in zip(shares, parts, strict=True))
        after.append(np.concatenate([weights.reshape(classes * width), bias]))
    return after


@pytest.mark.parametrize("engine", ["loop", "dense"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("aggregation", ["num_examples", "uniform"])
@pytest.mark.parametrize("participating", [(0, 1, 2, 3), (0, 2)])
def test_a_training_without_noise_is_federated_averaging_of_those_whose_budget_is_not_zero(
    engine, momentum, aggregation, participating
):
    data, config = pictures(FOUR_SIZES), PLAIN | {"engine": engine, "momentum": momentum, "aggregation": aggregation}
    weighed_by = float if aggregation == "num_examples" else (lambda _: 1.0)
    expected = federated_averages(data, configured(**config), 3, participating, weighed_by)
    is_in = np.isin(range(4), participating)
    shares = is_in * [weighed_by(size) for size in FOUR_SIZES]
    records = trained(np.where(is_in, np.inf, 0.0), 3, data=data, **config)
    for record, weights in zip(records, expected, strict=True):
        np.testing.assert_allclose(record.weights, weights, atol=1e-9, rtol=0)
        np.testing.assert_allclose(record.theta, shares / shares.sum(), atol=1e-15)
        np.testing.assert_array_equal(record.participating, is_in)
        assert math.isnan(record.dispersion)
    everybody = federated_averages(data, configured(**config), 3, range(4), weighed_by)
    another = everybody[0] if is_in.all() else everybody[2]
    assert np.abs(expected[2] - another).max() > 1e-3  # the rounds really differ, and leaving somebody out matters here
