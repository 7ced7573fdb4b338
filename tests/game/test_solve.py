"""solve: mechanisms by name, by function and by package; rates that leave no choice."""

from __future__ import annotations

import importlib.metadata
from functools import partial

import numpy as np
import pytest

import mppfl
from mppfl.game import MECHANISMS, budget_limited
from tests.game.games import paper_scale_game, two_friends


@pytest.mark.parametrize("function", [budget_limited, partial(budget_limited, payment_limit=0.5)])
def test_a_payment_limit_is_not_broken_by_given_rates(function):
    with pytest.raises(mppfl.BadInput, match="leave budget_limited no choice"):
        mppfl.solve(two_friends(), function, reward_rates=np.array([2.0]))
    assert mppfl.solve(two_friends(), function).outcome.payments[0] <= 1.0 + 1e-9


def offered_point(monkeypatch, name, value):
    """A package `acme-pricing` that offers a mechanism."""
    point = importlib.metadata.EntryPoint(name, value, "mppfl.mechanisms")
    package = importlib.metadata.distribution("mppfl")
    monkeypatch.setattr(type(package), "name", "acme-pricing", raising=False)
    vars(point).update(dist=package)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS.keys() - {"budget_limited"}))
def test_rates_that_a_mechanism_does_not_follow_are_told(mechanism):
    rates = np.array([2.0, 1.5])
    found = mppfl.solve(paper_scale_game(3, num_clients=6), mechanism, num_rounds=2, reward_rates=rates)
    told = any("prices of its own, and the reward_rates that were given" in warning for warning in found.warnings)
    assert told == (mechanism in ("sarda_like", "personalised", "personalised_secure_sum", "noiseless"))
    assert told != np.allclose(found.plan.reward_rates, rates)


def steady(game, horizon):
    """Somebody's mechanism that breaks down in its second line."""
    share = 1 / len(horizon.rounds)
    return share / (game.num_clients - game.num_clients)


class Steady:
    def __call__(self, game, horizon):
        return steady(game, horizon)


@pytest.mark.parametrize(("function", "name"), [(steady, "steady"), (partial(steady), "steady"), (Steady(), "Steady")])
@pytest.mark.parametrize("participation", ["everyone", "rational"])
def test_a_mechanism_of_ones_own_that_breaks_down_is_named_with_what_it_raised(function, name, participation):
    with pytest.raises(mppfl.BadInput) as refused:
        mppfl.solve(two_friends(), function, participation=participation)
    told = f"mechanism={name!r} (tests.game.test_solve:{name}) failed: ZeroDivisionError: float division by zero. "
    assert str(refused.value) == told + "Repair that function."
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("use", [mppfl.solve, lambda game, name: mppfl.compare(game, ["mppfl", name], num_rounds=1)])
@pytest.mark.parametrize(
    ("place", "told"),
    [
        (f"{__name__}:steady", "failed: ZeroDivisionError"),
        ("acme_pricing.missing:steady", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_package_whose_mechanism_breaks_down_or_cannot_be_loaded_is_named(monkeypatch, use, place, told):
    offered_point(monkeypatch, "calm", place)
    with pytest.raises(mppfl.BadInput) as refused:
        use(two_friends(), "calm")
    assert f"mechanism='calm' of acme-pricing ({place}) {told}" in str(refused.value)


def test_what_a_mechanism_of_ones_own_refuses_by_our_errors_passes_as_it_is():
    def refusing(game, horizon):
        raise mppfl.errors.NoEquilibrium("nobody wants to. Pay more.")

    with pytest.raises(mppfl.errors.NoEquilibrium, match=r"^nobody wants to\. Pay more\.$"):
        mppfl.solve(two_friends(), refusing)


def test_no_noise_at_all_is_no_empty_round():
    found = mppfl.solve(two_friends(), "noiseless", reward_rates=np.array([2.0]), participation="rational")
    assert any("prices of its own" in warning for warning in found.warnings)


def test_rounds_in_which_everybody_stays_out_follow_any_rates():
    game = paper_scale_game(3, num_clients=6)
    rates = np.array([2.0, 1e-6])
    found = mppfl.solve(game, num_rounds=2, reward_rates=rates, participation="rational", against="nothing")
    assert found.plan.terms(2).budgets.max() == 0
    assert not any("prices of its own" in warning for warning in found.warnings)


@pytest.mark.parametrize("diagonal", ["auto", "estimate", "exact"])
def test_a_small_game_has_one_external_risk_and_no_error_of_its_diagonal(diagonal):
    drawn = paper_scale_game(4, num_clients=30)
    game = mppfl.make_game(drawn.graph, drawn.clients, diagonal=diagonal)
    found = mppfl.solve(game)
    assert found.diagonal_error == 0
    budgets = found.terms(1).budgets
    by_walks = budgets + game.externality_strength * (game.propagation @ budgets)
    assert game.loss @ budgets == pytest.approx(by_walks, rel=1e-12)


def test_constants_of_a_game_may_be_spelt_out_and_are_numbers_then():
    drawn = paper_scale_game(1, num_clients=5)
    spelt = mppfl.make_game(drawn.graph, drawn.clients, externality_strength="0.1", accuracy_weight="0.5")  # type: ignore[arg-type]
    found = mppfl.solve(spelt)
    wanted = mppfl.solve(mppfl.make_game(drawn.graph, drawn.clients, externality_strength=0.1, accuracy_weight=0.5))
    assert found.outcome.server_costs == pytest.approx(wanted.outcome.server_costs)
    with pytest.raises(mppfl.BadInput, match="externality_strength='much' is not a number"):
        mppfl.make_game(drawn.graph, drawn.clients, externality_strength="much")  # type: ignore[arg-type]
