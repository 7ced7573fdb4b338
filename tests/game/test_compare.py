"""Comparisons: the orders of the paper's figures, and what the paper leaves out."""

import numpy as np
import pytest

import mppfl
from mppfl.game import MECHANISMS, Horizon, budget_limited, budgets_along, doubts_about, rounds_up_to, summarise
from mppfl.leakage import least_leak
from tests.game.games import paper_scale_game

GAMES = [paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.05) for seed in range(4)]
BASELINES = ("social_agnostic", "random", "dp_fedavg")


@pytest.fixture(scope="module")
def rows():
    known = ["mppfl", *BASELINES, "mppfl_exact", "sarda_like", "personalised", "noiseless"]
    return mppfl.compare(GAMES, known, num_rounds=10, fixed_budget="mean", optimum=True)


def pick(rows, mechanism, convention):
    return [row for row in rows if row.mechanism == mechanism and row.convention == convention]


def test_under_a_common_reward_mppfl_is_cheaper_and_better_than_the_papers_baselines(rows):
    for name in BASELINES:
        for mine, other in zip(pick(rows, "mppfl", "common"), pick(rows, name, "common"), strict=True):
            assert mine.server_cost < other.server_cost
            assert mine.welfare > other.welfare


def test_under_its_own_reward_the_server_of_agnostic_clients_pays_less_and_anticipating_is_never_dearer(rows):
    names = ("mppfl", "social_agnostic", "mppfl_exact")
    costs = np.array([[row.server_cost for row in pick(rows, name, "own")] for name in names])
    assert (costs[1] < costs[0]).sum() >= 3
    assert (costs[2] <= costs[0] * (1 + 1e-12)).all()
    assert not pick(rows, "mppfl_exact", "common")  # which differs in the rate alone


def test_price_of_anarchy_is_at_least_one_or_absent(rows):
    for row in rows:
        assert row.price_of_anarchy is None or row.price_of_anarchy >= 1 - 1e-9
    assert all(row.price_of_anarchy is None for row in pick(rows, "sarda_like", "own"))
    assert all(row.price_of_anarchy is not None for row in pick(rows, "mppfl", "own"))


def test_summaries_count_games_and_average_them(rows):
    found = {(s.mechanism, s.convention): s for s in summarise(rows)}
    agnostic = found["social_agnostic", "common"]
    assert (agnostic.num_games, agnostic.dearer_than_mppfl, agnostic.worse_than_mppfl) == (4, 4, 4)
    mean = np.mean([row.server_cost for row in pick(rows, "social_agnostic", "common")])
    assert agnostic.server_cost == pytest.approx(mean)
    assert found["noiseless", "own"].price_of_anarchy is None


# ---- what leaks ---------------------------------------------------------------------------------------------------


def told(budgets):
    """Half of what the first half of the clients give, and its slopes: a leak that is easily worked by hand."""
    weights = np.where(np.arange(len(budgets)) < len(budgets) // 2, 0.5, 0.0)
    return float(weights @ budgets), weights


def test_a_leak_is_that_of_the_first_rounds_budgets():
    game = GAMES[0]
    names = ("mppfl", "noiseless")
    rows = mppfl.compare(game, names, num_rounds=3, leak=lambda budgets: told(budgets)[0])
    plain = mppfl.compare(game, names, num_rounds=3)
    assert all(row.leak is None for row in plain)
    assert [(row.server_cost, row.notes) for row in rows] == [(row.server_cost, row.notes) for row in plain]
    first = mppfl.solve(game, num_rounds=1).plan[0].budgets
    (own,) = pick(rows, "mppfl", "own")
    assert own.leak == pytest.approx(told(first)[0])
    assert all(row.leak is None for row in pick(rows, "noiseless", "own"))  # it puts no limit on budgets
    found = {(s.mechanism, s.convention): s.leak for s in summarise(rows)}
    assert found["mppfl", "own"] == own.leak
    assert found["noiseless", "own"] is None


def test_every_row_says_once_that_its_equilibrium_may_not_be_the_only_one():
    surely, perhaps = (paper_scale_game(0, num_clients=6, externality_strength=strength) for strength in (0.05, 5.0))
    (note,) = doubts_about(perhaps)
    rows = mppfl.compare([surely, perhaps], ("random", "dp_fedavg", "sarda_like"), num_rounds=2, conventions=["own"])
    for row in rows:
        assert row.notes.count(note) == row.game
        assert note not in row.notes[:-1]


def test_one_leak_for_games_on_several_networks_is_refused():
    with pytest.raises(mppfl.BadInput, match="games 0 and 1 are on different networks"):
        mppfl.compare(GAMES, ("mppfl",), num_rounds=1, leak=lambda budgets: 0.0)


def test_the_least_leak_keeps_the_agnostic_total_and_the_bounds():
    # Ten clients who tell nothing can hold up to 4 times the mean each, more than all of it: nothing need leak.
    game = GAMES[0]
    agnostic = mppfl.solve(game, "social_agnostic", num_rounds=1).plan[0].budgets
    found = least_leak(game, lambda budgets: told(budgets)[0], told)
    assert found.total_budget == pytest.approx(agnostic.sum())
    assert found.largest_budget == pytest.approx(max(4 * agnostic.mean(), agnostic.max()))
    assert (found.leak, found.gap) == pytest.approx((0.0, 0.0), abs=1e-12)
    # Where those ten may give only a tenth of that, the rest must come from the ten who tell half of it.
    most = np.where(np.arange(20) < 10, np.inf, 0.1 * agnostic)
    found = least_leak(game.with_bounds(np.zeros(20), most), lambda budgets: told(budgets)[0], told)
    assert found.total_budget > most[10:].sum()
    assert found.leak == pytest.approx((found.total_budget - most[10:].sum()) / 2)


@pytest.mark.parametrize("mechanism", [record for record in MECHANISMS.values() if not record.has_rate])
def test_a_plan_that_serves_both_conventions_does_not_look_at_rates(mechanism):
    own = mechanism(GAMES[0], Horizon(rounds_up_to(5)))
    faced = mechanism(GAMES[0], Horizon(rounds_up_to(5), np.full(5, 3.0)))
    assert (own.to_matrix() == faced.to_matrix()).all()
    assert [terms.prices.tolist() for terms in own] == [terms.prices.tolist() for terms in faced]


# ---- functions beside names ---------------------------------------------------------------------------------------


def steady(game, horizon):
    rates = np.full(len(horizon.rounds), 4.0) if horizon.reward_rates is None else horizon.reward_rates
    return mppfl.Plan("steady", horizon.rounds, rates, budgets_along(game, rates), game.num_clients)


def test_functions_stand_beside_names_and_a_payment_limit_under_its_own_reward_alone():
    limited = budget_limited.with_options(payment_limit=50.0)
    rows = mppfl.compare(GAMES[0], ["mppfl", steady, limited], num_rounds=2)
    assert [row.mechanism for row in rows] == ["mppfl", "steady", "mppfl", "steady", "budget_limited"]
    assert pick(rows, "steady", "common")[0].server_cost == pytest.approx(pick(rows, "mppfl", "common")[0].server_cost)
    assert rows[-1].payments <= 100 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("mechanisms", "conventions", "told"),
    [
        (["mppfl", lambda g, h: None, lambda g, h: 1], ["own"], "two mechanisms are called '<lambda>'"),
        (["mppfl", 3], ["own"], "mechanism=3 must be a name, or a function"),
        ({"mine": None}, ["own"], "mechanism=None must be a name, or a function"),
        ("mppfl", ["own"], "mechanisms='mppfl' must be a list of names or functions"),
        (["mppfl"], "own", "conventions='own' must be a list. Put it into one: ['own']"),
        (["mppfl"], ["fair"], "convention='fair' must be"),
    ],
)
def test_what_is_no_list_of_mechanisms_or_conventions_is_refused(mechanisms, conventions, told):
    with pytest.raises(mppfl.BadInput) as refused:
        mppfl.compare(GAMES[0], mechanisms, num_rounds=1, conventions=conventions)
    assert told in str(refused.value)


def test_a_mechanism_is_left_out_for_what_it_does_and_not_for_its_name():
    chosen = {"mppfl_exact": steady, "mine": MECHANISMS["mppfl_exact"]}
    rows = mppfl.compare(GAMES[0], chosen, num_rounds=2)
    named = [(row.mechanism, row.convention) for row in rows]
    assert named == [("mppfl_exact", "common"), ("mppfl_exact", "own"), ("mine", "own")]


def test_a_fixed_budget_is_bound_whatever_the_mechanism_is_called():
    by_name = mppfl.compare(GAMES[0], ["dp_fedavg"], num_rounds=1, fixed_budget="mean")
    mapped = mppfl.compare(GAMES[0], {"constant": MECHANISMS["dp_fedavg"]}, num_rounds=1, fixed_budget="mean")
    assert [row.notes for row in mapped] == [row.notes for row in by_name]
    assert mapped[0].notes[0].endswith("(mean)")
    chosen = {"dp_fedavg": MECHANISMS["dp_fedavg"].with_options(fixed_budget=0.2)}
    with pytest.raises(mppfl.BadInput, match="fixed_budget='mean' means nothing to dp_fedavg"):
        mppfl.compare(GAMES[0], chosen, num_rounds=1, fixed_budget="mean")


def test_nothing_is_dearer_than_an_mppfl_that_was_not_compared():
    alone = summarise(mppfl.compare(GAMES[:2], ["social_agnostic"], num_rounds=2))
    assert {(s.dearer_than_mppfl, s.worse_than_mppfl, s.beside_mppfl) for s in alone} == {(None, None, 0)}
    some = mppfl.compare(GAMES[:2], ["mppfl", "social_agnostic"], num_rounds=2)
    kept = [row for row in some if row.mechanism != "mppfl" or row.game == 0]
    (agnostic,) = (s for s in summarise(kept) if (s.mechanism, s.convention) == ("social_agnostic", "common"))
    assert (agnostic.num_games, agnostic.beside_mppfl, agnostic.dearer_than_mppfl) == (2, 1, 1)
