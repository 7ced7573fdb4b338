"""One convex problem in a box, min H(x) + ½xᵀQx + cᵀx, and its uses: personal prices, the auction, the optimum.

personalised    Q = 2(1−τ)(AB + BᵀA)   H = τ/t Σε/x      c = (1−τ)b   cheapest for the server (eq. 21)
  in one sum    the same               H = τN²ε̄/(t X²)   the same     X = Σ(n/n̄)√x (eq. 35)
SARDA-like      Q = 2B₁ᵀAB₁            H = τ/(1−τ)t Σε/x c = B₁ᵀb     one-hop welfare with the server's (eq. 30)
social optimum  Q = 2BᵀAB              H = 0             c = Bᵀb − r  all clients together at a rate (eq. 25)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NotConverged
from mppfl.game.equilibrium import Followers, Path, Response, equilibrium_response, no_segments
from mppfl.game.loss import LossOperator
from mppfl.game.model import Game, pooled_sizes

MAX_STEPS = 200
CG_STEPS = 200
ENOUGH = 1e-12  # of the terms that a slope is the difference of
ACCEPTABLE = 1e-7  # of them, where rounding ends the search before that


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Q of the problem: twice AB + BᵀA, or twice BᵀAB, times a factor; as a matrix for small networks."""

    loss: LossOperator
    quadratic_cost: Array
    factor: float
    both_ways: bool  # AB + BᵀA, else BᵀAB

    def __matmul__(self, x: Array) -> Array:
        if self.loss.is_dense:
            return np.asarray(self.matrix @ x)
        costs = self.quadratic_cost
        if self.both_ways:
            return 2 * self.factor * (costs * (self.loss @ x) + self.loss.T @ (costs * x))
        return 2 * self.factor * (self.loss.T @ (costs * (self.loss @ x)))

    @cached_property
    def matrix(self) -> Array:
        weighed = self.quadratic_cost[:, None] * self.loss.dense
        return 2 * self.factor * (weighed + weighed.T if self.both_ways else self.loss.dense.T @ weighed)

    @cached_property
    def diagonal(self) -> Array:
        """Its diagonal; on large networks a bound from below, which is enough to scale by."""
        if self.loss.is_dense:
            return np.diag(self.matrix)
        return (4 if self.both_ways else 2) * self.factor * self.quadratic_cost

    def solve(self, right: Array, free: BoolArray, bend: Array, shared: Array) -> Array:
        """(Q + diag(bend) + shared·sharedᵀ)⁻¹ right on the free clients, 0 elsewhere, by conjugate gradients.

        They stop where Q is not positive, which personal prices may have it: the step so far still leads downhill.
        """
        scale = np.where(free, 1 / (self.diagonal + bend + shared**2), 0.0)
        step = np.zeros_like(right)
        left = np.where(free, right, 0.0)
        direction = scaled = scale * left
        size = first = float(left @ scaled)
        for turn in range(CG_STEPS):
            if size <= 1e-26 * first:
                break
            image = np.where(free, self @ direction + bend * direction + (shared @ direction) * shared, 0.0)
            curve = float(direction @ image)
            if curve <= 0:
                return step if turn else direction
            step, left = step + size / curve * direction, left - size / curve * image
            scaled = scale * left
            before, size = size, float(left @ scaled)
            direction = scaled + size / before * direction
        return step


Noise = Callable[[Game, float, Array], tuple[float, Array, Array, Array]]  # H, −∂H, and H'' = diag + vector·vectorᵀ


def noise_of_each(game: Game, strength: float, x: Array) -> tuple[float, Array, Array, Array]:
    """H = strength·Σε/x, −∂H, and its curvature; who gives nothing makes no noise."""
    harm, inverse = strength * game.clients.noise_harm, np.divide(1.0, x, out=np.zeros_like(x), where=x > 0)
    steep = harm * inverse**2
    return float(harm @ inverse), steep, 2 * steep * inverse, np.zeros_like(x)


def noise_on_sum(game: Game, strength: float, x: Array) -> tuple[float, Array, Array, Array]:
    """H = strength·N²ε̄/X² with X = Σ(n/n̄)√x, −∂H, and its curvature, to which all clients contribute together."""
    (sizes, harm), inverse = pooled_sizes(game), np.divide(1.0, x, out=np.zeros_like(x), where=x > 0)
    roots, harm = sizes * np.sqrt(inverse), strength * harm
    effective = float(roots @ x)
    steep = harm / effective**3 * roots
    return harm / effective**2, steep, 0.5 * steep * inverse, np.sqrt(1.5 * harm) / effective**2 * roots


def minimise(
    game: Game,
    quadratic: Quadratic,
    strength: float,
    linear: Array,
    digits: Array,
    start: Array | None,
    noise: Noise = noise_of_each,
) -> Array:
    """Budgets within their bounds that minimise H(x) + ½xᵀQx + linearᵀx: projected Newton's steps with a line search.

    strength  of the noise H, which is that of each client's upload, or of the sum of all
    digits  the size of the terms that `linear` is the difference of: slopes are known to a share of it
    """
    low, high = game.clients.budget_min, game.clients.budget_max
    harm = np.where(high > 0, strength * game.clients.noise_harm, 0.0)
    noisy = harm > 0
    x = np.clip(np.zeros_like(harm) if start is None else start, low, high)
    x = np.where(noisy & (x <= 0), np.minimum(np.sqrt(harm / np.maximum(quadratic.diagonal, 1e-300)), high), x)

    def cost(y: Array, image: Array) -> float:
        return float(noise(game, strength, y)[0] + y @ (0.5 * image + linear))

    image = quadratic @ x
    here, worst, rounded = cost(x, image), np.inf, False
    for _ in range(MAX_STEPS):
        value, steep, bend, shared = noise(game, strength, x)
        slope = image + linear - steep
        allowed = ENOUGH * (np.abs(image) + digits + steep)
        held = ((x <= low) & (slope > -allowed)) | ((x >= high) & (slope < allowed))
        before, worst = worst, float((np.abs(slope) / np.maximum(allowed, 1e-300))[~held].max(initial=0.0))
        if worst <= 1 or (rounded and worst > 0.1 * before):
            break
        step = quadratic.solve(np.where(held, 0.0, -slope), ~held, bend, shared)
        slack = 1e-15 * float(value + np.abs(x) @ (np.abs(image) + digits))  # what rounding leaves of a cost
        length = 1.0
        while True:
            y = np.clip(np.where(noisy, np.maximum(x + length * step, 0.1 * x), x + length * step), low, high)
            turned = quadratic @ y
            there = cost(y, turned)
            if there <= here + slack or length < 1e-10:
                break
            length /= 2
        rounded = there > here - slack
        x, image, here = y, turned, there
    if worst * ENOUGH > ACCEPTABLE:
        raise NotConverged(f"budgets in their bounds settled only to {worst * ENOUGH:.2g} of their cost.", x, worst)
    return x


def personal_budgets(game: Game, round_index: int, start: Array | None = None) -> Array:
    """Budgets that minimise τ/t Σε/ρ + (1−τ) ρᵀ(2ABρ + b): the cheapest a server can do with one price each (eq. 21)
    where every budget_min is 0. Where sums open as a whole, their noise takes the place of the first term (eq. 35).

    A client gets the price 2a_i(Bρ)_i + b_i at which its budget is its best response; at a floor above 0 any lower
    price would do as well, which this cost does not know.
    """
    pay = 1 - game.accuracy_weight
    quadratic = vars(game).setdefault("_personal", Quadratic(game.loss, game.clients.quadratic_cost, pay, True))
    linear = pay * game.clients.linear_cost
    noise = noise_on_sum if game.opens_sums else noise_of_each
    return minimise(game, quadratic, game.accuracy_weight / round_index, linear, linear, start, noise)


def auction_budgets(near: Game, round_index: int, start: Array | None = None) -> Array:
    """Budgets at which bids meet asks in the double auction over one-hop exposure (model, eq. 30)."""
    strength = near.accuracy_weight / ((1 - near.accuracy_weight) * round_index)
    linear = near.loss.T @ near.clients.linear_cost
    return minimise(near, _welfare(near), strength, linear, linear, start)


def optimal_budgets(game: Game, reward_rate: float, start: Array | None = None) -> Array:
    """Budgets within their bounds at which all clients together gain most at a rate (model, eq. 25)."""
    cost = game.loss.T @ game.clients.linear_cost
    return minimise(game, _welfare(game), 0.0, cost - reward_rate, cost + reward_rate, start)


def _welfare(game: Game) -> Quadratic:
    kept: Quadratic = vars(game).setdefault("_welfare", Quadratic(game.loss, game.clients.quadratic_cost, 1.0, False))
    return kept


@dataclass(frozen=True, eq=False)
class Society(Followers):
    """Clients who answer a rate with what is best for all of them; `weights` are Pigouvian, which says the same."""

    @cached_property
    def line(self) -> Response:
        line = equilibrium_response(self.game, self.weights)
        # What reaches those who have no choice counts for the others, too, which Pigouvian weights do not know.
        return line if line.free.all() else replace(line, lowest_rate=np.inf, highest_rate=-np.inf)

    @cached_property
    def matrix(self) -> Array:
        matrix = _welfare(self.game).matrix
        return matrix / np.diag(matrix)[:, None]

    @cached_property
    def own(self) -> tuple[Array, Array]:
        diagonal = _welfare(self.game).diagonal
        return 1 / diagonal, (self.game.loss.T @ self.game.clients.linear_cost) / diagonal

    def segment(self, rate: float, budgets: Array) -> Path:
        """None: on networks too large for a path, optima are found to fewer digits than a line needs."""
        return no_segments(self.game.num_clients)

    def answer(self, rate: float, start: Array | None = None, tolerance: float = 1e-12) -> Array:
        return optimal_budgets(self.game, rate, start)

    def wish(self, rate: float, budgets: Array) -> Array:
        quadratic = _welfare(self.game)
        return rate * self.own[0] - self.own[1] - (quadratic @ budgets / quadratic.diagonal - budgets)


def society_of(game: Game) -> Society:
    """All clients of a game together."""
    return Society(game, pigouvian_weights(game))


def pigouvian_weights(game: Game) -> Array:
    """c = B⁻ᵀ1 (model, eq. 20): paid r·c_i, everybody does what all together would want done."""
    return game.loss.T.solve(np.ones(game.num_clients))
