"""Secure sums: best weights by two routes, exact integers, noise whose distribution is known, memory."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import chisquare

from mppfl.errors import BadInput
from mppfl.privacy import (
    GRID_IN_STDS,
    Protection,
    SecureSum,
    clip_rows,
    discrete_steps,
    grid_of_sum,
    hiding_shares,
    rounding_margin,
    shared_noise_weights,
    sum_cost,
)
from tests.homes import home
from tests.tolerances import assert_of_std

approx = pytest.approx
FALSE_ALARM = 1e-7  # of each statistical test here


def stream(seed=7):
    return np.random.default_rng(seed)


def opened_sum(vectors, weights, variance, grid=None, *, rng=None, trust="secure_sum", **changed):
    """The sum of these vectors as the server reads it; None is a client that failed."""
    protection = Protection(unit="client", trust=trust, **changed)
    size = next((len(vector) for vector in vectors if vector is not None), 0)
    secure_sum = SecureSum(protection, weights, variance, size, rng, grid)
    for client, vector in enumerate(vectors):
        if vector is not None and weights[client] > 0:
            secure_sum.add(client, vector)
    return secure_sum.open()


# ---- weights ----------------------------------------------------------------------------------------------------


def error_of(weights, std, wished, dispersion, num_parameters):
    return dispersion * ((weights - wished) ** 2).sum() + num_parameters * std**2


@settings(max_examples=60)
@given(st.integers(1, 8), st.integers(0, 10**6), st.floats(0, 100), st.sampled_from([0.0, 0.05]))
def test_the_weights_are_those_of_a_general_solver(num_clients, seed, dispersion, margin):
    rng = stream(seed)
    caps, clips = rng.uniform(0.01, 2, num_clients), rng.uniform(0.5, 2, num_clients)
    wished = rng.dirichlet(np.ones(num_clients))
    best = shared_noise_weights(caps, clips, wished, dispersion, 10, margin=margin)
    reach = (np.sqrt(2 * caps) - margin) / clips
    general = minimize(
        lambda x: error_of(x[:-1], x[-1], wished, dispersion, 10),
        [*(reach / reach.sum()), 1 / reach.sum()],
        constraints=[
            {"type": "eq", "fun": lambda x: x[:-1].sum() - 1},
            {"type": "ineq", "fun": lambda x: x[-1] * reach - x[:-1]},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    std = math.sqrt(best.noise_variance)
    assert best.weights.sum() == approx(1)
    assert (best.weights >= 0).all()
    assert (best.used <= caps).all()
    assert (best.weights * clips / std + margin) ** 2 / 2 == approx(best.used, rel=1e-9)
    assert error_of(best.weights, std, wished, dispersion, 10) <= general.fun * (1 + 1e-6)


@pytest.mark.parametrize(
    ("wished", "dispersion", "weights", "used"),
    [  # where noise alone counts, weights follow the roots of the budgets; else no more is charged than is needed
        ([1, 1, 1], 0.0, [1 / 6, 2 / 6, 3 / 6], [0.1, 0.4, 0.9]),
        ([2, 1, 1], 1e12, [0.5, 0.25, 0.25], [0.1, 0.025, 0.025]),
    ],
)
def test_weights_worked_by_hand(wished, dispersion, weights, used):
    best = shared_noise_weights([0.1, 0.4, 0.9], np.full(3, 2.0), wished, dispersion, num_parameters=5)
    assert best.weights == approx(weights)
    assert best.used == approx(used)
    assert best.noise_variance == approx((2.0 * weights[0]) ** 2 / (2 * 0.1))  # what the first budget allows


def test_who_has_no_budget_beyond_the_margin_takes_no_part_and_pays_nothing():
    best = shared_noise_weights([0.0, 1e-9, 0.5, 0.5], np.ones(4), np.ones(4), 1.0, 10, margin=1e-3)
    assert best.weights == approx([0, 0, 0.5, 0.5])
    assert (best.used[:2] == 0).all()
    with pytest.raises(BadInput, match="rounding alone"):
        shared_noise_weights([1e-9], [1.0], [1.0], 1.0, 10, margin=1e-3)


# ---- noise ------------------------------------------------------------------------------------------------------


def discrete_gaussian(std, reach):
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / std) ** 2)
    return weights / weights.sum()


@pytest.mark.parametrize("seeded", [True, False])
def test_the_opened_sum_has_the_distribution_of_whole_shares(seeded):
    # Five shares of 4 steps each hide; one client more is allowed to drop out, and none does: six shares open.
    opened = opened_sum(
        [np.full(200_000, 0.3)] * 6,
        np.full(6, 1.0),
        5 * 4.0**2,
        1.0,
        clip_norm=1e9,
        dropouts=1,
        rng=stream() if seeded else None,
    )
    share = discrete_gaussian(4.0, 80)
    pmf = share
    for _ in range(5):
        pmf = np.convolve(pmf, share)
    middle = len(pmf) // 2
    counts = np.bincount(opened.total.astype(int) + middle, minlength=len(pmf))
    often = pmf * counts.sum() > 20
    expected = np.append(pmf[often], pmf[~often].sum()) * counts.sum()
    assert chisquare(np.append(counts[often], counts[~often].sum()), expected * counts.sum() / expected.sum())[1] > (
        FALSE_ALARM
    )
    assert opened.noise_variance == approx(6 * 16)


@pytest.mark.parametrize("std", [4096.5, 2.0**15, 2.0**20 * 1.3])
@pytest.mark.parametrize("seeded", [True, False])
def test_large_discrete_noise_has_its_variance_and_no_preferred_remainder(std, seeded):
    steps = discrete_steps(200_000, std, stream(3) if seeded else None)
    assert_of_std(steps, std)
    assert chisquare(np.bincount(steps.astype(np.int64) % 64, minlength=64))[1] > FALSE_ALARM


def test_what_arrives_is_the_weighted_sum_of_clipped_vectors_on_the_grid():
    rng = stream()
    vectors = rng.normal(size=(5, 400)) * 3
    weights = np.array([0.5, 0.2, 0.0, 0.2, 0.1])
    variance = 1e-16
    grid = grid_of_sum(variance)
    opened = opened_sum(vectors, weights, variance, clip_norm=2.0, rng=rng)
    clipped, _ = clip_rows(vectors, 2.0)
    assert opened.total == approx(weights @ clipped, abs=1e-7)
    assert (opened.total / grid == np.rint(opened.total / grid)).all()
    assert opened.arrived.tolist() == [True, True, False, True, True]
    assert 2**20 <= math.sqrt(variance) / grid < 2**21


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize(
    ("trust", "dropouts", "missing", "colluding"),
    [
        *(("secure_sum", *faults) for faults in ((0, 0, 0), (3, 0, 0), (3, 3, 2), (4, 1, 5))),
        *(("server", 0, missing, 0) for missing in (0, 1)),
    ],
)
def test_what_hides_is_never_less_than_asked_for_and_what_opens_is_all_shares(
    trust, dropouts, missing, colluding, seeded
):
    asked = {"trust": trust, "dropouts": dropouts, "colluding": colluding, "rng": stream() if seeded else None}
    opened = opened_sum([None] * missing + [np.zeros(100_000)] * (12 - missing), np.full(12, 1 / 12), 2.0, **asked)
    share, arrived = 2.0 / (12 - dropouts - colluding), 12 - missing
    hidden, added = ((arrived - colluding) * share, arrived * share) if trust == "secure_sum" else (2.0, 2.0)
    assert (opened.hidden_variance, opened.noise_variance) == (approx(hidden), approx(added))
    assert opened.hidden_variance >= 2.0 * (1 - 1e-12)
    assert_of_std(opened.total, math.sqrt(added))


def test_noise_that_protects_is_another_one_each_time_and_simulated_noise_is_not():
    for rng, is_repeated in ((stream, True), (lambda: None, False)):
        for trust in ("secure_sum", "server"):
            first, second = (opened_sum([np.zeros(50)] * 3, np.ones(3), 1.0, trust=trust, rng=rng()) for _ in "ab")
            assert (first.total == second.total).all() == is_repeated


def test_fewer_than_promised_open_no_sum_and_nobody_may_be_left_to_hide():
    with pytest.raises(BadInput, match="2 clients arrived, 3 are needed"):
        opened_sum([np.ones(3), None, None, np.ones(3)], np.ones(4), 1.0, dropouts=1)
    with pytest.raises(BadInput, match="0 clients arrived, 1 are needed"):
        opened_sum([None], [1.0], 1.0, trust="server")
    with pytest.raises(BadInput, match="leave nobody"):
        hiding_shares(5, dropouts=3, colluding=2)
    with pytest.raises(BadInput, match="client number 1"):
        opened_sum([np.ones(2), np.array([1.0, math.nan])], np.ones(2), 1.0)
    with pytest.raises(BadInput, match="grid steps"):
        opened_sum([np.ones(2)], [1.0], 1.0, 1.0)


def test_a_client_is_in_a_sum_once_or_not_at_all():
    secure_sum = SecureSum(Protection(trust="secure_sum"), [0.5, 0.0, 0.5], 1.0, 2, stream())
    secure_sum.add(0, np.ones(2))
    for client in (0, 1):
        with pytest.raises(BadInput, match=f"client number {client} has no part in this sum, or has sent"):
            secure_sum.add(client, np.ones(2))


def test_a_hundred_times_the_clients_take_no_more_memory():
    def peak(num_clients):
        protection, weights = Protection(unit="client", trust="secure_sum"), np.full(num_clients, 1 / num_clients)
        tracemalloc.start()
        secure_sum = SecureSum(protection, weights, 1.0, 10_000, stream())
        for client in range(num_clients):
            secure_sum.add(client, np.full(10_000, 1.0))
        secure_sum.open()
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    assert peak(3000) < peak(30) + 3e6


# ---- cost -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("shares", [1, 2, 7])
def test_the_cost_bounds_the_exact_divergence_of_the_shares(steps, shares, monkeypatch):
    monkeypatch.setattr(home(rounding_margin), "LEAST_STEPS", 0.5)
    share = discrete_gaussian(steps, 60)
    pmf = share
    for _ in range(shares - 1):
        pmf = np.convolve(pmf, share)
    std = steps * math.sqrt(shares)
    margin = rounding_margin(1, shares, 1 / std) - 1 / std  # discreteness alone: whole numbers need no rounding
    for moved in (1, 2, 5):
        p, q = pmf[moved:], pmf[:-moved]
        both = (p > 1e-200) & (q > 1e-200)
        for order in (1.5, 2.0, 4.0):
            divergence = logsumexp(order * np.log(p[both]) + (1 - order) * np.log(q[both])) / (order - 1)
            assert divergence <= order * (moved / std + margin) ** 2 / 2 * (1 + 1e-9)


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_rounding_moves_neighbours_no_further_apart_than_the_margin_says(seed):
    rng = stream(seed)
    variance = 4.0
    grid = 2.0**-4  # coarse, so that rounding counts
    clip, weight, size = 1.0, 0.3, 50
    one, other = (clip * v / np.linalg.norm(v) for v in (rng.normal(size=size), rng.normal(size=size)))
    sums = [opened_sum([v], [weight], variance, grid, clip_norm=clip, rng=stream(seed)).total for v in (one, -other)]
    apart = np.linalg.norm(sums[0] - sums[1])  # the same seed: the same noise
    margin = rounding_margin(size, 1, grid / math.sqrt(variance))
    assert apart <= weight * 2 * clip + margin * math.sqrt(variance) * (1 + 1e-12)


def test_the_margin_of_the_usual_grid_is_small_even_for_a_million_parameters():
    assert rounding_margin(1_600_000, 20) == approx(GRID_IN_STDS * math.sqrt(1_600_000))
    assert rounding_margin(1_600_000, 20) < 0.0013
    with pytest.raises(BadInput, match="grid steps"):
        rounding_margin(10, 10**12)


@pytest.mark.parametrize("noise", ["simulated", "discrete"])
def test_the_cost_of_a_part_in_a_sum_says_what_was_spent_and_how_far_the_noise_is_from_the_one_meant(noise):
    protection = Protection(trust="secure_sum", noise=noise)
    cost = sum_cost(protection, "ann", 0.5, 30, 1000)
    assert (cost.client, cost.protection, cost.unit, cost.adjacency) == (
        "ann", "secure sum record gradient", "record", "replace_one"
    )  # fmt: skip
    assert (cost.budget, cost.noise_multiplier, cost.noise_kind) == (0.5, 1.0, noise)
    assert cost.extra_delta == approx(0 if noise == "simulated" else 3 * 30 * 1000 * 2.0**-128)
