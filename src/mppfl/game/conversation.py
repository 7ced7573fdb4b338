"""Asking clients for budgets: what is announced, what comes back, and how often. Nothing else travels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mppfl.arrays import Array, require
from mppfl.errors import BadInput, NotConverged
from mppfl.network import Propagation

Answer = Callable[[Array, Array], Array]
"""A client: reward rates and its exposures, one of each per round, in; its budgets out."""
Ask = Callable[[Array, Array], Array]
"""All clients at once, however they are reached: rates [rounds] and exposures [rounds, clients] in; budgets out."""

MAX_SWEEPS = 2000


@dataclass(slots=True)
class Conversation:
    """The server's side: whom it may ask, what it knows without asking, and how often it has asked."""

    everybody: Ask
    propagation: Propagation
    externality_strength: float
    tolerance: float
    num_announcements: int = 0
    exposures: Array = field(default_factory=lambda: np.zeros((0, 0)))

    def ask(self, reward_rates: Array) -> Array:
        """Everybody's budgets at these rates and the exposures as they stand [rounds, clients]."""
        self.num_announcements += 1
        budgets = np.asarray(self.everybody(reward_rates, self.exposures), dtype=np.float64)
        if budgets.shape != self.exposures.shape:
            raise BadInput(
                f"answers of shape {budgets.shape} must be budgets [rounds, clients] {self.exposures.shape}."
            )
        require(budgets.reshape(-1), "an answered budget", np.isfinite(budgets).reshape(-1), "a finite number")
        return budgets

    def settle(self, reward_rates: Array) -> tuple[Array, float]:
        """Budgets at these rates once exposures stand still, and how still. Starts from where they stood."""
        moved, before = np.inf, self.num_announcements
        while self.num_announcements < before + MAX_SWEEPS:
            budgets = self.ask(reward_rates)
            with np.errstate(over="ignore", invalid="ignore"):  # exposures without end have not settled
                exposures = self.externality_strength * np.array([self.propagation @ row for row in budgets])
                moved = float(np.abs(exposures - self.exposures).max(initial=0.0))
            if not np.isfinite(moved):
                break
            self.exposures = exposures
            if moved <= self.tolerance * max(1.0, float(np.abs(exposures).max(initial=0.0))):
                return budgets, moved
        raise NotConverged(
            f"exposures still moved by {moved:.2g} after {self.num_announcements - before} announcements. "
            "Lower externality_strength.",
            self.exposures,
            moved,
        )
