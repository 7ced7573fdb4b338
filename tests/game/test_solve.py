"""solve: mechanisms by name, by function and by package; rates that leave no choice."""

from __future__ import annotations

import importlib.metadata
from functools import partial

import numpy as np
import pytest

import mppfl
from mppfl.game.mechanisms import budget_limited
from tests.game.games import two_friends


@pytest.mark.parametrize("function", [budget_limited, partial(budget_limited, payment_limit=0.5)])
def test_a_payment_limit_is_not_broken_by_given_rates(function):
    with pytest.raises(mppfl.BadInput, match="leave budget_limited no choice"):
        mppfl.solve(two_friends(), function, reward_rates=np.array([2.0]))
    assert mppfl.solve(two_friends(), function).outcome.payments[0] <= 1.0 + 1e-9


@pytest.mark.parametrize("mechanism", [None, 3, b"mppfl"])
def test_what_is_no_mechanism_is_refused(mechanism):
    with pytest.raises(mppfl.BadInput, match="must be a name, or a function"):
        mppfl.solve(two_friends(), mechanism)


def broken_point(monkeypatch):
    """A package `acme-pricing` whose mechanism `steady` cannot be imported."""
    point = importlib.metadata.EntryPoint("steady", "acme_pricing.missing:steady", "mppfl.mechanisms")
    package = importlib.metadata.distribution("mppfl")
    monkeypatch.setattr(type(package), "name", "acme-pricing", raising=False)
    vars(point).update(dist=package)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])


@pytest.mark.parametrize("use", [mppfl.solve, lambda game, name: mppfl.compare(game, ["mppfl", name], num_rounds=1)])
def test_a_package_whose_mechanism_cannot_be_loaded_is_named(monkeypatch, use):
    broken_point(monkeypatch)
    with pytest.raises(mppfl.BadInput) as refused:
        use(two_friends(), "steady")
    told = "mechanism='steady' of acme-pricing (acme_pricing.missing:steady) cannot be loaded: ModuleNotFoundError"
    assert told in str(refused.value)
