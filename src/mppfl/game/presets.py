"""Presets: the numbers the paper does not give, chosen once (docs/model.md, section 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mppfl.arrays import require_generator
from mppfl.errors import BadInput
from mppfl.game.model import Clients

PresetName = Literal["paper-like", "benign"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Ranges from which clients are drawn, and the game's constants."""

    quadratic_cost: tuple[float, float]
    linear_cost: tuple[float, float]
    noise_harm: float
    max_hops: int
    hop_decay: float
    externality_strength: float
    accuracy_weight: float


PRESETS: dict[str, Preset] = {
    "paper-like": Preset((0.2, 1.0), (0.2, 2.0), 0.1, 5, 0.9, 0.05, 0.5),  # shows the trends of the paper's figures
    "benign": Preset((0.5, 1.0), (0.1, 0.5), 1.0, 5, 0.5, 0.05, 0.5),  # everybody gains in round 1
}


def preset(name: str) -> Preset:
    """The preset of that name."""
    if name not in PRESETS:
        raise BadInput(f"preset={name!r} is not known. Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def draw_clients(name: str, num_clients: int, rng: np.random.Generator) -> Clients:
    """Clients with costs drawn from a preset's ranges.

    Args:
        name: "paper-like" or "benign".
        num_clients: how many.
        rng: NumPy's random generator; the same state gives the same clients.

    Returns:
        Clients without bounds and without compute costs.

    Raises:
        BadInput: the preset is not known, or `rng` is no generator.

    Example:
        >>> import numpy as np, mppfl
        >>> mppfl.draw_clients("benign", 5, np.random.default_rng(0)).num_clients
        5
    """
    chosen = preset(name)
    require_generator(rng)
    return Clients(
        quadratic_cost=rng.uniform(*chosen.quadratic_cost, num_clients),
        linear_cost=rng.uniform(*chosen.linear_cost, num_clients),
        noise_harm=np.full(num_clients, chosen.noise_harm),
    )
