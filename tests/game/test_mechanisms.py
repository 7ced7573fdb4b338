"""Mechanisms: what each promises, and a user's own."""

import importlib.metadata
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pytest import approx
from scipy.optimize import minimize

import mppfl
from mppfl.game import (
    MECHANISMS,
    Horizon,
    check_plan,
    dp_fedavg,
    equilibrium_at,
    find_mechanism,
    one_hop,
    privacy_cost,
    random,
    sarda_like,
    utility,
    wanted_loss,
    welfare,
)
from tests.game.games import paper_scale_game, star, two_friends

RATES = np.array([3.0, 2.8, 2.6])
ROUNDS = np.array([1, 2, 3])


def capped(seed):
    """Nine clients, some of whom may give little or nothing, and some of whom must give something."""
    high = np.where(np.arange(9) % 3 == 0, 0.4, np.where(np.arange(9) == 7, 0.0, np.inf))
    game = paper_scale_game(seed, num_clients=9)
    return game.with_bounds(np.minimum(0.1 * seed, high), high)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("rates", [None, RATES])
def test_every_mechanism_plans_every_game_within_everybodys_bounds(name, rates):
    horizon = Horizon(ROUNDS, rates, participation="voluntary")
    for game in (paper_scale_game(0, num_clients=9), star(), two_friends(), capped(0), capped(1)):
        plan = check_plan(MECHANISMS[name](game, horizon), game, horizon)
        assert plan.mechanism == name
        assert ((plan.to_matrix() > 0).any(1)).all()
        if rates is not None and name not in ("sarda_like", "personalised", "personalised_secure_sum", "noiseless"):
            assert plan.reward_rates == approx(rates)


def test_social_agnostic_clients_answer_as_if_alone_and_still_suffer():
    game = paper_scale_game(5, num_clients=12)
    plan = MECHANISMS["social_agnostic"](game, Horizon(ROUNDS, RATES))
    assert plan[0].budgets == approx(np.maximum(wanted_loss(game, 3.0), 0))
    outcome = mppfl.game.evaluate(game, plan)
    assert outcome.client_regret[0] > 1e-6  # knowing their exposure they would do otherwise
    assert outcome.welfare[0] == approx(welfare(game, 3.0, plan[0].budgets))


def test_random_budgets_lie_in_their_range_and_repeat_with_their_seed():
    game = paper_scale_game(5, num_clients=50)
    one, two, other = (random(game, Horizon(ROUNDS, RATES, seed)).to_matrix() for seed in (1, 1, 2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], one[1])
    low, high = (float(x) for x in random(game, Horizon(ROUNDS, RATES)).notes[0].split("[")[1][:-1].split(","))
    assert (one >= 0.999 * low).all()
    assert (one <= 1.001 * high).all()
    assert high / low == approx(9.0, rel=1e-3)


def test_random_budgets_belong_to_their_round_whoever_plans_it():
    game = paper_scale_game(5, num_clients=20)
    whole = random(game, Horizon(np.arange(1, 4), np.full(3, 3.0), 7)).to_matrix()
    alone = [random(game, Horizon(np.array([t]), np.array([3.0]), 7)).to_matrix()[0] for t in (1, 2, 3)]
    assert np.array_equal(whole, np.array(alone))
    # rounds settle one by one where clients may opt out, and still differ
    free = mppfl.solve(game, "random", num_rounds=3, participation="rational", seed=7).plan.to_matrix()
    everyday = free[:, (free > 0).all(0)]
    assert everyday.shape[1] > 1
    assert not np.array_equal(everyday[0], everyday[1])


def test_a_fixed_budget_is_the_smallest_the_mean_or_a_number_and_its_own_rate_covers_every_clients_cost():
    game, horizon = paper_scale_game(2, num_clients=15), Horizon(ROUNDS, RATES)
    first = mppfl.solve(game, "mppfl").terms(1)
    smallest = dp_fedavg(game, horizon)[0].budgets
    assert smallest == approx(first.budgets.min())
    assert (smallest <= first.budgets * (1 + 1e-12)).all()  # so nobody refuses it
    mean = dp_fedavg.with_options(fixed_budget="mean")(game, horizon)[0].budgets
    assert mean == approx(wanted_loss(game, first.reward_rate).mean())
    assert dp_fedavg.with_options(fixed_budget=0.25)(game, horizon)[2].budgets == approx(0.25)
    for wrong in (-1.0, "most"):
        with pytest.raises(mppfl.BadInput, match="fixed budget"):
            dp_fedavg.with_options(fixed_budget=wrong)(game, horizon)
    for mechanism in (dp_fedavg, random):
        terms = mechanism(game, Horizon(ROUNDS))
        assert [utility(game, t.prices, t.budgets).min() for t in terms] == approx([0.0] * 3, abs=1e-12)
    with pytest.raises(mppfl.BadInput, match="random budgets need 0 < low <= high"):
        random.with_options(low=2.0)(game, horizon)


def auction_optimum(game, round_index):
    """The least of Σ q_i/ρ_i + Σ(a s_i² + b s_i), s = B₁ρ, within bounds; over logarithms of those who may share."""
    near, clients = one_hop(game), game.clients
    value = game.accuracy_weight / (1 - game.accuracy_weight) * clients.noise_harm / round_index
    inside = clients.budget_max > 0

    def given(logs):
        budgets = np.zeros(game.num_clients)
        budgets[inside] = np.exp(logs)
        return budgets

    def lost(logs):
        budgets = given(logs)
        losses = near.loss @ budgets
        harm = near.loss.T @ (2 * clients.quadratic_cost * losses + clients.linear_cost)
        total = (value[inside] / budgets[inside]).sum() + privacy_cost(game, losses).sum()
        return total, (budgets * harm)[inside] - value[inside] / budgets[inside]

    ends = np.log(np.clip([clients.budget_min[inside], clients.budget_max[inside]], 1e-8, 1e8))
    bounds = list(zip(*ends, strict=True))
    best = minimize(
        lost, np.clip(0.0, *ends), jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-16, "gtol": 1e-11}
    )
    return given(best.x)


@pytest.mark.parametrize("seed", range(4))
def test_the_auction_finds_the_one_hop_optimum_within_bounds(seed):
    game = paper_scale_game(seed, num_clients=9)
    rng = np.random.default_rng(seed)
    free = sarda_like(game, Horizon(np.array([2, 3]))).to_matrix().mean(axis=0)
    low = np.where(rng.random(9) < 0.3, 1.5 * free, 0.0)
    high = np.where(rng.random(9) < 0.4, np.maximum(0.6 * free, low), np.inf)
    low[:2] = high[:2] = 0.0  # two who may not share
    game = game.with_bounds(low, high)
    for terms in sarda_like(game, Horizon(np.array([2, 3]))):
        assert terms.budgets == approx(auction_optimum(game, terms.round_index), rel=1e-5, abs=1e-9)
        losses = one_hop(game).loss @ terms.budgets
        paid = (2 * game.clients.quadratic_cost * losses + game.clients.linear_cost) * losses
        assert terms.prices * terms.budgets == approx(np.where(terms.budgets > 0, paid, 0.0))


def test_who_left_the_auction_does_not_bid_and_the_others_settle_without_it():
    game = paper_scale_game(3, num_clients=9)
    game = replace(game, clients=replace(game.clients, compute_cost=np.full(9, 0.5)))
    found = mppfl.solve(game, "sarda_like", participation="rational", against="nothing").terms(1)
    out = found.budgets == 0
    assert 0 < out.sum() < 9
    held = game.with_bounds(np.zeros(9), np.where(out, 0.0, np.inf))
    assert found.budgets == approx(auction_optimum(held, 1), rel=1e-5)


@pytest.mark.filterwarnings("error")
def test_an_auction_in_which_nobody_may_share_buys_nothing():
    game = paper_scale_game(0, num_clients=5).with_bounds(np.zeros(5), np.zeros(5))
    terms = sarda_like(game, Horizon(np.array([1])))[0]
    assert (terms.budgets == 0).all()
    assert terms.reward_rate == 0


@pytest.mark.parametrize("kept_out", [0, 2])  # who may not share, but is reached by the others
@pytest.mark.parametrize("seed", range(3))
def test_sarda_r_is_the_one_hop_welfare_optimum_at_the_common_rate(seed, kept_out):
    high = np.where(np.arange(7) < kept_out, 0.0, np.inf)
    game = paper_scale_game(seed, num_clients=7, preset="benign").with_bounds(np.zeros(7), high)
    near, low = one_hop(game), np.minimum(1e-3, high)
    terms = MECHANISMS["sarda_r"](game, Horizon(np.array([1]), np.array([2.2])))[0]
    options = {"ftol": 1e-15, "gtol": 1e-9}
    bounds = list(zip(low, high, strict=True))
    best = minimize(lambda x: -welfare(near, 2.2, x), np.minimum(0.5, high), bounds=bounds, options=options)
    assert welfare(near, 2.2, terms.budgets) == approx(-best.fun, rel=1e-8)
    assert (terms.budgets >= low - 1e-12).all()


def test_a_users_own_function_is_a_mechanism():
    def generous(game, horizon):
        terms = [mppfl.RoundTerms(int(t), 5.0, 5.0, equilibrium_at(game, 5.0)) for t in horizon.rounds]
        return mppfl.plan_from_rounds("generous", terms)

    game = paper_scale_game(0, num_clients=6)
    found = mppfl.solve(game, generous, num_rounds=3)
    assert found.plan.mechanism == "generous"
    assert found.verification.residual <= 1e-12
    assert {row.mechanism for row in mppfl.compare(game, ["mppfl", generous], num_rounds=2)} == {"mppfl", "generous"}


def test_installed_packages_offer_mechanisms_by_entry_point_and_a_misspelt_one_gets_a_hint(monkeypatch):
    theirs = SimpleNamespace(name="theirs", load=lambda: dp_fedavg.with_options(fixed_budget=0.5))
    offered = {"mppfl.mechanisms": [theirs]}
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: offered.get(group, []))
    assert mppfl.solve(two_friends(), "theirs").terms(1).budgets == approx([0.5, 0.5])
    for name, told in (("nobodys", r"not known.*theirs"), ("mppfl_exakt", "Did you mean 'mppfl_exact'")):
        with pytest.raises(mppfl.BadInput, match=told):
            find_mechanism(name)
