"""A second route to the command line's numbers: plain NumPy from the lists of edges and clients, nothing of mppfl."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class SmallGame:
    """Edges (source, target, weight), costs by name, and the game's constants, as a test writes them into files."""

    names: list[str]
    edges: list[tuple[str, str, float]]
    quadratic_cost: np.ndarray
    linear_cost: np.ndarray
    noise_harm: np.ndarray
    max_hops: int = 4
    hop_decay: float = 0.7
    externality_strength: float = 0.1
    accuracy_weight: float = 0.4

    def influence(self) -> np.ndarray:
        """Entry (i, j): how strongly j exposes i; rows sum to 1."""
        position = {name: i for i, name in enumerate(self.names)}
        weights = np.zeros((len(position), len(position)))
        for source, target, weight in self.edges:
            weights[position[target], position[source]] = weight
        return weights / weights.sum(axis=1, keepdims=True)

    def propagation(self) -> np.ndarray:
        """Σ = Σ_k λ^(k−1) W^k with a zero diagonal."""
        influence = self.influence()
        power, total = np.eye(len(influence)), np.zeros_like(influence)
        for hop in range(self.max_hops):
            power = power @ influence
            total += self.hop_decay**hop * power
        np.fill_diagonal(total, 0.0)
        return total

    def losses(self, budgets: np.ndarray) -> np.ndarray:
        return budgets + self.externality_strength * self.propagation() @ budgets

    def welfare(self, prices: np.ndarray, budgets: np.ndarray) -> float:
        losses = self.losses(budgets)
        return sum(prices * budgets - self.quadratic_cost * losses**2 - self.linear_cost * losses)

    def server_cost(self, round_index: int, prices: np.ndarray, budgets: np.ndarray, noise_aware: bool) -> float:
        part = budgets > 0
        noise = sum(self.noise_harm[part] / budgets[part])
        if noise_aware:
            noise = len(budgets) ** 2 * self.noise_harm.mean() / sum(budgets)
        return self.accuracy_weight * noise / round_index + (1 - self.accuracy_weight) * sum(prices * budgets)

    def by_name(self, values: np.ndarray) -> dict[str, float]:
        return dict(zip(self.names, values.tolist(), strict=True))

    def options(self, write) -> tuple[object, ...]:
        """The game as files and options of a command."""
        table = zip(self.names, self.quadratic_cost, self.linear_cost, self.noise_harm, strict=True)
        clients = [",".join([name, *(repr(float(cost)) for cost in costs)]) for name, *costs in table]
        return (
            *("--graph", write("edges.csv", *(f"{s},{t},{w!r}" for s, t, w in self.edges))),
            *("--clients", write("clients.csv", "name,quadratic_cost,linear_cost,noise_harm", *reversed(clients))),
            *("--max-hops", self.max_hops, "--hop-decay", self.hop_decay),
            *("--externality-strength", self.externality_strength, "--accuracy-weight", self.accuracy_weight),
        )


def seven_clients(seed: int = 1) -> SmallGame:
    """Seven clients on a ring with chords, edges of uneven weight, everybody inside the bounds."""
    rng = np.random.default_rng(seed)
    names = [f"client {letter}" for letter in "ABCDEFG"]
    ends = [(names[source], names[(source + step) % 7]) for source in range(7) for step in (1, 3)]
    edges = [(source, target, float(rng.uniform(0.1, 1.0))) for source, target in ends]
    return SmallGame(names, edges, rng.uniform(0.5, 1.0, 7), rng.uniform(0.1, 0.5, 7), rng.uniform(0.5, 1.5, 7))
