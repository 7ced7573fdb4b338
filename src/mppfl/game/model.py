"""Clients, Game, and the equations of one round: one function per equation of docs/model.md."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from mppfl.arrays import Array, read_only, require, require_number
from mppfl.errors import BadInput
from mppfl.fields import About, checked
from mppfl.game.loss import LossOperator
from mppfl.network import Diagonal, Propagation, SocialGraph, propagate
from mppfl.spec import Trust
from mppfl.text import lines_of, span

LARGEST = 1e100  # of a client's numbers: the game multiplies up to three of them
ABOVE_0 = ("quadratic_cost", "noise_harm", "data_size")


def wanted_of(name: str, value: Any) -> list[tuple[str, Any]]:
    """What a number of a client must be, and whether it is."""
    if name == "budget_max":
        return [("a number of at least 0, or inf", value >= 0)]
    least = ("a number above 0", value > 0) if name in ABOVE_0 else ("a number of at least 0", value >= 0)
    fits = (value == 0) | ((value >= 1 / LARGEST) & (value <= LARGEST))
    limits = f"between {1 / LARGEST:g} and {LARGEST:g} where it is not 0, in whatever unit"
    return [(least[0], np.isfinite(value) & least[1]), (limits, fits)]


@dataclass(frozen=True, eq=False)
class Clients:
    """What privacy is worth to each client: one entry per client; a single number stands for everybody.

    Args:
        quadratic_cost: a_i > 0, money per unit of privacy loss squared.
        linear_cost: b_i >= 0, money per unit of privacy loss.
        noise_harm: ε_i > 0, weight of this client's noise in the server's cost; not a DP epsilon.
        compute_cost: C_i >= 0, money for participating in one round.
        data_size: |D_i| > 0, examples the client holds.
        budget_min, budget_max: bounds on a budget, 0 <= min <= max; a client held at 0 does not participate.

    Raises:
        BadInput: a number is out of its range, or the lengths differ.

    Example:
        >>> import mppfl
        >>> mppfl.Clients([1.0, 2.0], linear_cost=0.5, noise_harm=0.1).num_clients
        2
    """

    quadratic_cost: Array
    linear_cost: Array
    noise_harm: Array
    compute_cost: Array = 0.0  # type: ignore[assignment]  # a scalar stands for everybody
    data_size: Array = 1.0  # type: ignore[assignment]
    budget_min: Array = 0.0  # type: ignore[assignment]
    budget_max: Array = np.inf  # type: ignore[assignment]

    def __post_init__(self) -> None:
        longest = max(np.size(getattr(self, f.name)) for f in fields(self))
        for f in fields(self):
            object.__setattr__(self, f.name, read_only(getattr(self, f.name), f.name, length=longest))
            for wanted, holds in wanted_of(f.name, getattr(self, f.name)):
                require(getattr(self, f.name), f.name, holds, wanted)
        require(self.budget_max, "budget_max", self.budget_max >= self.budget_min, "at least budget_min")

    @property
    def num_clients(self) -> int:
        return len(self.quadratic_cost)

    def __repr__(self) -> str:
        return lines_of(f"Clients: {self.num_clients:,}", {f.name: span(getattr(self, f.name)) for f in fields(self)})


@dataclass(frozen=True, eq=False)
class Game:
    """One server, the clients, and the network between them: everything that one round needs. See `make_game`.

    Args:
        graph: the social network.
        clients: what privacy is worth to each client of it.
        propagation: influence over all walks in the graph.
        externality_strength: α >= 0, how much others' budgets add to one's own privacy loss.
        accuracy_weight: 0 < τ < 1, the server's weight on accuracy; 1 - τ is its weight on payments.
        trust: "local", where every upload carries noise of its own; "secure_sum" or "server", where the noise of all
            lies on one sum: that decides what budgets are worth to the server (model, eq. 34).

    Raises:
        BadInput: the numbers of clients differ, or a constant is out of its range.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> game = mppfl.make_game(pair, mppfl.Clients([1.0, 1.0], 0.0, 0.1), externality_strength=0.1)
        >>> game.num_clients, game.is_surely_unique
        (2, True)
    """

    graph: SocialGraph
    clients: Clients
    propagation: Propagation
    externality_strength: float
    accuracy_weight: float
    trust: Trust = "local"

    def __post_init__(self) -> None:
        if self.clients.num_clients != self.propagation.num_clients:
            raise BadInput(
                f"{self.clients.num_clients:,} clients for a network of {self.propagation.num_clients:,}; "
                "give costs for exactly the clients of the network."
            )
        strength = require_number(self.externality_strength, "externality_strength", 0.0, LARGEST, open_ends=False)
        object.__setattr__(self, "externality_strength", strength)
        object.__setattr__(self, "accuracy_weight", require_number(self.accuracy_weight, "accuracy_weight", 0.0, 1.0))
        checked("trust", self.trust, Trust, About(""))

    @property
    def num_clients(self) -> int:
        return self.clients.num_clients

    def __repr__(self) -> str:
        spread = self.propagation
        facts = {
            "network": f"{self.graph.num_edges:,} edges, up to {spread.max_hops} hops, decay {spread.hop_decay:g}",
            "externality_strength": f"{self.externality_strength:g}",
            "accuracy_weight": f"{self.accuracy_weight:g}",
        }
        facts |= {"trust": self.trust} if self.opens_sums else {}
        facts |= {name: span(getattr(self.clients, name)) for name in ("quadratic_cost", "linear_cost", "noise_harm")}
        return lines_of(f"Game of {self.num_clients:,} clients", facts)

    @cached_property
    def loss(self) -> LossOperator:
        """B = I + αΣ, which turns budgets into privacy losses."""
        return LossOperator(self.propagation, self.externality_strength)

    @property
    def contraction(self) -> float:
        """αS: below 1 the clients' equilibrium is unique for every reward rate (model, eq. 4)."""
        return self.externality_strength * self.propagation.largest_row_sum()

    @property
    def is_surely_unique(self) -> bool:
        """Whether true row sums of αΣ stay below 1, which proves a unique equilibrium for every reward rate."""
        return bool(self.externality_strength * self.propagation.row_sums.max() < 1)

    @property
    def opens_sums(self) -> bool:
        """Whether the noise of all clients lies on one sum, which opens as a whole."""
        return self.trust != "local"

    def with_bounds(self, budget_min: Array, budget_max: Array) -> Game:
        """The same game with other bounds on budgets; what was already solved for the network is kept."""
        return self._on_its_network(clients=replace(self.clients, budget_min=budget_min, budget_max=budget_max))

    def with_trust(self, trust: Trust) -> Game:
        """The same game under another trust; what was already solved for the network is kept."""
        return self._on_its_network(trust=trust)

    def _on_its_network(self, **changes: Any) -> Game:
        changed = replace(self, **changes)
        changed.__dict__["loss"] = self.loss
        return changed


def make_game(
    graph: SocialGraph,
    clients: Clients,
    *,
    max_hops: int = 5,
    hop_decay: float = 0.9,
    externality_strength: float = 0.05,
    accuracy_weight: float = 0.5,
    trust: Trust = "local",
    diagonal: Diagonal = "auto",
    device: str | None = None,
) -> Game:
    """A game on a social graph; the defaults are those of the preset `paper-like`.

    Args:
        graph: who exposes whom.
        clients: one entry per client of the graph.
        max_hops: longest walk along which privacy leaks, in edges.
        hop_decay: decay factor per hop, between 0 and 1.
        externality_strength: α >= 0, how much others' budgets add to one's own privacy loss.
        accuracy_weight: 0 < τ < 1, the server's weight on accuracy.
        trust: "local", or "secure_sum" or "server", where the noise of all clients lies on one sum.
        diagonal: how closed walks are counted: "exact", "estimate", or "auto" by size.
        device: "cuda", "cuda:1" or "cpu" to let PyTorch count closed walks; the game stays in main memory.

    Raises:
        BadInput: graph and clients do not belong together, or a constant is out of its range.

    Example:
        >>> import mppfl
        >>> pair = mppfl.graph_from_matrix([[0, 1], [1, 0]])
        >>> mppfl.make_game(pair, mppfl.Clients([1.0, 2.0], linear_cost=0.1, noise_harm=0.5), max_hops=3)
        Game of 2 clients
          network               2 edges, up to 3 hops, decay 0.9
          externality_strength  0.05
          accuracy_weight       0.5
          quadratic_cost        1 to 2
          linear_cost           0.1
          noise_harm            0.5
    """
    spread = propagate(graph, max_hops, hop_decay, diagonal=diagonal, device=device)
    return Game(graph, clients, spread, externality_strength, accuracy_weight, trust)


def privacy_loss(game: Game, budgets: Array) -> Array:
    """s = ρ + αΣρ: what each client loses, own and through others (model, eq. 5)."""
    return game.loss @ budgets


def privacy_cost(game: Game, losses: Array) -> Array:
    """a_i s_i² + b_i s_i: what a privacy loss is worth to each client, in money (model, eq. 6)."""
    return game.clients.quadratic_cost * losses**2 + game.clients.linear_cost * losses


def utility(game: Game, prices: Array | float, budgets: Array, losses: Array | None = None) -> Array:
    """U_i = p_i ρ_i − C_i − (a_i s_i² + b_i s_i) of every client (model, eq. 7).

    A client with budget 0 takes no part and bears no compute cost, but is still exposed by the others.
    """
    losses = privacy_loss(game, budgets) if losses is None else losses
    compute = np.where(budgets > 0, game.clients.compute_cost, 0.0)
    return np.asarray(prices * budgets - compute - privacy_cost(game, losses))


def accuracy_term(game: Game, round_index: int, budgets: Array) -> float:
    """Σ ε_i/(t ρ_i) over the participating clients (model, eq. 8): the noise's share of the loss bounded by eq. 10.

    Where sums open as a whole, N²ε̄/(t X²) with X = Σ(n_i/n̄)√ρ_i (eq. 34).
    """
    if game.opens_sums:
        return noise_of_sum(game, budgets) / round_index
    part = budgets > 0
    return float((game.clients.noise_harm[part] / budgets[part]).sum() / round_index)


def pooled_sizes(game: Game) -> tuple[Array, float]:
    """n_i/n̄ of every client, and N²ε̄: what servers weigh that do not average by size alone (model, eq. 18 and 34)."""
    clients = game.clients
    return clients.data_size / clients.data_size.mean(), game.num_clients**2 * float(clients.noise_harm.mean())


def noise_of_sum(game: Game, budgets: Array) -> float:
    """N²ε̄/X² with X = Σ(n_i/n̄)√ρ_i: harm of the one noise on a sum that opens as a whole (model, eq. 34)."""
    sizes, harm = pooled_sizes(game)
    effective = float(sizes @ np.sqrt(budgets)) ** 2
    return harm / effective if effective > 0 else np.inf


def server_cost(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """U_t = τ · accuracy term + (1−τ) Σ p_i ρ_i; clients who opt out are left out of both (model, eq. 9)."""
    weight = game.accuracy_weight
    return weight * accuracy_term(game, round_index, budgets) + (1 - weight) * float(np.sum(prices * budgets))


def cost_without_absent(game: Game, round_index: int, prices: Array | float, budgets: Array) -> float:
    """The server's cost with weights shared among those who participate: what a leader weighs at the bounds (eq. 9).

    U_t alone forgets a client the moment its budget reaches 0, and would be least with nobody left. Weights θ_i are
    |D_i|/Σ|D| over participants, and ε_i goes with θ_i² (eq. 11): it grows as others opt out. The noise of a sum that
    opens as a whole does so by itself (eq. 34).
    """
    part, sizes = budgets > 0, game.clients.data_size
    if not part.any():
        return np.inf
    grown = 1.0 if game.opens_sums else float(sizes.sum() / sizes[part].sum()) ** 2
    noise = grown * accuracy_term(game, round_index, budgets)
    return game.accuracy_weight * noise + (1 - game.accuracy_weight) * float(np.sum(prices * budgets))


def noise_harm(
    num_parameters: int, clip_norm: float, data_size: Array, weights: Array | None = None, *, smoothness_ratio: float
) -> Array:
    """ε_i = p β 𝒮² θ_i² / (μ² |D_i|²) with `smoothness_ratio` = β/μ² (model, eq. 11).

    With θ_i = |D_i|/Σ|D| (the default) it is the same number for every client, p β 𝒮²/(μ² (Σ|D|)²); other weights θ
    make it differ.
    """
    sizes = np.asarray(data_size, dtype=np.float64)
    shares = sizes / sizes.sum() if weights is None else np.asarray(weights, dtype=np.float64)
    return np.asarray(num_parameters * smoothness_ratio * clip_norm**2 * (shares / sizes) ** 2)


def compute_cost(
    chip_factor: Array | float, cycles: Array | float, frequency: Array | float, data_size: Array, local_epochs: int
) -> Array:
    """C_i = κ_i ξ_i f_i |D_i| L, money for one round of local training (model, eq. 12)."""
    return np.asarray(chip_factor * np.asarray(cycles) * np.asarray(frequency) * np.asarray(data_size) * local_epochs)


def wanted_loss(game: Game, prices: Array | float) -> Array:
    """m_i = (p_i − b_i)/(2 a_i): the privacy loss at which one more unit costs what it earns (model, eq. 13)."""
    return np.asarray((prices - game.clients.linear_cost) / (2 * game.clients.quadratic_cost))
