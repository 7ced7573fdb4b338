"""Who participates: all rounds side by side settle as each round alone."""

from dataclasses import replace

import numpy as np
import pytest
from pytest import approx

import mppfl
from mppfl.game import MECHANISMS, Horizon, led_by, settle_one_by_one, settle_together, with_participation
from tests.game.games import paper_scale_game, star, two_friends
from tests.homes import home

LED = ["mppfl", "mppfl_exact", "mppfl_noise_aware", "budget_limited", "social_agnostic", "pigouvian"]
RULES = ["if_better_than_opting_out", "if_non_negative"]
BOUNDS = {"none": {}, "ceiling": {"budget_max": 0.6}, "floor": {"budget_min": 0.1}, "no choice": {}}


def crowd(seed, bounds, compute_cost):
    game = paper_scale_game(seed, num_clients=14, preset="paper-like")
    changes = {name: np.full(14, value) for name, value in BOUNDS[bounds].items()}
    if bounds == "no choice":
        changes = {"budget_min": np.where(np.arange(14) < 2, 0.2, 0.0), "budget_max": np.full(14, 0.2)}
    clients = replace(game.clients, compute_cost=np.full(14, compute_cost), **changes)
    return replace(game, clients=clients)


@pytest.mark.parametrize("name", LED)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("compute_cost", [0.0, 0.02])
def test_rounds_settle_side_by_side_as_they_do_alone(name, rule, bounds, compute_cost):
    game = crowd(len(name), bounds, compute_cost)
    horizon = Horizon(np.array([1, 2, 5, 20, 21, 60]))
    led = led_by(game, MECHANISMS[name])
    assert led is not None
    together = settle_together(game, horizon, led, rule)
    plain = settle_one_by_one(game, horizon, MECHANISMS[name], rule)
    assert (together.name, together.at_rest, together.notes) == (plain.name, plain.at_rest, plain.notes)
    for mine, other in zip(together.terms, plain.terms, strict=True):
        assert mine.round_index == other.round_index
        assert mine.reward_rate == approx(other.reward_rate, rel=1e-9, abs=1e-12)
        assert mine.budgets == approx(other.budgets, rel=1e-9, abs=1e-11)
        assert (mine.participating == other.participating).all()
        assert np.asarray(mine.prices) == approx(np.asarray(other.prices), rel=1e-9, abs=1e-12)


def test_a_limit_of_ones_own_settles_side_by_side_too():
    game, horizon = crowd(3, "ceiling", 0.0), Horizon(np.array([1, 9]))
    thrifty = MECHANISMS["budget_limited"].with_options(payment_limit=0.4)
    led = led_by(game, thrifty)
    assert led is not None
    assert led.payment_limit == 0.4
    together = settle_together(game, horizon, led, "if_non_negative")
    plain = settle_one_by_one(game, horizon, thrifty, "if_non_negative")
    assert [t.reward_rate for t in together.terms] == approx([t.reward_rate for t in plain.terms], rel=1e-9)


def test_an_inverse_that_has_lost_its_digits_is_computed_anew(monkeypatch):
    game = crowd(1, "none", 0.0)
    horizon = Horizon(np.array([1, 30]))
    plan = with_participation(game, horizon, MECHANISMS["mppfl"], "if_non_negative")
    monkeypatch.setattr(home(led_by), "LINE_TOLERANCE", 0.0)
    again = with_participation(game, horizon, MECHANISMS["mppfl"], "if_non_negative")
    assert again.to_matrix() == approx(plan.to_matrix(), rel=1e-9, abs=1e-12)


def test_mechanisms_without_a_leader_and_crowds_that_may_settle_twice_go_one_by_one():
    game = paper_scale_game(0, num_clients=6)
    assert led_by(game, MECHANISMS["dp_fedavg"]) is None
    assert led_by(game, MECHANISMS["dp_fedavg"].with_options(fixed_budget=0.1)) is None
    assert led_by(two_friends(1.5), MECHANISMS["mppfl"]) is None
    found = mppfl.solve(two_friends(1.5), num_rounds=2, participation="if_non_negative")
    assert len(found.plan) == 2


@pytest.mark.parametrize("rule", RULES)
def test_what_a_mechanism_says_of_its_rounds_is_not_lost_when_clients_may_stay_out(rule):
    pair = two_friends()
    assert any(note.startswith("fixed budget ") for note in mppfl.solve(pair, "dp_fedavg", participation=rule).warnings)
    capped = pair.with_bounds(np.zeros(2), np.full(2, 0.05))
    assert "some clients are at a bound of their budgets" in mppfl.solve(capped, participation=rule).warnings
    charged = mppfl.solve(star(), "pigouvian", num_rounds=2, participation="if_better_than_opting_out").warnings
    assert any("would be charged" in note for note in charged)
    assert len(charged) == len(set(charged))


@pytest.mark.parametrize("rule", ["if_better_than_opting_out", "if_non_negative"])
def test_a_round_is_deserted_where_only_those_are_left_whom_no_price_moves(rule):
    # The hub would be charged, so it is offered nothing; the leaves cost too much to stay.
    leaves = mppfl.graph_from_matrix(star().graph.influence.toarray())
    costs = np.r_[0.0, np.full(10, 100.0)]
    clients = mppfl.Clients(np.ones(11), np.full(11, 0.1), np.ones(11), compute_cost=costs)
    game = mppfl.make_game(leaves, clients, max_hops=1, externality_strength=0.2)
    horizon = Horizon(np.array([1, 2]))
    together = settle_together(game, horizon, led_by(game, MECHANISMS["pigouvian"]), rule)
    one_by_one = settle_one_by_one(game, horizon, MECHANISMS["pigouvian"], rule)
    for settled in (together, one_by_one):
        assert [terms.budgets.max() for terms in settled.terms] == [0.0, 0.0]
    found = mppfl.solve(game, "pigouvian", num_rounds=2, participation=rule)
    assert any("nobody participates" in warning for warning in found.warnings)
