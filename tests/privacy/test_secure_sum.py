"""Secure sums: best weights by two routes, exact integers, noise whose distribution is known, memory, cohorts."""

import math
import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import chisquare

from mppfl.errors import BadInput
from mppfl.privacy import (
    GRID_IN_STDS,
    Protection,
    SecureSum,
    banded_square_root,
    clip_rows,
    discrete_steps,
    grid_of_sum,
    hiding_shares,
    margin_of,
    noise_growth,
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


# ---- cohorts ------------------------------------------------------------------------------------------------------


def band_matrix(cohorts, rounds):
    column = np.zeros(rounds)
    column[:cohorts] = banded_square_root(cohorts)[:rounds]
    return toeplitz(column, np.zeros(rounds))


@pytest.mark.parametrize(("rounds", "cohorts"), [(1, 1), (4, 1), (5, 2), (6, 3), (7, 3), (8, 4), (3, 5)])
def test_over_all_schedules_and_signs_turns_cost_what_each_costs_and_turns_too_near_cost_more(rounds, cohorts):
    matrix, most, too_near = band_matrix(cohorts, rounds), 0.0, []
    for schedule in product((-1, 0, 1), repeat=rounds):
        turns = np.flatnonzero(schedule)
        sensitivity = float(np.sum((matrix @ schedule) ** 2))
        if (np.diff(turns) >= cohorts).all():
            assert sensitivity <= len(turns) * (1 + 1e-12)
            assert sensitivity == approx((matrix[:, turns] ** 2).sum())  # nothing between two turns
            most = max(most, sensitivity)
        else:
            too_near.append(sensitivity / len(turns))
    turns = -(-rounds // cohorts)
    cut = (matrix[:, (turns - 1) * cohorts] ** 2).sum()  # of the last turn, as far as rounds are left
    assert most == approx(turns - 1 + cut)
    assert cohorts == 1 or rounds < cohorts or max(too_near) > 1.2


def noise_of_rounds(cohorts, rounds, size, *, trust="server", seeded=True, faults=None):
    """Noise of each round over √V of its own, of three clients that send nothing, by the sums alone [rounds, size]."""
    protection = Protection(unit="client", trust=trust, cohorts=cohorts, **(faults or {}))
    rng, past, rows = stream(11) if seeded else None, (), []
    for t in range(rounds):
        variance = 0.5 + 0.3 * t
        total = SecureSum(protection, np.full(3, 1 / 3), variance, size, rng, past=past)
        for client in range(3):
            total.add(client, np.zeros(size))
        rows.append(total.open().total / math.sqrt(variance))
        past = total.past
    assert len(past) == min(rounds, cohorts - 1)
    return np.array(rows)


@pytest.mark.parametrize(("trust", "seeded"), [("server", True), ("secure_sum", True), ("secure_sum", False)])
def test_the_noise_of_rounds_is_white_noise_under_the_inverse_of_the_band(trust, seeded):
    rounds, cohorts, size = 7, 3, 20_000
    white = band_matrix(cohorts, rounds) @ noise_of_rounds(cohorts, rounds, size, trust=trust, seeded=seeded)
    far = 6 / math.sqrt(size)  # a covariance is off by more once in 5e8
    np.testing.assert_allclose(white @ white.T / size, np.eye(rounds), atol=1.5 * far)
    inverse = np.linalg.inv(band_matrix(cohorts, rounds))
    growth = [noise_growth(cohorts, t + 1) for t in range(rounds)]
    np.testing.assert_allclose(growth, np.linalg.norm(inverse, axis=1))


def test_shares_for_those_who_fail_or_collude_hide_as_much_with_cohorts():
    def hidden(**faults):
        protection = Protection(unit="client", trust="secure_sum", cohorts=2, **faults)
        total = SecureSum(protection, np.ones(6), 2.0, 3, stream())
        for client in range(6 - faults.get("dropouts", 0)):
            total.add(client, np.zeros(3))
        return total.open().hidden_variance

    least = 2.0 / banded_square_root(2)[0] ** 2
    assert hidden() == approx(least)
    assert hidden(dropouts=2, colluding=1) == approx(least)


@pytest.mark.parametrize(("rounds", "cohorts", "gain"), [(60, 10, 4.8), (30, 5, 2.92), (12, 2, 1.56)])
def test_what_adds_up_over_rounds_has_less_noise_than_independent_noise_of_the_same_cost(rounds, cohorts, gain):
    adds_up = np.tril(np.ones((rounds, rounds)))
    independent = np.sum(adds_up**2)
    banded = np.sum((adds_up @ np.linalg.inv(band_matrix(cohorts, rounds))) ** 2)
    assert independent / banded == approx(gain, rel=0.02)
    drawn = np.cumsum(noise_of_rounds(cohorts, rounds, 2000), axis=0)
    assert np.sum(drawn**2) / 2000 == approx(banded, rel=0.1)


@given(st.integers(1, 5), st.integers(0, 10**6), st.floats(0.02, 2))
@settings(max_examples=60)
def test_rounding_in_all_sums_in_which_a_turn_shows_is_within_the_margin(cohorts, seed, length):
    # On a coarse grid, with two worlds in which the same sums open: `apart` is how far the noise then has to move.
    size, variance, grid, rng = 6, 1.0, 0.2, stream(seed)
    protection = Protection(unit="client", trust="server", cohorts=cohorts, clip_norm=length)
    vectors = np.outer((1.0, -1.0), clip_rows(rng.standard_normal((1, size)), length)[0][0])
    past, spent = [(), ()], 0.0
    for t in range(cohorts):
        totals = []
        for world, vector in enumerate(vectors):
            total = SecureSum(protection, [1.0], variance, size, stream(seed + t), grid, past=past[world])
            total.add(0, vector if t == 0 else np.zeros(size))
            totals.append(total.open().total)
            past[world] = total.past
        apart = (totals[0] - totals[1]) / math.sqrt(variance)
        spent += float(apart @ apart) * banded_square_root(cohorts)[0] ** 2
        past[1] = tuple(noise + (age == 0) * apart for age, noise in enumerate(past[1]))
    margin = grid / math.sqrt(variance) * math.sqrt(size) * (1 + math.sqrt(cohorts - 1))
    assert math.sqrt(spent) <= np.linalg.norm(vectors[0] - vectors[1]) / math.sqrt(variance) + margin
    assert margin_of(protection, size, 1) == rounding_margin(size, 1) * (1 + math.sqrt(cohorts - 1))
