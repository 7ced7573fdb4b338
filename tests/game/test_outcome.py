"""Outcomes and verification: the regrets, plans kept compactly, participation, changing networks."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

import mppfl
from mppfl.game import (
    MECHANISMS,
    Clients,
    Horizon,
    accuracy_term,
    compute_cost,
    gain_from_participating,
    noise_harm,
    server_cost,
    utility,
    verify,
    welfare,
)
from tests.game.games import paper_scale_game, star, two_friends


def test_outcomes_are_the_equations_summed():
    game = paper_scale_game(9, num_clients=10)
    found = mppfl.solve(game, num_rounds=3)
    for k, terms in enumerate(found.plan):
        at = (terms.prices, terms.budgets)
        assert found.outcome.server_costs[k] == approx(server_cost(game, terms.round_index, *at))
        assert found.outcome.welfare[k] == approx(welfare(game, *at))
        assert found.outcome.negative_utility[k] == (utility(game, *at) < 0).sum()


def test_verification_notices_budgets_that_are_not_an_equilibrium():
    game = two_friends()
    terms = mppfl.RoundTerms(1, 3.0, 3.0, np.array([1.0, 1.2]))
    found = verify(game, mppfl.plan_from_rounds("mine", [terms]))
    # Client 1 would move to 1.5 − .6 = .9 and gain a(.1)²; client 2 to 1.0 and gain a(.2)².
    assert found.client_regret == approx(0.04)
    assert found.residual == approx(0.2 / 1.2)
    assert found.leader_regret is None


def costly(compute_cost):
    """Two friends who bear a cost each for participating."""
    game = two_friends()
    return replace(game, clients=replace(game.clients, compute_cost=np.array(compute_cost)))


def test_who_stays_out_still_suffers_and_bears_no_compute_cost():
    gains = utility(costly([0.5, 0.5]), 3.0, np.array([0.0, 1.0]))
    assert gains == approx([-(0.5**2), 3.0 - 0.5 - 1.0])  # s_1 = .5·1, a = 1, b = 0


def test_clients_stay_out_when_taking_part_costs_more_than_it_brings():
    # Inside, i gains a_i ρ_i² − C_i by participating. The dear client opts out, the other then shares r/2 as if alone.
    game, rates = costly([100.0, 0.0]), np.array([3.0])
    found = mppfl.solve(game, reward_rates=rates, participation="rational")
    assert found.terms(1).budgets == approx([0.0, 1.5])
    assert gain_from_participating(game, 3.0, np.array([1.0, 1.0]), "staying_out") == approx([1.0 - 100.0, 1.0])
    assert mppfl.solve(game, reward_rates=rates).terms(1).budgets == approx([1.0, 1.0])


@pytest.mark.parametrize("against", ["staying_out", "nothing"])
@pytest.mark.parametrize("seed", range(4))
def test_nobody_who_participates_wishes_to_leave(seed, against):
    game = paper_scale_game(seed, num_clients=20, preset="paper-like", externality_strength=0.08)
    costs = np.random.default_rng(seed).uniform(0, 0.02, 20)
    game = replace(game, clients=replace(game.clients, compute_cost=costs))
    found = mppfl.solve(game, num_rounds=2, participation="rational", against=against)
    assert found.outcome.participating[0] < 20
    for terms in found.plan:
        margins = gain_from_participating(game, terms.prices, terms.budgets, against)[terms.participating]
        assert (margins >= -1e-9).all()
        if against == "nothing":
            assert margins == approx(utility(game, terms.prices, terms.budgets)[terms.participating])


@pytest.mark.parametrize("name", list(MECHANISMS))
@pytest.mark.parametrize("against", ["staying_out", "nothing"])
def test_every_mechanism_settles_who_participates(name, against):
    horizon = Horizon(np.array([1]), np.array([3.0]), participation="rational", against=against)
    budgets = MECHANISMS[name](costly([0.0, 50.0]), horizon)[0].budgets
    if name != "noiseless":  # where nobody is asked
        assert budgets[1] == 0


def drifting_games(num_rounds=12, size=25):
    rng = np.random.default_rng(5)
    weights = np.where(rng.random((size, size)) < 0.4, rng.uniform(0.1, 1, (size, size)), 0.0)
    np.fill_diagonal(weights, 0.0)
    clients = mppfl.draw_clients("benign", size, rng)
    for _ in range(num_rounds):
        yield mppfl.make_game(mppfl.graph_from_matrix(weights), clients, hop_decay=0.5)
        i, j = rng.integers(0, size, (2, 12))
        weights = weights.copy()
        weights[i, j] = rng.uniform(0.1, 1, 12)
        np.fill_diagonal(weights, 0.0)


def test_a_plan_follows_a_network_that_changes():
    games = list(drifting_games())
    plan = mppfl.solve(iter(games)).plan
    assert len(plan) == 12
    for game, terms in zip(games, plan, strict=True):
        exact = mppfl.solve(game, num_rounds=terms.round_index).terms(terms.round_index)
        assert terms.budgets == approx(exact.budgets)


def test_noise_harm_compute_cost_and_accuracy_term_are_their_formulas():
    sizes = np.array([100.0, 300.0, 600.0])
    assert noise_harm(1000, 2.0, sizes, smoothness_ratio=5.0) == approx(np.full(3, 1000 * 5.0 * 4.0 / 1000.0**2))
    uneven = noise_harm(1000, 2.0, sizes, np.full(3, 1 / 3), smoothness_ratio=5.0)
    assert (np.diff(uneven) < 0).all()
    assert compute_cost(2.0, 3.0, 5.0, np.array([1.0, 7.0]), 4) == approx([120.0, 840.0])
    assert accuracy_term(two_friends(), 2, np.array([0.5, 0.25])) == approx((0.1 / 0.5 + 0.1 / 0.25) / 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"quadratic_cost": [1.0, 0.0]}, "quadratic_cost=0"),
        ({"quadratic_cost": [np.nan, 1.0]}, "quadratic_cost=nan"),
        ({"linear_cost": [0.0, -1.0]}, "linear_cost=-1"),
        ({"noise_harm": [0.0, 1.0]}, "noise_harm=0"),
        ({"budget_max": [0.1, 1.0], "budget_min": [0.2, 0.0]}, "budget_max=0.1"),
        ({"linear_cost": [0.0, 1.0, 2.0]}, "entries for"),
        ({"linear_cost": ["x", "y"]}, "numbers"),
    ],
)
def test_impossible_clients_are_refused_in_one_line(changes, said):
    arguments = {"quadratic_cost": [1.0, 1.0], "linear_cost": [0.0, 0.0], "noise_harm": [1.0, 1.0]} | changes
    with pytest.raises(mppfl.BadInput, match=said) as caught:
        Clients(**arguments)
    assert "\n" not in str(caught.value)


def test_values_cannot_be_changed():
    for values in (star().clients.quadratic_cost, star().graph.influence.data):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 5.0


def test_who_rightly_stays_out_regrets_nothing():
    game, rates = costly([0.0, 50.0]), np.array([3.0])
    found = mppfl.solve(game, reward_rates=rates, participation="rational").verification
    assert found.client_regret == approx(0.0, abs=1e-12)
    assert found.residual == approx(0.0, abs=1e-12)
    # Forced in, the dear one would leave: it saves 50 and gives up a·ρ² = 1.
    forced = mppfl.solve(game, reward_rates=rates).plan
    unhappy = verify(game, replace(forced, participation="rational"))
    assert unhappy.client_regret == approx(50.0 - 1.0)


def test_who_cannot_give_what_it_wishes_leaves_where_the_little_it_gives_is_not_worth_it():
    # Client 1 wishes for .58 and would gain by it, but may give .1 at most: that does not cover its compute cost of .2.
    clients = Clients([1.0] * 2, [0.1] * 2, [1.0] * 2, compute_cost=[0.2, 0.0], budget_max=[0.1, np.inf])
    game = mppfl.make_game(mppfl.read_graph(np.array([[0.0, 1.0], [1.0, 0.0]])), clients)
    found = mppfl.solve(game, num_rounds=2, participation="rational")
    assert found.plan.to_matrix()[:, 0] == approx([0.0, 0.0])
    assert found.verification.client_regret == approx(0.0, abs=1e-12)
    for terms in found.plan:
        alone = np.where(np.arange(2) == 0, 0.1, terms.budgets)
        gained = utility(game, terms.prices, alone)[0] - utility(game, terms.prices, terms.budgets)[0]
        assert gain_from_participating(game, terms.prices, terms.budgets, "staying_out")[0] == approx(gained)
        assert gain_from_participating(game, terms.prices, alone, "staying_out")[0] == approx(gained)


def test_those_without_noise_add_none_and_are_paid_nothing_but_the_others_are():
    game = paper_scale_game(2, num_clients=8)
    budgets, prices = np.ones(8), np.ones(8)
    budgets[0], prices[0] = np.inf, 0.0

    def some_without_noise(game, horizon):
        return mppfl.plan_from_rounds("some", [mppfl.RoundTerms(int(t), 1.0, prices, budgets) for t in horizon.rounds])

    found = mppfl.solve(game, some_without_noise, num_rounds=2)
    weight, harm = game.accuracy_weight, game.clients.noise_harm[1:].sum()
    assert found.outcome.payments == approx([7.0, 7.0])
    assert found.outcome.server_costs == approx(weight * harm / np.array([1, 2]) + (1 - weight) * 7.0)
    assert found.outcome.welfare.tolist() == [-np.inf, -np.inf]
    assert found.outcome.participating.tolist() == [8, 8]
    nobody = mppfl.solve(game, "noiseless").outcome
    assert (nobody.accuracy_terms[0], nobody.payments[0], nobody.negative_utility[0]) == (0.0, 0.0, 8)
    (row,) = mppfl.compare(game, [some_without_noise], num_rounds=2, conventions=["own"])
    assert row.noise_aware_cost == approx(2 * (1 - weight) * 7.0)
    assert row.payments == approx(14.0)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: mppfl.draw_clients("paper-like", 20, 0), "rng=0 is no random generator"),  # type: ignore[arg-type]
        (lambda: mppfl.solve(two_friends(), participation="maybe"), 'participation="maybe" must be one of "everyone"'),
        (lambda: mppfl.solve(two_friends(), participation="always"), "Did you mean 'everyone'"),
        (lambda: mppfl.solve(star(), num_rounds=0), "rounds=0 must be a whole number of at least 1"),
        (lambda: mppfl.solve(star(), num_rounds=1.5), "rounds=1.5 must be a whole number"),  # type: ignore[arg-type]
        (lambda: mppfl.solve(star(), num_rounds=True), "rounds=True must be a whole number"),
        (lambda: mppfl.solve(star(), "random", seed=-1), "seed=-1 must be a whole number of at least 0"),
        (lambda: mppfl.compare(star(), ["random"], seed="2"), "seed='2' must be a whole number"),  # type: ignore[arg-type]
        (lambda: Horizon(np.array([0, 1])), "numbered from 1"),
        (lambda: mppfl.solve([]), "there must be at least one game"),
        (lambda: mppfl.solve([star(), two_friends()]), "keep those who left, with budget_max 0"),
        (lambda: mppfl.solve(star(), None), "mechanism=None must be a name, or a function"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_solved_is_refused(use, told):
    with pytest.raises(mppfl.BadInput, match=told):
        use()
