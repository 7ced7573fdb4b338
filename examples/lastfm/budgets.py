"""Whose budget is how large: the pricing game on the real friend graph, and the arms that are set side by side.

Every arm gets budgets of round 1 at MPPFL's own reward rate, in one common unit: the unit that makes MPPFL's mean the
figure asked for. An arm that spends more in the game therefore spends more here, and its mean is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mppfl.arrays import Array, require_number
from mppfl.game import Game, Horizon, draw_clients, make_game, mppfl, preset, social_agnostic
from mppfl.network import SocialGraph

Weighting = Literal["equal", "trimmed", "noise_aware"]
TRIMMED_BELOW = 0.25  # of the mean budget: who gives less is left out of the trimmed aggregate
FIRST_ROUND = np.array([1])


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One way to set budgets and to weigh what was released under them."""

    name: str
    budgets: Array
    weighting: Weighting


def game_of_friends(graph: SocialGraph, preset_name: str, rng: np.random.Generator) -> Game:
    """The pricing game among these friends, with costs of privacy drawn from a preset."""
    constants = preset(preset_name)
    return make_game(
        graph,
        draw_clients(preset_name, graph.num_clients, rng),
        max_hops=constants.max_hops,
        hop_decay=constants.hop_decay,
        externality_strength=constants.externality_strength,
        accuracy_weight=constants.accuracy_weight,
    )


def arms_of(game: Game, mean_budget: float) -> tuple[TrainingJob, ...]:
    """MPPFL, social-agnostic and fixed budgets, each with the weightings that matter, MPPFL's mean at `mean_budget`."""
    mean = require_number(mean_budget, "mean_budget", 0.0, np.inf)
    terms = mppfl(game, Horizon(FIRST_ROUND))[0]
    agnostic = social_agnostic(game, Horizon(FIRST_ROUND, np.array([terms.reward_rate])))[0].budgets
    unit = mean / float(terms.budgets.mean())
    ours, alone = unit * terms.budgets, unit * agnostic
    everybody = np.ones(game.num_clients)
    return (
        TrainingJob("MPPFL, equal weights", ours, "equal"),
        TrainingJob("MPPFL, trimmed", ours, "trimmed"),
        TrainingJob("MPPFL, noise-aware", ours, "noise_aware"),
        TrainingJob("SA, equal weights", alone, "equal"),
        TrainingJob("SA, noise-aware", alone, "noise_aware"),
        TrainingJob("SA at MPPFL's mean, noise-aware", alone * (mean / float(alone.mean())), "noise_aware"),
        TrainingJob("fixed at MPPFL's smallest", everybody * float(ours[ours > 0].min()), "noise_aware"),
        TrainingJob("fixed at MPPFL's mean", everybody * mean, "noise_aware"),
        TrainingJob("fixed at SA's mean", everybody * float(alone.mean()), "noise_aware"),
    )
