"""The equilibrium found by asking for budgets alone."""

import inspect
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from pytest import approx

import mppfl
from mppfl.game import (
    Conversation,
    Respondent,
    agree_on_budgets,
    agree_on_plan,
    asking,
    equilibrium_at,
    equilibrium_response,
    respondents_of,
    where_cost_stops_falling,
)
from mppfl.network import graph_from_links
from tests.game.games import games, paper_scale_game, star, three_cycle, two_friends
from tests.homes import home

asked_rates = home(where_cost_stops_falling)
conversation = home(Conversation)


def asked_for_budgets(game, rates, answers=None):
    return agree_on_budgets(
        asking(answers or respondents_of(game)),
        game.propagation,
        externality_strength=game.externality_strength,
        reward_rates=np.asarray(rates),
    )


def asked_for_a_plan(game, num_rounds, answers=None):
    return agree_on_plan(
        asking(answers or respondents_of(game)),
        game.propagation,
        externality_strength=game.externality_strength,
        noise_harm=game.clients.noise_harm,
        accuracy_weight=game.accuracy_weight,
        num_rounds=num_rounds,
    )


@settings(max_examples=60, deadline=None)
@given(games())
def test_at_announced_rates_answers_settle_at_the_solvers_equilibrium_bounds_included(game):
    rates = [0.3, 1.0, 4.0]
    found = asked_for_budgets(game, rates)
    for rate, terms in zip(rates, found.plan, strict=True):
        assert terms.budgets == approx(equilibrium_at(game, rate).budgets, abs=1e-9 * max(1.0, rate))


@pytest.mark.parametrize("seed", range(8))
def test_the_whole_plan_is_the_solvers_where_everybody_shares(seed):
    game = paper_scale_game(seed, num_clients=12, preset="benign")
    solved = mppfl.solve(game, num_rounds=6).plan
    if not all((terms.budgets > 0).all() for terms in solved):
        pytest.skip("no equilibrium inside the bounds")
    found = asked_for_a_plan(game, 6)
    assert found.plan.reward_rates == approx(solved.reward_rates, rel=1e-7)
    assert found.plan.to_matrix() == approx(solved.to_matrix(), rel=1e-6, abs=1e-9)
    assert found.residual < 1e-11


def test_it_converges_on_the_cycle_on_which_the_papers_own_sweeps_diverge():
    game = three_cycle()
    terms = mppfl.solve(game).terms(1)
    found = asked_for_a_plan(game, 1)
    assert found.plan.terms(0).budgets == approx(terms.budgets, rel=1e-6)


def test_two_friends_share_a_third_of_the_announced_rate():
    # a = 1, b = 0, α = 1/2, one link each way: r = 2 (ρ + ρ/2), so ρ = r / 3.
    found = asked_for_budgets(two_friends(), [3.0])
    assert found.plan.terms(0).budgets == approx([1.0, 1.0])
    assert found.exposures == approx(np.array([[0.5, 0.5]]))


def test_messages_are_counted_both_ways():
    game = paper_scale_game(2, num_clients=10, preset="benign")
    calls = []

    def counted(answer):
        return lambda rates, exposures: calls.append(1) or answer(rates, exposures)

    found = asked_for_budgets(game, [2.0, 3.0], [counted(answer) for answer in respondents_of(game)])
    assert found.num_messages == 2 * len(calls) == 2 * 10 * found.num_announcements


def test_more_rounds_do_not_take_more_announcements_than_the_slowest_of_them():
    game = paper_scale_game(5, num_clients=8, preset="benign")
    one, many = asked_for_a_plan(game, 1), asked_for_a_plan(game, 40)
    assert many.num_announcements < 4 * one.num_announcements


def test_what_travels_is_rates_and_exposures_one_way_and_budgets_the_other():
    game = paper_scale_game(3, num_clients=6, preset="benign")
    sent = []

    def overheard(answer):
        def listen(*announced):
            assert [each.shape for each in announced] == [(2,), (2,)]
            budgets = answer(*announced)
            sent.append((*announced, budgets))
            return budgets

        return listen

    asked_for_a_plan(game, 2, [overheard(answer) for answer in respondents_of(game)])
    assert sent
    for function in (agree_on_budgets, agree_on_plan):
        named = set(inspect.signature(function).parameters)
        assert not named & {"game", "clients", "quadratic_cost", "linear_cost"}
    for module in (conversation, asked_rates):
        assert "quadratic_cost" not in inspect.getsource(module)


def test_where_no_rate_makes_everybody_share_it_says_so():
    # Friends share from a rate of 1.2 on; the hub gives so much by then that none of them ever does.
    game = crowding_star()
    game = replace(game, clients=replace(game.clients, linear_cost=np.r_[1.0, np.full(10, 1.2)]))
    line = equilibrium_response(game)
    assert not line.lowest_rate < line.highest_rate
    with pytest.raises(mppfl.NoEquilibrium, match="at any reward rate"):
        asked_for_a_plan(game, 1)


def crowding_star(unit=1.0, harm=1e-3, **bounds):
    """A hub that shares from a rate of 1.01 on, and then so much that it drives its ten friends out at 1.33."""
    links = graph_from_links(np.zeros(10, dtype=int), np.arange(1, 11), undirected=True)
    costs = unit * np.r_[0.05, np.ones(10)], unit * np.r_[1.0, np.zeros(10)], unit * np.full(11, harm)
    return mppfl.make_game(links, mppfl.Clients(*costs, **bounds), max_hops=1, externality_strength=0.2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_rates_are_found_where_everybody_shares_between_two_of_them_only(unit):
    game = crowding_star(unit)
    solved, found = mppfl.solve(game, num_rounds=4).plan, asked_for_a_plan(game, 4)
    assert found.plan.reward_rates == approx(solved.reward_rates, rel=1e-9)
    assert found.plan.to_matrix() == approx(solved.to_matrix(), rel=1e-7)
    assert found.plan.reward_rates[0] == approx(1.01225839 * unit, rel=1e-6)
    assert found.num_announcements < 1000


@pytest.mark.parametrize("seed", range(6))
def test_intervals_of_rates_shorter_than_a_fifth_are_found_by_asking(seed):
    rng = np.random.default_rng(seed)
    links = graph_from_links(np.zeros(6, dtype=int), np.arange(1, 7), undirected=True)
    costs = np.r_[0.05, rng.uniform(0.5, 1.5, 6)], np.r_[1.0, rng.uniform(0.0, 0.6, 6)], 10 ** rng.uniform(-6, -4, 7)
    game = mppfl.make_game(links, mppfl.Clients(*costs), max_hops=1, externality_strength=0.2)
    line = equilibrium_response(game)
    assert 1 < line.lowest_rate < line.highest_rate < 1.2
    assert asked_for_a_plan(game, 2).plan.reward_rates == approx(mppfl.solve(game, num_rounds=2).plan.reward_rates)


def test_the_star_on_which_more_pay_means_less_sharing_is_the_solvers():
    assert asked_for_a_plan(star(), 1).plan.reward_rates == approx(mppfl.solve(star()).plan.reward_rates, rel=1e-9)


def test_where_the_cost_falls_on_as_long_as_everybody_shares_it_says_so():
    with pytest.raises(mppfl.NoEquilibrium, match="cost falls on"):
        asked_for_a_plan(crowding_star(harm=10.0), 1)


def test_a_ceiling_that_is_reached_before_anybody_is_exposed_stays_reached():
    # Capped at 0.01 one friend is at its ceiling at every rate in question.
    ceilings = np.r_[np.inf, 0.01, np.full(9, np.inf)]
    found = asked_for_a_plan(crowding_star(harm=1e-5, budget_max=ceilings), 1)
    terms = found.plan.terms(0)
    assert 1.0 < terms.reward_rate < 1.4
    assert terms.budgets[1] == 0.01
    assert (terms.budgets > 0).all()


def test_answers_that_do_not_settle_are_an_error_with_the_last_exposures():
    game = two_friends(externality_strength=1.5)
    with pytest.raises(mppfl.NotConverged) as found:
        asked_for_budgets(game, [3.0], [Respondent(1.0, 0.0, -1e6).answer, Respondent(1.0, 0.5, -1e6).answer])
    assert found.value.last_iterate.shape == (1, 2)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda rates, exposures: rates[:0], "one per round"),
        (lambda rates, exposures: rates * np.nan, "finite number"),
    ],
)
def test_answers_that_are_no_budgets_are_refused(answer, said):
    game = two_friends()
    with pytest.raises(mppfl.BadInput, match=said):
        asked_for_budgets(game, [1.0, 2.0], [answer, answer])


def test_a_strength_without_end_is_refused_and_exposures_without_end_have_not_settled():
    game = two_friends()
    ask = asking(respondents_of(game))
    with pytest.raises(mppfl.BadInput, match="externality_strength=inf must lie in"):
        agree_on_budgets(ask, game.propagation, externality_strength=np.inf, reward_rates=np.ones(1))
    with pytest.raises(mppfl.errors.NotConverged, match="exposures still moved by inf after 1 announcements"):
        agree_on_budgets(
            lambda rates, exposures: np.full(exposures.shape, 1e250),
            game.propagation,
            externality_strength=1e100,
            reward_rates=np.ones(1),
        )


def test_announced_rates_must_be_numbers_of_at_least_0():
    game = two_friends()
    for rates, told in ((np.array([1.0, np.nan]), "reward_rates=nan at position 1"), ("two", "must be numbers")):
        with pytest.raises(mppfl.BadInput, match=told):
            agree_on_budgets(
                asking(respondents_of(game)), game.propagation, externality_strength=0.5, reward_rates=rates
            )


def test_the_number_of_clients_must_be_the_networks():
    game = two_friends()
    with pytest.raises(mppfl.BadInput, match="3 clients answer, and the network has 2"):
        asked_for_budgets(game, [1.0], respondents_of(game) + respondents_of(game)[:1])
