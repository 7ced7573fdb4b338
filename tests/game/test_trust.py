"""Where the noise of all lies on one sum: what budgets are worth then, one rate, personal prices, and every door."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx
from scipy.optimize import minimize

import mppfl
from mppfl.game import (
    accuracy_term,
    choose_rates,
    find_mechanism,
    gain_from_participating,
    noise_of_sum,
    personal_prices,
    server_cost,
)
from tests.game.games import bounded_game, games, paper_scale_game, star, two_friends
from tests.game.test_leader import RULES

OPENED = ("secure_sum", "server")


def test_two_friends_are_paid_what_calculus_says():
    # ρ = r/3 each, so X² = 4r/3 and cost is τ·.3/(t r) + (1 − τ)·2r²/3, least at r³ = .225/t.
    rates = choose_rates(two_friends(), "secure_sum", np.array([1, 4])).reward_rates
    assert rates == approx(np.cbrt(0.225 / np.array([1, 4])))
    # Prices 3ρ each: τ·.4/(4ρ) + (1 − τ)·6ρ², least at ρ³ = .1/12.
    personal = mppfl.solve(two_friends(), "personalised_secure_sum").terms(1)
    assert personal.budgets == approx([np.cbrt(0.1 / 12)] * 2)
    assert personal.prices == approx(3 * personal.budgets)


def test_sizes_weigh_in_the_sum_as_they_do_in_noise_aware_weights():
    game = two_friends().with_trust("secure_sum")
    game = replace(game, clients=replace(game.clients, data_size=[1.0, 3.0]))
    budgets = np.array([0.25, 0.04])
    assert accuracy_term(game, 2, budgets) == approx(4 * 0.1 / (2 * (0.5 * 0.5 + 1.5 * 0.2) ** 2))
    assert noise_of_sum(game, np.zeros(2)) == np.inf


@given(game=games(), seed=st.integers(0, 2**32 - 1))
def test_harm_of_the_sum_is_convex_along_any_segment(game, seed):
    ends = np.random.default_rng(seed).exponential(size=(2, game.num_clients)) + 1e-9
    harms = [noise_of_sum(game, (1 - share) * ends[0] + share * ends[1]) for share in (0.0, 0.3, 1.0)]
    assert harms[1] <= (0.7 * harms[0] + 0.3 * harms[2]) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_personal_prices_are_those_of_another_solver(seed):
    game = bounded_game(seed, num_clients=6).with_trust("secure_sum")
    clients = game.clients
    able = clients.budget_max > 0

    def cost(logs):
        budgets = np.where(able, np.exp(logs), 0.0)
        return server_cost(game, 2, personal_prices(game, budgets), budgets)

    plan = mppfl.solve(game, "personalised", num_rounds=2, participation="voluntary")
    budgets = plan.terms(2).budgets
    assert (plan.terms(2).participating == able).all()
    assert ((budgets >= clients.budget_min) & (budgets <= clients.budget_max)).all()
    bounds = np.log(np.clip([clients.budget_min, clients.budget_max], 1e-12, 1e3)).T
    starts = [np.clip(np.full(6, np.log(size)), *bounds.T) for size in (0.02, 0.3)]
    exact = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000}
    least = min(minimize(cost, start, method="L-BFGS-B", bounds=bounds, options=exact).fun for start in starts)
    assert plan.outcome.server_costs[1] <= least * (1 + 1e-12)
    assert plan.outcome.server_costs[1] == approx(least, rel=1e-6)


@pytest.mark.parametrize("trust", OPENED)
@pytest.mark.parametrize("rule", RULES)
def test_mechanisms_lead_by_the_sum_under_its_trust_and_by_name_without(trust, rule):
    game = paper_scale_game(1, num_clients=12, preset="paper-like")
    options = {"num_rounds": 3, "participation": rule[0], "against": rule[1]}
    pairs = {"mppfl": "mppfl_secure_sum", "personalised": "personalised_secure_sum"}
    for plain, named in pairs.items():
        under, named_one = mppfl.solve(game.with_trust(trust), plain, **options), mppfl.solve(game, named, **options)
        assert under.plan.to_matrix() == approx(named_one.plan.to_matrix())
        for one in (under, named_one):
            costs = [
                server_cost(game.with_trust(trust), terms.round_index, terms.prices, terms.budgets)
                for terms in one.plan
            ]
            assert one.outcome.server_costs == approx(np.array(costs))
            assert one.verification.leader_regret in (None, approx(0.0, abs=1e-9))
            assert one.verification.client_regret <= 1e-9
    saving = mppfl.solve(game, "mppfl_secure_sum", num_rounds=3).saving_if_clients_may_leave
    assert saving > 0.1  # who asks most is not worth it where one rate is paid to all


def test_nobody_stays_who_would_gain_by_opting_out_of_the_sum():
    game = paper_scale_game(2, num_clients=10, preset="paper-like")
    game = replace(game, clients=replace(game.clients, compute_cost=0.05), trust="secure_sum")
    for mechanism in ("mppfl", "personalised"):
        solution = mppfl.solve(game, mechanism, participation="rational")
        gains = gain_from_participating(game, solution.terms(1).prices, solution.terms(1).budgets, "staying_out")
        assert 0 < solution.outcome.participating[0] < 10
        assert (gains[solution.terms(1).participating] >= -1e-9).all()


def test_every_mechanism_costs_what_the_sum_costs():
    game = paper_scale_game(3, num_clients=10, preset="paper-like")
    rows = {trust: mppfl.compare(game.with_trust(trust), num_rounds=2, conventions=["own"]) for trust in OPENED}
    local = {row.mechanism: row for row in mppfl.compare(game, num_rounds=2, conventions=["own"])}
    for row, other in zip(*rows.values(), strict=True):
        assert (row.server_cost, row.payments) == (other.server_cost, other.payments)
        if row.mechanism in ("random", "dp_fedavg", "sarda_like"):  # the same budgets, less noise
            assert row.server_cost < local[row.mechanism].server_cost
    costs = {row.mechanism: row.server_cost for row in rows["secure_sum"]}
    assert costs["mppfl"] == approx(costs["mppfl_exact"]) == approx(costs["mppfl_noise_aware"])
    assert costs["personalised"] < min(cost for name, cost in costs.items() if name != "personalised")
    noiseless = mppfl.solve(game.with_trust("server"), "noiseless").outcome
    assert noiseless.accuracy_terms == approx([0.0])


def test_a_limit_on_payments_is_kept_and_floors_are_not_paid_for():
    game = paper_scale_game(4, num_clients=10).with_trust("secure_sum")
    limited = find_mechanism("budget_limited").with_options(payment_limit=0.05)
    assert mppfl.solve(game, limited, participation="voluntary").outcome.payments[0] <= 0.05 * (1 + 1e-9)
    floors = star().with_trust("secure_sum").with_bounds(np.full(11, 50.0), np.full(11, np.inf))
    assert mppfl.solve(floors).outcome.payments == approx([0.0])


def test_trust_is_said_in_one_way_at_every_door():
    spec = mppfl.GameSpec(num_clients=8, preset="benign", num_rounds=2, trust="server")
    assert spec.link() == "?num_clients=8&preset=benign&trust=server&num_rounds=2"
    assert spec.build().trust == "server"
    assert "trust " in repr(spec.build())
    assert "trust " not in repr(spec.build().with_trust("local"))
    experiment = mppfl.Experiment(protection={"trust": "secure_sum"}, game={"num_clients": 8})
    assert experiment.game.trust is None
    assert experiment.game_of(0).trust == "secure_sum"
    assert replace(experiment, game={"trust": "local"}).game_of(0).trust == "local"
    assert mppfl.Experiment().game_of(0).trust is None
    with pytest.raises(mppfl.BadInput, match='trust="nobody" must be one of "local"'):
        mppfl.GameSpec(trust="nobody")
    with pytest.raises(mppfl.BadInput, match='trust="nobody" must be one of "local"'):
        star().with_trust("nobody")
