"""Mechanisms: what each promises, and a user's own."""

from functools import partial

import numpy as np
import pytest
from pytest import approx
from scipy.optimize import minimize

import mppfl
from mppfl.game.equilibrium import equilibrium_at
from mppfl.game.mechanisms import MECHANISMS, find_mechanism, fixed, one_hop, random, sarda_like
from mppfl.game.model import privacy_cost, utility, wanted_loss
from mppfl.game.plan import Horizon
from mppfl.game.welfare import welfare
from tests.game.games import paper_scale_game, star, two_friends

RATES = np.array([3.0, 2.8, 2.6])
ROUNDS = np.array([1, 2, 3])


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("rates", [None, RATES])
def test_every_mechanism_plans_every_game(name, rates):
    for game in (paper_scale_game(0, num_clients=9), star(), two_friends()):
        plan = MECHANISMS[name](game, Horizon(ROUNDS, rates))
        assert plan.mechanism == name
        assert len(plan) == 3
        for terms in plan:
            assert terms.budgets.shape == (game.num_clients,)
            assert (terms.budgets >= 0).all()
            assert (terms.budgets > 0).any()
        if rates is not None and name not in ("sarda_like", "personalised", "noiseless"):
            assert plan.reward_rates == approx(rates)


def test_social_agnostic_clients_answer_as_if_alone_and_still_suffer():
    game = paper_scale_game(5, num_clients=12)
    plan = MECHANISMS["social_agnostic"](game, Horizon(ROUNDS, RATES))
    assert plan.terms(0).budgets == approx(np.maximum(wanted_loss(game, 3.0), 0))
    outcome = mppfl.evaluate(game, plan)
    assert outcome.client_regret[0] > 1e-6  # knowing their exposure they would do otherwise
    assert outcome.welfare[0] == approx(welfare(game, 3.0, plan.terms(0).budgets))


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
    # rounds settle one by one where clients may stay out, and still differ
    free = mppfl.solve(
        game, "random", num_rounds=3, participation="if_better_than_staying_out", seed=7
    ).plan.to_matrix()
    everyday = (free > 0).all(0)
    assert everyday.sum() > 1
    assert not np.array_equal(free[0, everyday], free[1, everyday])


def test_the_smallest_fixed_budget_is_refused_by_nobody():
    game = paper_scale_game(2, num_clients=15)
    first = mppfl.solve(game, "mppfl").terms(1)
    assert fixed(game, Horizon(ROUNDS, RATES)).terms(0).budgets == approx(first.budgets.min())
    assert (fixed(game, Horizon(ROUNDS, RATES)).terms(0).budgets <= first.budgets * (1 + 1e-12)).all()
    mean = fixed(game, Horizon(ROUNDS, RATES), budget="mean").terms(0).budgets
    assert mean == approx(wanted_loss(game, first.reward_rate).mean())
    assert fixed(game, Horizon(ROUNDS, RATES), budget=0.25).terms(2).budgets == approx(0.25)
    with pytest.raises(mppfl.BadInput, match="fixed budget"):
        fixed(game, Horizon(ROUNDS, RATES), budget=-1.0)


def test_own_rate_of_mandated_budgets_covers_every_clients_cost():
    game = paper_scale_game(2, num_clients=15)
    for mechanism in (fixed, random):
        plan = mechanism(game, Horizon(ROUNDS))
        worst = [utility(game, terms.prices, terms.budgets).min() for terms in plan]
        assert worst == approx([0.0] * 3, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_auction_finds_the_one_hop_optimum_and_balances_its_books(seed):
    game = paper_scale_game(seed, num_clients=7)
    near = one_hop(game)
    terms = sarda_like(game, Horizon(np.array([4]))).terms(0)
    value = game.accuracy_weight / (1 - game.accuracy_weight) * game.clients.noise_harm / 4

    def lost(logs):
        budgets = np.exp(logs)
        return float((value / budgets).sum() + privacy_cost(game, near.loss @ budgets).sum())

    best = minimize(lost, np.zeros(7), method="BFGS", options={"gtol": 1e-10})
    assert terms.budgets == approx(np.exp(best.x), rel=1e-5)
    paid_by_server = (value / terms.budgets).sum()  # Σ λ_i ρ_i with λ_i = q_i/ρ_i²
    assert (np.asarray(terms.prices) * terms.budgets).sum() == approx(paid_by_server, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_sarda_r_is_the_one_hop_welfare_optimum_at_the_common_rate(seed):
    game = paper_scale_game(seed, num_clients=7)
    near = one_hop(game)
    terms = MECHANISMS["sarda_r"](game, Horizon(np.array([1]), np.array([2.2]))).terms(0)
    best = minimize(
        lambda x: -welfare(near, 2.2, x),
        np.full(7, 0.5),
        bounds=[(1e-3, None)] * 7,
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    assert welfare(near, 2.2, terms.budgets) == approx(-best.fun, rel=1e-8)
    assert (terms.budgets >= 1e-3 - 1e-12).all()


def test_noiseless_protects_nobody_and_pays_nobody():
    game = two_friends()
    outcome = mppfl.solve(game, "noiseless", num_rounds=2).outcome
    assert (outcome.accuracy_terms == 0).all()
    assert (outcome.payments == 0).all()
    assert (outcome.below_zero == 2).all()


def test_a_users_own_function_is_a_mechanism():
    def generous(game, horizon):
        terms = [mppfl.Terms(int(t), 5.0, 5.0, equilibrium_at(game, 5.0).budgets) for t in horizon.rounds]
        return mppfl.plan_of_rounds("generous", terms)

    found = mppfl.solve(paper_scale_game(0, num_clients=6), generous, num_rounds=3)
    assert found.plan.mechanism == "generous"
    assert found.verification.residual <= 1e-12
    rows = mppfl.compare(
        paper_scale_game(0, num_clients=6), {"mppfl": MECHANISMS["mppfl"], "generous": generous}, num_rounds=2
    )
    assert {row.mechanism for row in rows} == {"mppfl", "generous"}


def test_installed_packages_offer_mechanisms_by_entry_point(monkeypatch):
    import importlib.metadata

    class Point:
        name = "theirs"

        def load(self):
            return partial(fixed, budget=0.5)

    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: [Point()] if group == "mppfl.mechanisms" else []
    )
    assert mppfl.solve(two_friends(), "theirs").terms(1).budgets == approx([0.5, 0.5])
    with pytest.raises(mppfl.BadInput, match=r"not known.*theirs"):
        find_mechanism("nobodys")


def test_a_misspelt_mechanism_gets_a_hint():
    with pytest.raises(mppfl.BadInput, match="Did you mean 'mppfl_exact'"):
        find_mechanism("mppfl_exakt")


def test_sarda_r_counts_what_reaches_those_who_may_not_share():
    high = np.where(np.arange(7) < 2, 0.0, np.inf)
    game = paper_scale_game(1, num_clients=7, preset="benign").with_bounds(np.zeros(7), high)
    near = one_hop(game)
    terms = MECHANISMS["sarda_r"](game, Horizon(np.array([1]), np.array([2.2]))).terms(0)
    best = minimize(
        lambda x: -welfare(near, 2.2, x),
        np.minimum(0.5, high),
        bounds=list(zip(np.minimum(1e-3, high), high, strict=True)),
        options={"ftol": 1e-15, "gtol": 1e-9},
    )
    assert welfare(near, 2.2, terms.budgets) == approx(-best.fun, rel=1e-8)
