"""The server's reward: six leaders, inside the bounds and at them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy.optimize import minimize

import mppfl
from mppfl.game import (
    MECHANISMS,
    AlongLine,
    best_on_path,
    choose_rates,
    cost_without_absent,
    equilibria_at,
    equilibrium_at,
    equilibrium_response,
    interior_rates_each,
    interior_rates_of,
    noise_aware_cost,
    personalised_budgets,
    personalised_prices,
    pigouvian_weights,
    server_cost,
    social_optimum,
    welfare,
)
from tests.game.games import games, paper_scale_game, star
from tests.homes import home

bounded_leaders = home(best_on_path)
path = home(equilibria_at)


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
    # 20 draws of paper-like: 27.3 -> 7.0 at t=1 and 21.9 -> .68 at t=60; 55 % -> 25 % participate (docs/model.md, 4).
    costs, shares = [], []
    for seed in range(20):
        game = paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05)
        plain = mppfl.solve(game, "mppfl", num_rounds=60)
        aware = mppfl.solve(game, "mppfl_noise_aware", num_rounds=60)
        row = [plain.outcome.server_costs[0], plain.outcome.server_costs[-1]]
        row += [noise_aware_cost(game, t, aware.terms(t).reward_rate, aware.terms(t).budgets) for t in (1, 60)]
        costs.append(row)
        shares.append([aware.outcome.participating[0] / 20, aware.outcome.participating[-1] / 20])
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
        assert (found.outcome.participating == 11).all()
        assert ((found.outcome.reward_rates > 1.0101) & (found.outcome.reward_rates < 4 / 3)).all()
        assert found.verification.client_regret <= 1e-12
    assert found.verification.leader_regret == approx(0.0, abs=1e-12)


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
    keeps = line.has_interior and line.free.any()
    for other in np.geomspace(max(rate, 0.05) / 20, max(rate, 0.05) * 20, 200):
        answer = equilibrium_at(game, other).budgets
        lost = not (answer > 0).all()
        # Where everybody can be kept inside, the leader looks only at rates that lose nobody.
        if not keeps or not lost:
            assert mine <= cost_without_absent(game, 1, other, answer) * (1 + 1e-7)


@pytest.mark.parametrize("leader", ["mean_field", "anticipating", "noise_aware", "budget_limited"])
def test_sampled_rates_of_large_games_come_close_to_the_exact_path(monkeypatch, leader):
    game = paper_scale_game(21, num_clients=40, preset="paper-like", externality_strength=0.2)
    capped = game.with_bounds(np.zeros(40), np.full(40, 0.8))  # some are always at a bound
    limit = 5.0
    exact = choose_rates(capped, leader, np.array([1, 30]), payment_limit=limit)
    for module in (path, bounded_leaders):
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


@pytest.mark.parametrize("seed", range(12))
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
    with pytest.raises(mppfl.NoEquilibrium, match="participate"):
        mppfl.solve(game)


def pair_with_floors(linear, harm, low, quadratic=1.0):
    graph = mppfl.read_graph(np.array([[0.0, 1.0], [1.0, 0.0]]))
    return mppfl.make_game(graph, mppfl.Clients([quadratic] * 2, linear, harm, budget_min=low))


@pytest.mark.parametrize("limit", [1.0, 100.0])
def test_budget_limited_does_not_spend_its_limit_where_floors_are_enough(limit):
    game = pair_with_floors([0.5, 0.5], [0.05, 0.05], 0.2)
    thrifty = MECHANISMS["budget_limited"].with_options(payment_limit=limit)
    exact, found = (mppfl.solve(game, each, num_rounds=3) for each in ("mppfl_exact", thrifty))
    assert exact.outcome.payments == approx(np.zeros(3))
    assert found.outcome.server_costs == approx(exact.outcome.server_costs)
    line, rounds = equilibrium_response(game), np.array([1, 2, 3])
    assert np.isnan(interior_rates_each(game, line, "budget_limited", rounds, limit)).all()


def test_budget_limited_still_spends_its_limit_where_the_best_rate_is_above_the_interior():
    game = pair_with_floors([0.5, 0.5], [5.0, 5.0], 0.0).with_bounds(np.zeros(2), np.array([0.5, 0.6]))
    line, rounds = equilibrium_response(game), np.array([1, 2])
    assert interior_rates_of(game, line, "anticipating", rounds) is None
    chosen = choose_rates(game, "budget_limited", rounds, payment_limit=0.3)
    assert not chosen.reaches_bounds
    for k, rate in enumerate(chosen.reward_rates):
        assert rate * chosen.budgets.at(k, rate).sum() == approx(0.3)
    assert interior_rates_each(game, line, "budget_limited", rounds, 0.3) == approx(chosen.reward_rates)


@pytest.mark.parametrize("mechanism", ["mppfl_exact", "mppfl_noise_aware", "pigouvian", "social_agnostic"])
def test_no_leader_that_minimises_a_cost_pays_for_what_floors_bring_anyway(mechanism):
    # At rate 2.25 both are strictly inside and the cost is 5.3; at 0 both still participate, and it is .1/.3 + .05/.05.
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    found = mppfl.solve(game, mechanism, num_rounds=3)
    assert found.outcome.server_costs == approx(0.5 * (0.1 / 0.3 + 0.05 / 0.05) / np.array([1, 2, 3]))
    assert found.outcome.participating.tolist() == [2, 2, 2]
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)
    assert found.verification.client_regret == approx(0.0, abs=1e-12)


def test_the_leaders_regret_sees_what_floors_would_save():
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    line, rounds = equilibrium_response(game), np.array([1])
    rates = interior_rates_of(game, line, "anticipating", rounds)
    plan = mppfl.Plan("mppfl_exact", rounds, rates, AlongLine(line.slope, line.offset), 2)
    dear = server_cost(game, 1, rates[0], line.budgets(rates[0]))
    assert mppfl.game.verify(game, plan).leader_regret == approx(dear - 2 / 3)
    paper = mppfl.solve(game, "mppfl")  # follows its condition, and is told what that costs
    assert paper.verification.leader_regret == approx(paper.outcome.server_costs[0] - 2 / 3)


@pytest.mark.parametrize("seed", range(12))
def test_floors_never_make_the_exact_leader_dearer_than_any_rate_that_loses_nobody(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    low = np.where(rng.random(5) < 0.6, rng.uniform(0.01, 0.3, 5), 0.0)
    high = np.where(rng.random(5) < 0.2, 0.0, np.inf)
    clients = mppfl.Clients(rng.uniform(0.2, 1, 5), rng.uniform(0.1, 2, 5), rng.uniform(0.01, 0.3, 5))
    game = mppfl.make_game(mppfl.graph_from_matrix(np.ones((5, 5)) - np.eye(5)), clients)
    game = game.with_bounds(np.minimum(low, high), high)
    chosen = choose_rates(game, "anticipating", np.array([2]))
    line = equilibrium_response(game)
    if interior_rates_of(game, line, "anticipating", np.array([2])) is None:
        return
    mine = cost_without_absent(game, 2, chosen.reward_rates[0], chosen.budgets.at(0, chosen.reward_rates[0]))
    for other in np.linspace(0.0, 6.0, 400):
        answer = equilibrium_at(game, other).budgets
        if (answer[high > 0] > 0).all():
            assert mine <= cost_without_absent(game, 2, other, answer) * (1 + 1e-9)
    monkeypatch.setattr(bounded_leaders, "EXACT_BELOW", 2)  # large games sample
    sampled = choose_rates(game, "anticipating", np.array([2]))
    budgets = sampled.budgets.at(0, sampled.reward_rates[0])
    assert (budgets[high > 0] > 0).all()
    assert cost_without_absent(game, 2, sampled.reward_rates[0], budgets) <= mine * 1.1


def four_with_ceilings(seed):
    """Four clients whose costs differ a lot, so that some share less as the rate rises until others are at ceilings."""
    rng = np.random.default_rng(seed)
    clients = mppfl.Clients(np.exp(rng.uniform(-2.5, 0.5, 4)), rng.uniform(0, 0.4, 4), rng.uniform(0.01, 0.2, 4))
    graph = mppfl.graph_from_matrix(rng.uniform(0.1, 1, (4, 4)) * (1 - np.eye(4)))
    game = mppfl.make_game(graph, clients, externality_strength=0.15, max_hops=2)
    return game.with_bounds(np.zeros(4), rng.uniform(0.5, 3.0, 4))


@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("leader", ["anticipating", "noise_aware"])
def test_ceilings_never_make_a_leader_dearer_than_any_rate_that_loses_nobody(seed, leader, monkeypatch):
    game, rounds = four_with_ceilings(seed), np.array([1, 3])
    line = equilibrium_response(game)
    if interior_rates_of(game, line, leader, rounds) is None:
        return
    cost = noise_aware_cost if leader == "noise_aware" else server_cost
    chosen = choose_rates(game, leader, rounds)
    pairs = list(zip(rounds, chosen.reward_rates, strict=True))
    mine = [cost(game, t, rate, chosen.budgets.at(k, rate)) for k, (t, rate) in enumerate(pairs)]
    for other in np.geomspace(0.05, 200.0, 500):
        answer = equilibrium_at(game, other).budgets
        if (answer > 0).all():
            for t, least in zip(rounds, mine, strict=True):
                assert least <= cost(game, t, other, answer) * (1 + 1e-9)
    monkeypatch.setattr(bounded_leaders, "EXACT_BELOW", 2)  # large games sample
    sampled = choose_rates(game, leader, rounds)
    for k, (t, rate) in enumerate(zip(rounds, sampled.reward_rates, strict=True)):
        budgets = sampled.budgets.at(k, rate)
        assert (budgets > 0).all()
        assert cost(game, t, rate, budgets) <= mine[k] * 1.1


def test_a_rate_at_ceilings_is_found_and_its_absence_is_told():
    found = []
    for seed in range(60):
        game, rounds = four_with_ceilings(seed), np.array([1])
        line = equilibrium_response(game)
        inside = interior_rates_of(game, line, "anticipating", rounds)
        chosen = choose_rates(game, "anticipating", rounds)
        if inside is None or not chosen.reaches_bounds:
            continue
        rate = chosen.reward_rates[0]
        least = server_cost(game, 1, rate, chosen.budgets.at(0, rate))
        dear = server_cost(game, 1, inside[0], line.budgets(inside[0]))
        assert rate > line.highest_rate
        assert least < dear
        plan = mppfl.Plan("mppfl_exact", rounds, inside, AlongLine(line.slope, line.offset), 4)
        assert mppfl.game.verify(game, plan).leader_regret >= 0.5 * (dear - least)
        assert mppfl.solve(game, "mppfl_exact").verification.leader_regret == approx(0.0, abs=1e-9 * dear)
        found.append(seed)
    assert len(found) >= 3


@pytest.mark.parametrize("seed", range(6))
def test_ceilings_far_above_what_is_shared_change_nothing(seed):
    game = paper_scale_game(seed, num_clients=12, preset="benign")
    free = choose_rates(game, "anticipating", np.array([1, 20]))
    capped = game.with_bounds(np.zeros(12), np.full(12, 1000 * free.budgets.at(0, free.reward_rates[0]).max()))
    chosen = choose_rates(capped, "anticipating", np.array([1, 20]))
    assert chosen.reward_rates == approx(free.reward_rates, rel=1e-12)


@pytest.mark.parametrize("leader", ["mean_field", "anticipating"])
def test_what_a_round_gets_does_not_depend_on_others_and_ceilings_lose_nobody(leader):
    # In round 1 the best rate is where both are at their ceilings; in round 60 both are strictly inside.
    clients = mppfl.Clients([0.5, 0.6], [1.4, 1.3], [0.75, 0.07], budget_max=[0.5, 0.35])
    game = mppfl.make_game(mppfl.graph_from_matrix([[0.0, 1.0], [1.0, 0.0]]), clients)
    rounds = np.arange(1, 61)
    together = choose_rates(game, leader, rounds)
    for k in (0, 20, 59):
        alone = choose_rates(game, leader, rounds[k : k + 1])
        rate = together.reward_rates[k]
        assert rate == approx(alone.reward_rates[0], rel=1e-12)
        assert together.budgets.at(k, rate) == approx(alone.budgets.at(0, rate), abs=1e-12)
        assert (together.budgets.at(k, rate) > 0).all()
    assert together.budgets.at(0, together.reward_rates[0]) == approx([0.5, 0.35])
    unbounded = choose_rates(game.with_bounds(np.zeros(2), np.full(2, np.inf)), leader, rounds)
    assert together.reward_rates[59] == approx(unbounded.reward_rates[59])


@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_noise_counts_more_where_somebody_may_not_take_part_whatever_the_bounds_of_others(floor):
    # The other holds nine tenths of the data, so the weight of the one who is left is ten times as large, at any rate.
    graph = mppfl.graph_from_matrix([[0.0, 1.0], [1.0, 0.0]])
    clients = mppfl.Clients(
        [1, 1], [0.5, 0.5], [0.1, 0.1], data_size=[1, 9], budget_max=[np.inf, 0], budget_min=[floor, 0]
    )
    game = mppfl.make_game(graph, clients, max_hops=1, externality_strength=0.1)
    found = mppfl.solve(game, "mppfl_exact")
    rate, least = cheapest_rate(game, 1, 0.6, 6.0, cost_without_absent)
    assert found.outcome.reward_rates[0] == approx(rate, rel=2e-3)
    assert cost_without_absent(game, 1, found.outcome.reward_rates[0], found.terms(1).budgets) <= least * (1 + 1e-12)
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)


def test_mean_field_follows_its_condition_where_somebody_is_at_a_ceiling():
    graph = mppfl.graph_from_matrix([[0, 0.66, 0.69], [0.88, 0, 0.79], [0.72, 0.8, 0]])
    clients = mppfl.Clients(
        [0.697, 1.8, 1.6], [0.806, 0.332, 1.06], [0.0165, 5.07, 0.0106], budget_max=[1.27, 0.746, 1.64]
    )
    game = mppfl.make_game(graph, clients, max_hops=3, hop_decay=0.49, externality_strength=0.4, accuracy_weight=0.21)
    chosen = choose_rates(game, "mean_field", np.array([1, 2, 3]))
    rates, budgets = chosen.reward_rates, chosen.budgets.at(0, chosen.reward_rates[0])
    free = budgets < game.clients.budget_max
    assert free.sum() == 2  # eq. 16 over those who can still move
    alone = 1 / (2 * clients.quadratic_cost[free])
    pulled = 0.21 * (clients.noise_harm[free] * alone / budgets[free] ** 2).sum()
    assert pulled == approx(0.79 * (budgets.sum() + rates[0] * alone.sum()), rel=1e-9)
    assert (np.diff(rates) < 0).all()


def test_the_noise_aware_leader_loses_a_client_where_that_is_cheaper():
    graph = mppfl.graph_from_matrix([[0.0, 1.0], [0.0, 0.0]], isolated="keep")
    clients = mppfl.Clients([1.1374, 0.3749], [0.6411, 1.9933], [2.0369, 0.0021], data_size=[21, 43])
    game = mppfl.make_game(graph, clients, max_hops=1, externality_strength=0.0076, accuracy_weight=0.2101)
    found = mppfl.solve(game, "mppfl_noise_aware", num_rounds=5)
    rate, least = cheapest_rate(game, 5, 0.65, 4.0, noise_aware_cost)
    terms = found.terms(5)
    assert terms.reward_rate == approx(rate, rel=2e-3)
    assert noise_aware_cost(game, 5, terms.reward_rate, terms.budgets) <= least * (1 + 1e-12)
    assert terms.budgets[1] == 0
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)


@pytest.mark.parametrize("linear", [0.0, 1e-9])
def test_no_pay_at_all_is_a_rate_too_where_somebody_would_wake_at_once(linear):
    graph = mppfl.graph_from_matrix([[0.0, 1.0], [1.0, 0.0]])
    clients = mppfl.Clients(
        [1, 1], [linear, 1], [0.1, 0.1], data_size=[1, 9], budget_min=[0, 0.5], budget_max=[0.1, np.inf]
    )
    game = mppfl.make_game(graph, clients, max_hops=1, externality_strength=0.0)
    found = mppfl.solve(game, "social_agnostic")
    assert found.outcome.reward_rates[0] == 0
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)


def test_personalised_prices_say_where_floors_would_be_given_for_nothing():
    game = pair_with_floors([0.5, 0.5], [0.05, 0.05], [0.2, 0.0])
    found = mppfl.solve(game, "personalised")
    assert any(note.startswith("1 clients give their budget_min") for note in found.warnings)
    assert not mppfl.solve(game.with_bounds(np.zeros(2), np.full(2, np.inf)), "personalised").warnings


@pytest.mark.parametrize("mechanism", ["mppfl_exact", "sarda_r"])
def test_no_leader_counts_on_floors_that_clients_may_leave(mechanism):
    game = pair_with_floors([0.5, 2.0], [0.1, 0.05], [0.3, 0.05], quadratic=0.2)
    found = mppfl.solve(game, mechanism, participation="if_better_than_opting_out")
    assert found.outcome.participating.tolist() == [2]


@pytest.mark.parametrize("mechanism", ["mppfl_exact", "social_agnostic"])
def test_the_regret_of_a_leader_that_loses_nobody_is_over_rates_that_lose_nobody(mechanism):
    # In round 1 both rest at their ceilings; below, where one is lost, the server would pay less.
    clients = mppfl.Clients([0.5, 0.6], [1.4, 1.3], [0.75, 0.07], budget_max=[0.5, 0.35])
    game = mppfl.make_game(mppfl.graph_from_matrix([[0.0, 1.0], [1.0, 0.0]]), clients)
    found = mppfl.solve(game, mechanism, num_rounds=60)
    assert (found.outcome.participating == 2).all()
    assert found.verification.leader_regret == approx(0.0, abs=1e-9)
