"""A second route to the command line's numbers: plain NumPy from the lists of edges and clients, nothing of mppfl."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    columns: dict[str, np.ndarray] = field(default_factory=dict)

    def influence(self, normalisation: str = "row") -> np.ndarray:
        """Entry (i, j): how strongly j exposes i."""
        at = {name: i for i, name in enumerate(self.names)}
        given = np.zeros((len(at), len(at)))
        for source, target, weight in self.edges:
            given[at[target], at[source]] = weight
        strengths = given.sum(axis=1)
        safe = np.where(strengths > 0, strengths, 1.0)
        if normalisation == "row":
            return given / safe[:, None]
        return given / np.sqrt(np.outer(safe, safe)) if normalisation == "symmetric" else given

    def propagation(self, normalisation: str = "row") -> np.ndarray:
        """Σ = Σ_k λ^(k−1) W^k with a zero diagonal."""
        influence = self.influence(normalisation)
        power, total = np.eye(len(influence)), np.zeros_like(influence)
        for hop in range(self.max_hops):
            power = power @ influence
            total += self.hop_decay**hop * power
        np.fill_diagonal(total, 0.0)
        return total

    def losses(self, budgets: np.ndarray, normalisation: str = "row") -> np.ndarray:
        return budgets + self.externality_strength * self.propagation(normalisation) @ budgets

    def welfare(self, prices: np.ndarray, budgets: np.ndarray) -> float:
        losses = self.losses(budgets)
        return sum(prices * budgets - self.quadratic_cost * losses**2 - self.linear_cost * losses)

    def server_cost(self, round_index: int, prices: np.ndarray, budgets: np.ndarray) -> float:
        part = budgets > 0
        noise = sum(self.noise_harm[part] / budgets[part]) / round_index
        return self.accuracy_weight * noise + (1 - self.accuracy_weight) * sum(prices * budgets)

    def by_name(self, values: np.ndarray) -> dict[str, float]:
        return dict(zip(self.names, values.tolist(), strict=True))

    def options(self, write) -> tuple[object, ...]:
        """The game as files and options of a command."""
        header = ["name", "quadratic_cost", "linear_cost", "noise_harm", *self.columns]
        table = [self.quadratic_cost, self.linear_cost, self.noise_harm, *self.columns.values()]
        clients = [",".join([name, *(repr(float(column[i])) for column in table)]) for i, name in enumerate(self.names)]
        return (
            *("--graph", write("edges.csv", *(f"{s},{t},{w!r}" for s, t, w in self.edges))),
            *("--clients", write("clients.csv", ",".join(header), *reversed(clients))),
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


def star() -> SmallGame:
    """Ten leaves (a = 1, b = 0) around a hub (a = 0.05, b = 1), who shares the less the higher the rate."""
    names = ["hub", *(f"leaf{k}" for k in range(10))]
    edges = [edge for leaf in names[1:] for edge in (("hub", leaf, 1.0), (leaf, "hub", 1.0))]
    costs = np.ones(11), np.zeros(11), np.ones(11)
    costs[0][0], costs[1][0] = 0.05, 1.0
    return SmallGame(names, edges, *costs, max_hops=1, hop_decay=0.5, externality_strength=0.2, accuracy_weight=0.5)
