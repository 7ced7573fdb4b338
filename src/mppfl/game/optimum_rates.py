"""The reward rate of a server whose clients answer it with what is best for all of them together (SARDA-r).

It pays everybody the same rate, so its cost counts Σrρ, although the answer is that to personal prices r·c.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mppfl.arrays import Array, IntArray
from mppfl.game.equilibrium import equilibrium_response
from mppfl.game.interior_leaders import interior_rates_each
from mppfl.game.model import Game, cost_without_absent
from mppfl.game.natural_units import in_units, natural_units
from mppfl.game.path import waking_rates
from mppfl.game.welfare import SocialOptima

NUM_TRIED = 48
REFINED = 8  # times, each around the best rates so far: to about 1e-4 of a rate


def rates_for_optima(game: Game, weights: Array, rounds: IntArray) -> Array:
    """The cheapest rate of every round, where clients answer with the welfare optimum within their bounds.

    Where that keeps everybody inside, the root of its condition; else, or if it costs less, the best of sampled rates.
    """
    units = natural_units(game)
    game = in_units(game, units)
    line = equilibrium_response(game, weights)
    found = np.full(len(rounds), np.nan)
    if line.free.all():  # else the line holds some where they are, which is no optimum of the others
        found = interior_rates_each(game, replace(line, weights=np.ones(game.num_clients)), "anticipating", rounds)
    optima = SocialOptima(game, weights)
    open_rounds = np.isnan(found)
    if np.isfinite(game.clients.budget_max).any():  # with some at their ceilings a higher rate may cost less
        open_rounds[:] = True
    if open_rounds.any():
        tried = _best_of_tried(game, optima, weights, rounds[open_rounds])
        found[open_rounds] = _cheaper(game, optima, rounds[open_rounds], found[open_rounds], tried)
    return found * units.rate


def _cheaper(game: Game, optima: SocialOptima, rounds: IntArray, inside: Array, tried: Array) -> Array:
    """The root inside the bounds, where there is one, unless the other rate costs less."""
    chosen = tried.copy()
    for k in np.flatnonzero(~np.isnan(inside)):
        costs = _costs(game, optima, rounds[k : k + 1], np.array([inside[k], tried[k]]))[0]
        chosen[k] = inside[k] if costs[0] <= costs[1] else tried[k]
    return chosen


def _best_of_tried(game: Game, optima: SocialOptima, weights: Array, rounds: IntArray) -> Array:
    low, high = waking_rates(game, np.maximum(weights, 0.0))
    rates = np.geomspace(max(low, 1e-3 * high, 1e-6), 8 * max(high, 1e-6), NUM_TRIED)
    costs = _costs(game, optima, rounds, rates)
    for _ in range(REFINED):
        best = np.unique(costs.argmin(axis=1))
        near = np.unique(np.clip(np.concatenate([best - 1, best]), 0, len(rates) - 2))
        between = np.sqrt(rates[near] * rates[near + 1])
        order = np.argsort(np.concatenate([rates, between]), kind="stable")
        rates = np.concatenate([rates, between])[order]
        costs = np.concatenate([costs, _costs(game, optima, rounds, between)], axis=1)[:, order]
    return np.asarray(rates[costs.argmin(axis=1)])


def _costs(game: Game, optima: SocialOptima, rounds: IntArray, rates: Array) -> Array:
    """The server's cost in every round at every rate, [rounds, rates]."""
    answers = [optima.at(float(rate)).budgets for rate in rates]
    pairs = list(zip(rates.tolist(), answers, strict=True))
    return np.array([[cost_without_absent(game, int(t), rate, budgets) for rate, budgets in pairs] for t in rounds])
