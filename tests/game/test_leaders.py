"""The server's reward: six leaders, inside the bounds and at them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy.optimize import minimize

import mppfl
from mppfl.game import leaders, path
from mppfl.game.equilibrium import equilibrium_at, equilibrium_response
from mppfl.game.leaders import choose_rates, noise_aware_cost, pigouvian_weights
from mppfl.game.mechanisms import MECHANISMS
from mppfl.game.model import cost_without_absent, server_cost, wanted_loss
from mppfl.game.path import response_path
from mppfl.game.personal_prices import personalised_budgets, personalised_prices
from mppfl.game.plan import AlongLine
from mppfl.game.welfare import social_optimum, welfare
from tests.game.games import games, paper_scale_game, star


def cheapest_rate(game, round_index, low, high, cost=server_cost, points=4000):
    """The brute-force leader: try many rates with clients responding."""
    rates = np.geomspace(low, high, points)
    costs = [cost(game, round_index, r, equilibrium_at(game, r).budgets) for r in rates]
    return rates[int(np.argmin(costs))], min(costs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("round_index", [1, 30])
def test_anticipating_is_the_cheapest_rate_that_keeps_everybody(seed, round_index):
    game = paper_scale_game(seed, num_clients=12)
    response = equilibrium_response(game)
    rate = choose_rates(game, "anticipating", np.array([round_index])).reward_rates[0]
    low = response.lowest_rate * (1 + 1e-9)
    _, least = cheapest_rate(game, round_index, low, 3 * rate)
    assert server_cost(game, round_index, rate, response.budgets(rate)) <= least * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_papers_leader_pays_more_than_it_need(seed):
    game = paper_scale_game(seed)
    rounds = np.array([1, 10, 60])
    paper, exact = (choose_rates(game, leader, rounds).reward_rates for leader in ("mean_field", "anticipating"))
    assert (paper >= exact - 1e-12).all()


def test_rates_fall_from_round_to_round():
    rates = mppfl.solve(paper_scale_game(1), num_rounds=40).outcome.reward_rates
    assert (np.diff(rates) < 0).all()


@pytest.mark.parametrize("preset", ["paper-like", "benign"])
@pytest.mark.parametrize("seed", range(4))
def test_noise_aware_is_cheapest_under_noise_aware_aggregation(seed, preset):
    game = paper_scale_game(seed, num_clients=12, preset=preset)
    for round_index in (1, 40):
        chosen = choose_rates(game, "noise_aware", np.array([round_index]))
        rate, budgets = chosen.reward_rates[0], chosen.budgets.at(0, chosen.reward_rates[0])
        mine = noise_aware_cost(game, round_index, rate, budgets)
        _, least = cheapest_rate(game, round_index, 0.05, 5.0, noise_aware_cost, points=1500)
        assert mine <= least * (1 + 1e-12)
        assert budgets == approx(equilibrium_at(game, rate).budgets, abs=1e-9)


def test_noise_aware_leader_costs_a_fraction_and_loses_clients_as_measured_before():
    # 20 draws of paper-like: 27.3 -> 7.0 at t=1 and 21.9 -> .68 at t=60; 55 % -> 25 % take part (docs/model.md, 4).
    costs, shares = [], []
    for seed in range(20):
        game = paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05)
        plain = mppfl.solve(game, "mppfl", num_rounds=60)
        aware = mppfl.solve(game, "mppfl_noise_aware", num_rounds=60)
        row = [plain.outcome.server_costs[0], plain.outcome.server_costs[-1]]
        row += [noise_aware_cost(game, t, aware.terms(t).reward_rate, aware.terms(t).budgets) for t in (1, 60)]
        costs.append(row)
        shares.append([aware.outcome.taking_part[0] / 20, aware.outcome.taking_part[-1] / 20])
    assert np.mean(costs, axis=0) == approx([27.3, 21.9, 7.0, 0.68], rel=0.25)
    assert np.mean(shares, axis=0) == approx([0.55, 0.25], abs=0.08)


@pytest.mark.parametrize("seed", range(5))
def test_budget_limited_spends_its_limit_or_less(seed):
    game = paper_scale_game(seed, num_clients=15)
    free = mppfl.solve(game, "mppfl_exact")
    spent = free.outcome.payments[0]
    for share in (0.3, 0.9, 2.0):
        limit = float(share * spent)
        chosen = choose_rates(game, "budget_limited", np.array([1]), payment_limit=limit)
        rate = chosen.reward_rates[0]
        payments = rate * chosen.budgets.at(0, rate).sum()
        assert payments <= limit * (1 + 1e-9)
        if share > 1:  # more money than the server wants to spend
            assert rate == approx(free.outcome.reward_rates[0])


def test_budget_limited_follows_its_formula_inside_the_bounds():
    game = paper_scale_game(4, num_clients=10, preset="benign")
    line = equilibrium_response(game)
    U, V = line.slope.sum(), line.offset.sum()
    limit = 0.95 * mppfl.solve(game, "mppfl_exact").outcome.payments[0]
    rate = choose_rates(game, "budget_limited", np.array([1]), payment_limit=limit).reward_rates[0]
    assert rate == approx((V + np.sqrt(V**2 + 4 * U * limit)) / (2 * U))


@pytest.mark.parametrize("seed", range(8))
def test_pigouvian_prices_make_selfish_clients_do_what_all_want(seed):
    game = paper_scale_game(seed, preset="benign")
    weights, rate = pigouvian_weights(game), 2.0
    optimum = social_optimum(game, rate, weights)
    assert not optimum.reaches_bounds
    assert equilibrium_at(game, rate * weights).budgets == approx(optimum.budgets, abs=1e-10)
    assert welfare(game, rate, optimum.budgets) == approx(optimum.welfare, rel=1e-12)


def test_hubs_with_negative_pigouvian_weights_are_offered_nothing_and_counted():
    game = star()
    assert pigouvian_weights(game)[0] < 0
    found = mppfl.solve(game, "pigouvian")
    assert any("would be charged" in note for note in found.warnings)
    assert (np.asarray(found.terms(1).prices) >= 0).all()
    assert found.verification.client_regret <= 1e-12


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capped", [False, True])
def test_personalised_prices_are_the_cheapest_for_the_server(seed, capped):
    game = paper_scale_game(seed, num_clients=8)
    if capped:
        game = game.with_bounds(np.full(8, 0.05), np.full(8, 0.12))
    found = personalised_budgets(game, 3)
    prices = personalised_prices(game, found)
    assert equilibrium_at(game, prices).budgets == approx(found, abs=1e-9)  # everybody is at its best response
    reference = minimize(
        lambda x: server_cost(game, 3, personalised_prices(game, x), x),
        np.full(8, 0.1),
        method="SLSQP",
        bounds=list(
            zip(np.maximum(game.clients.budget_min, 1e-6), np.minimum(game.clients.budget_max, 1e3), strict=True)
        ),
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert server_cost(game, 3, prices, found) <= reference.fun * (1 + 1e-9)
    uniform = mppfl.solve(game, "mppfl_exact", num_rounds=3).outcome.server_costs[2]
    assert server_cost(game, 3, prices, found) <= uniform * (1 + 1e-9)


def test_star_keeps_all_eleven_clients_at_rates_between_its_two_limits():
    for mechanism in ("mppfl", "mppfl_exact"):
        found = mppfl.solve(star(), mechanism, num_rounds=3)
        assert (found.outcome.taking_part == 11).all()
        assert ((found.outcome.reward_rates > 1.0101) & (found.outcome.reward_rates < 4 / 3)).all()
        assert found.verification.client_regret <= 1e-12
    assert found.verification.leader_regret == approx(0.0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(games())
def test_the_path_is_the_equilibrium_at_every_rate(game):
    segments = response_path(game, np.ones(game.num_clients))
    assert np.isinf(segments[-1].high)
    for segment in segments:
        high = min(segment.high, 2 * segment.low + 3)
        for share in (0.1, 0.5, 0.9):
            rate = segment.low + share * (high - segment.low)
            if high - segment.low < 1e-7:
                continue
            assert segment.budgets(rate) == approx(equilibrium_at(game, rate).budgets, abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(games(), st.sampled_from(["mean_field", "anticipating", "noise_aware"]), st.integers(1, 50))
def test_every_leader_finds_a_rate_at_which_clients_are_at_rest(game, leader, round_index):
    chosen = choose_rates(game, leader, np.array([round_index]))
    rate = chosen.reward_rates[0]
    budgets = chosen.budgets.at(0, rate)
    assert np.isfinite(rate)
    assert (budgets > 0).any()
    assert budgets == approx(equilibrium_at(game, rate).budgets, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(games())
def test_no_sampled_rate_is_cheaper_than_anticipating_at_the_bounds(game):
    chosen = choose_rates(game, "anticipating", np.array([1]))
    rate = chosen.reward_rates[0]
    mine = cost_without_absent(game, 1, rate, chosen.budgets.at(0, rate))
    line = equilibrium_response(game)
    keeps = line.has_interior and leaders.interior_rates_of(game, line, "anticipating", np.array([1])) is not None
    for other in np.geomspace(max(rate, 0.05) / 20, max(rate, 0.05) * 20, 200):
        inside = line.lowest_rate < other < line.highest_rate
        answer = equilibrium_at(game, other).budgets
        lost = not (answer > 0).all()
        # Where everybody can be kept inside, the leader looks only there, and where budgets have floors, at rates that
        # lose nobody.
        if not keeps or inside or (leaders.has_floors(game) and not lost):
            assert mine <= cost_without_absent(game, 1, other, answer) * (1 + 1e-7)


@pytest.mark.parametrize("leader", ["mean_field", "anticipating", "noise_aware", "budget_limited"])
def test_sampled_rates_of_large_games_come_close_to_the_exact_path(monkeypatch, leader):
    game = paper_scale_game(21, num_clients=40, preset="paper-like", externality_strength=0.2)
    capped = game.with_bounds(np.zeros(40), np.full(40, 0.8))  # some are always at a bound
    limit = 5.0
    exact = choose_rates(capped, leader, np.array([1, 30]), payment_limit=limit)
    for module in (path, leaders):
        monkeypatch.setattr(module, "EXACT_BELOW", 5)
    sampled = choose_rates(replace(capped), leader, np.array([1, 30]), payment_limit=limit)
    cost = noise_aware_cost if leader == "noise_aware" else cost_without_absent
    for k, t in enumerate((1, 30)):
        best = cost(capped, t, exact.reward_rates[k], exact.budgets.at(k, exact.reward_rates[k]))
        rate = sampled.reward_rates[k]
        budgets = sampled.budgets.at(k, rate)
        assert budgets == approx(equilibrium_at(capped, rate).budgets, abs=1e-9)
        # Without noise-aware aggregation cost has a pole wherever somebody enters: samples may miss a narrow trough.
        assert cost(capped, t, rate, budgets) <= (1.01 if leader == "noise_aware" else 1.5) * best
        if leader == "budget_limited":
            assert rate * budgets.sum() <= limit * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_no_leader_keeps_a_client_whose_budget_vanishes(seed):
    rng = np.random.default_rng(seed)
    clients = mppfl.Clients(np.exp(rng.uniform(-3, 1, 6)), rng.uniform(0, 2, 6), 0.1)
    game = mppfl.make_game(mppfl.random_graph("erdos_renyi", 6, rng=rng), clients, externality_strength=0.1)
    for mechanism in ("mppfl", "mppfl_exact"):
        found = mppfl.solve(game, mechanism)
        budgets = found.terms(1).budgets
        assert found.outcome.server_costs[0] < 1000
        assert budgets[budgets > 0].min() > 1e-9 * budgets.max()


def test_a_crowd_that_may_not_share_is_an_error_with_one_line():
    game = paper_scale_game(0, num_clients=5).with_bounds(np.zeros(5), np.zeros(5))
    with pytest.raises(mppfl.NoEquilibrium, match="take part"):
        mppfl.solve(game)


def test_wanted_losses_do_not_depend_on_friends():
    game = paper_scale_game(0, num_clients=5)
    assert wanted_loss(game, 2.0) == approx((2.0 - game.clients.linear_cost) / (2 * game.clients.quadratic_cost))


def pair_with_floors(linear, harm, low, quadratic=1.0):
    graph = mppfl.read_graph(np.array([[0.0, 1.0], [1.0, 0.0]]))
    return mppfl.make_game(graph, mppfl.Clients([quadratic] * 2, linear, harm, budget_min=low))


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_budget_limited_does_not_spend_its_limit_where_floors_are_enough(limit):
    game = pair_with_floors([0.5, 0.5], [0.05, 0.05], 0.2)
    thrifty = partial(MECHANISMS["budget_limited"], payment_limit=limit)
    exact, found = (mppfl.solve(game, each, num_rounds=3) for each in ("mppfl_exact", thrifty))
    assert exact.outcome.payments == approx(np.zeros(3))
    assert found.outcome.server_costs == approx(exact.outcome.server_costs)
    line, rounds = equilibrium_response(game), np.array([1, 2, 3])
    assert np.isnan(leaders.interior_rates_each(game, line, "budget_limited", rounds, limit)).all()


def test_budget_limited_still_spends_its_limit_where_the_best_rate_is_above_the_interior():
    game = pair_with_floors([0.5, 0.5], [5.0, 5.0], 0.0).with_bounds(np.zeros(2), np.array([0.5, 0.6]))
    line, rounds = equilibrium_response(game), np.array([1, 2])
    assert leaders.interior_rates_of(game, line, "anticipating", rounds) is None
    chosen = choose_rates(game, "budget_limited", rounds, payment_limit=0.3)
    assert not chosen.reaches_bounds
    for k, rate in enumerate(chosen.reward_rates):
        assert rate * chosen.budgets.at(k, rate).sum() == approx(0.3)
    assert leaders.interior_rates_each(game, line, "budget_limited", rounds, 0.3) == approx(chosen.reward_rates)


@pytest.mark.parametrize("mechanism", ["mppfl_exact", "mppfl_noise_aware", "pigouvian", "social_agnostic"])
def test_no_leader_that_minimises_a_cost_pays_for_what_floors_bring_anyway(mechanism):
    # At rate 2.25 both are strictly inside and the cost is 5.3; at 0 both still take part, and it is .1/.3 + .05/.05.
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    found = mppfl.solve(game, mechanism, num_rounds=3)
    assert found.outcome.server_costs == approx(0.5 * (0.1 / 0.3 + 0.05 / 0.05) / np.array([1, 2, 3]))
    assert found.outcome.taking_part.tolist() == [2, 2, 2]
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)
    assert found.verification.client_regret == approx(0.0, abs=1e-12)


def test_the_leaders_regret_sees_what_floors_would_save():
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    line, rounds = equilibrium_response(game), np.array([1])
    rates = leaders.interior_rates_of(game, line, "anticipating", rounds)
    plan = mppfl.Plan("mppfl_exact", rounds, rates, AlongLine(line.slope, line.offset), 2)
    dear = server_cost(game, 1, rates[0], line.budgets(rates[0]))
    assert mppfl.verify(game, plan).leader_regret == approx(dear - 2 / 3)
    paper = mppfl.solve(game, "mppfl")  # follows its condition, and is told what that costs
    assert paper.verification.leader_regret == approx(paper.outcome.server_costs[0] - 2 / 3)


@pytest.mark.parametrize("seed", range(30))
def test_floors_never_make_the_exact_leader_dearer_than_any_rate_that_loses_nobody(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    low = np.where(rng.random(5) < 0.6, rng.uniform(0.01, 0.3, 5), 0.0)
    high = np.where(rng.random(5) < 0.2, 0.0, np.inf)
    clients = mppfl.Clients(rng.uniform(0.2, 1, 5), rng.uniform(0.1, 2, 5), rng.uniform(0.01, 0.3, 5))
    game = mppfl.make_game(mppfl.graph_from_matrix(np.ones((5, 5)) - np.eye(5)), clients)
    game = game.with_bounds(np.minimum(low, high), high)
    chosen = choose_rates(game, "anticipating", np.array([2]))
    line = equilibrium_response(game)
    if leaders.interior_rates_of(game, line, "anticipating", np.array([2])) is None:
        return
    mine = server_cost(game, 2, chosen.reward_rates[0], chosen.budgets.at(0, chosen.reward_rates[0]))
    for other in np.linspace(0.0, 6.0, 400):
        answer = equilibrium_at(game, other).budgets
        if (answer[high > 0] > 0).all():
            assert mine <= server_cost(game, 2, other, answer) * (1 + 1e-9)
    monkeypatch.setattr(leaders, "EXACT_BELOW", 2)  # large games sample
    sampled = choose_rates(game, "anticipating", np.array([2]))
    budgets = sampled.budgets.at(0, sampled.reward_rates[0])
    assert (budgets[high > 0] > 0).all()
    assert server_cost(game, 2, sampled.reward_rates[0], budgets) <= mine * 1.1


def test_personalised_prices_say_where_floors_would_be_given_for_nothing():
    game = pair_with_floors([0.5, 0.5], [0.05, 0.05], [0.2, 0.0])
    found = mppfl.solve(game, "personalised")
    assert any(note.startswith("1 clients give their budget_min") for note in found.warnings)
    assert not mppfl.solve(game.with_bounds(np.zeros(2), np.full(2, np.inf)), "personalised").warnings


@pytest.mark.parametrize("mechanism", ["mppfl_exact", "sarda_r"])
def test_no_leader_counts_on_floors_that_clients_may_leave(mechanism):
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    found = mppfl.solve(game, mechanism, participation="if_better_than_staying_out")
    assert found.outcome.taking_part.tolist() == [2]
