"""How the server's constants are chosen: one at a time, on the validation users and splits of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np
from examples.lastfm.budgets import TrainingJob
from examples.lastfm.data import Listening, hold_out
from examples.lastfm.experiment import VALIDATION_STREAM, Settings, World, validation_users
from examples.lastfm.server import CONSTANTS, SUM_CONSTANTS, Constants, SumConstants

CANDIDATES: dict[str, tuple[float, ...]] = {
    "friends_in_gram": (1.0, 2.0, 4.0),
    "edge": (0.7, 0.8, 0.9),
    "near": (0.5, 1.0, 2.0),
    "far": (0.5, 1.0, 2.0),
    "popularity": (0.0, 0.03, 0.1),
}
SUM_CANDIDATES: dict[str, tuple[float, ...]] = {
    "looked_at": (300.0, 380.0, 480.0),
    "growth": (0.6, 0.7, 0.8),
    "edge": (0.9, 1.0, 1.1),
    "popularity": (0.1, 1.0),
}
LEVELS = {"record": (0.3, 1.0), "secure": (0.1, 0.53)}  # ρ at which constants are tried
WORTH_A_CHANGE = 1e-3  # NDCG@10; less is within the noise of so few users
Chosen = TypeVar("Chosen", Constants, SumConstants)


def choose(
    listening: Listening,
    settings: Settings,
    tell: Callable[[str], None],
    candidates: Mapping[str, tuple[float, ...]] = CANDIDATES,
    sum_candidates: Mapping[str, tuple[float, ...]] = SUM_CANDIDATES,
) -> tuple[Constants, SumConstants]:
    """Constants with the best mean NDCG@10 on validation users; each is settled before the next is tried.

    It begins with those in the code and leaves one as it is unless another is better by `WORTH_A_CHANGE`.
    Nothing that is reported enters: other users are scored there, on other splits.
    """
    splits = [hold_out(listening, settings.test_share, settings.stream(VALIDATION_STREAM, 1, at)) for at in range(2)]
    # A seed of its own keeps the noise apart from that of the reported figures.
    world = World(listening, splits, validation_users(listening, settings), replace(settings, seed=settings.seed + 1))
    everybody = np.ones(listening.num_users)

    def quality(trust: str, **constants: Any) -> float:
        tried = replace(world, **constants)
        arms = [TrainingJob(f"{rho:g}", rho * everybody, "noise_aware") for rho in LEVELS[trust]]
        return float(np.mean([tried.score(trust, arm).ndcg for arm in arms]))

    first = _settle(CONSTANTS, candidates, lambda each: quality("record", constants=each), tell)
    second = _settle(SUM_CONSTANTS, sum_candidates, lambda each: quality("secure", sum_constants=each), tell)
    return first, second


def _settle(
    start: Chosen,
    candidates: Mapping[str, tuple[float, ...]],
    quality: Callable[[Chosen], float],
    tell: Callable[[str], None],
) -> Chosen:
    best, reached = start, quality(start)
    for name, values in candidates.items():
        for value in values:
            if value == asdict(best)[name]:
                continue
            tried = replace(best, **{name: value})
            found = quality(tried)
            tell(f"{name} = {value:g}: {found:.4f} against {reached:.4f}")
            if found > reached + WORTH_A_CHANGE:
                best, reached = tried, found
    return best
