"""Sums that open only as a whole: weights bought by unequal budgets, noise made of shares, and what each client pays.

The server sees Y = Σ θ_i x_i + noise of variance V in every parameter, and no single θ_i x_i. Where a neighbouring data
set moves x_i by at most Δ_i in ℓ2, client i spends ρ_i = θ_i² Δ_i² / (2V): all share the noise, and a budget is bought
by a weight. A neighbouring client stays and sends 0 (zero-out) or something else (replace-one); it never leaves, as its
share of the noise would leave with it.

Values and noise are whole numbers of steps on a public grid g and are added modulo 2⁶⁴. Rounding to the nearest step
moves two neighbouring vectors apart by at most g√p further. Each share is discrete Gaussian noise; their sum is nearly
so, and the difference costs at most τ√p (Kairouz, Liu & Steinke 2021, Prop. 14). Together a client spends
ρ_i = (θ_i Δ_i/√V + margin)²/2, with margin = (g/√V + τ)√p.

Cohorts join in turns, a client in every b-th sum. White noise z of variance V then makes, in units of √V, the noise

    n_t = (z_t - c_1 n_{t-1} - ... - c_{b-1} n_{t-b+1}) / c_0

of the t-th sum, or n = C⁻¹z with the banded Toeplitz matrix C of c_0 ... c_{b-1} (Choquette-Choo et al. 2023,
arXiv:2306.08153; c from Kalinin & Lampert 2024, arXiv:2405.13763). Sums x + n tell what Cx + z tells. Columns of C at
two turns of a client are disjoint, and |c| = 1: together its turns cost Σ ρ_i with ρ_i as above, each with all b sums
in which it shows. Rounding a vector, and b - 1 times what is taken back, makes the margin 1 + √(b-1) times as large.

Nobody has to know noise to take it back: Σ c_s n_{t-s} = Σ c_s (x + n)_{t-s} - Σ c_s x_{t-s}, the first of which is
public. So in a secure sum the clients of the b - 1 rounds before send their vectors once more, times c_s, and all noise
is fresh. Who does not is missed in the sum, at no cost in privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mppfl.arrays import Array, BoolArray, read_only, require, require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy.noise import (
    LARGEST_WHOLE_NUMBER,
    NOT_EXACT,
    STEPS_PER_STD,
    Floats,
    discrete_steps,
    grid_of,
    whole_numbers,
)
from mppfl.privacy.protection import LocalWork, Protection
from mppfl.privacy.release import ReleaseCost, clip_and_count

GRID_IN_STDS = 1 / STEPS_PER_STD["gaussian"]  # largest g/√V that `grid_of_sum` gives
LEAST_STEPS = 4.0  # grid steps per standard deviation of one share
LARGEST_SUM = 2.0**62  # in grid steps: half of what does not wrap around


class SharedNoise(NamedTuple):
    """Weights of one sum, the variance of its noise per parameter, and what each client really spends of its cap."""

    weights: Array
    noise_variance: float
    used: Array


class OpenedSum(NamedTuple):
    """What the server reads, and what is public about it.

    total            Σ θ_i x_i over those who arrived, on the grid, with noise
    arrived          who sent its vector
    noise_variance   of the fresh noise in each entry of `total`: k shares, of k who arrived
    hidden_variance  of what those who collude cannot subtract: k - colluding shares; at least the variance asked for
    """

    total: Array
    arrived: BoolArray
    noise_variance: float
    hidden_variance: float


def shared_noise_weights(
    caps: ArrayLike,
    sensitivities: ArrayLike,
    wished: ArrayLike,
    dispersion: float,
    num_parameters: int,
    *,
    margin: float = 0.0,
    opened_over_hidden: float = 1.0,
) -> SharedNoise:
    """The weights and the noise with which a weighted mean is nearest to the one that was wished for.

    They minimise dispersion·Σ(θ_i - θ⁰_i)² + p·V over Σθ_i = 1 and (θ_i Δ_i/√V + margin)²/2 ≤ ρ_i, which is solved by
    θ_i = min(θ⁰_i + m, c_i) with c_i = √V·(√(2ρ_i) - margin)/Δ_i. What a client does not need, it does not spend.

    caps                ρ_i, at most; 0 for who takes no part
    sensitivities       Δ_i of the vector before it is weighted: the clip norm for zero-out, twice it for replace-one
    wished              θ⁰_i up to a common factor, for instance the numbers of examples
    dispersion          public guess of the mean squared ℓ2 distance of a client's vector from the mean of all
    margin              of `rounding_margin`
    opened_over_hidden  noise that opens over noise that hides, n/(n - dropouts - colluding) where all n arrive
    """
    rho = read_only(caps, "caps")
    delta = read_only(sensitivities, "sensitivities", length=len(rho))
    wish = read_only(wished, "wished", length=len(rho))
    require(rho, "caps", (rho >= 0) & (rho < math.inf), "a finite budget of at least 0")
    require(delta, "sensitivities", (delta > 0) & (delta < math.inf), "finite and above 0")
    require(wish, "wished", (wish >= 0) & (wish < math.inf), "finite and at least 0")
    spread = require_number(dispersion, "dispersion", 0.0, math.inf, open_ends=False)
    noise_price = require_count(num_parameters, "num_parameters") * opened_over_hidden
    reach = np.maximum(np.sqrt(2 * rho) - margin, 0.0) / delta  # largest weight per unit of noise
    inside = reach > 0
    if not inside.any() or not wish[inside].sum() > 0:
        raise BadInput(
            f"no client with a wish has a budget above {margin**2 / 2:.3g}, which rounding alone would spend. Give "
            "larger budgets, or train fewer parameters."
        )
    share = wish[inside] / wish[inside].sum()
    std = _best_std(share, reach[inside], spread, noise_price)
    weights, used = np.zeros_like(rho), np.zeros_like(rho)
    weights[inside] = _below_limits(share, std * reach[inside])[0]
    taking_part = weights > 0
    exact = (weights * delta / std + margin) ** 2 / 2
    used[taking_part] = np.minimum(exact, rho)[taking_part]  # the two differ by floating-point rounding at most
    return SharedNoise(weights, std * std, used)


def _best_std(wish: Array, reach: Array, spread: float, noise_price: float) -> float:
    """√V where the slope of the objective, which grows with √V, passes 0: its envelope has only the limits' prices."""
    from scipy.optimize import brentq

    least, most = 1 / reach.sum(), float(np.max(wish / reach))
    if math.isinf(spread) or most <= least:
        return float(max(least, most))

    def slope(std: float) -> float:
        _, level = _below_limits(wish, std * reach)
        return noise_price * std - spread * float(reach @ np.maximum(wish + level - std * reach, 0.0))

    lowest = least * (1 + 1e-12)  # below, rounding may leave no weights that sum to 1
    if slope(lowest) >= 0:
        return float(lowest)
    return float(brentq(slope, lowest, most, xtol=1e-14 * most, rtol=1e-13))


def _below_limits(wish: Array, limits: Array) -> tuple[Array, float]:
    """min(θ⁰ + m, limits) and the m that makes it sum to 1: those with the least room reach their limits first."""
    room = limits - wish
    order = np.argsort(room)
    settled = np.concatenate(([0.0], np.cumsum((limits - wish)[order])[:-1]))
    levels = (1 - wish.sum() - settled) / np.arange(len(wish), 0, -1)
    fits = levels <= room[order]
    level = float(levels[np.argmax(fits)]) if fits.any() else float(room.max())
    return np.minimum(wish + level, limits), level


def banded_square_root(cohorts: int) -> Array:
    """c_0 ... c_{b-1}: the first b Taylor coefficients of (1-x)^(-1/2), scaled to length 1."""
    steps = np.arange(1, cohorts)
    root = np.cumprod(np.append(1.0, (2 * steps - 1) / (2 * steps)))
    return np.asarray(root / np.linalg.norm(root))


def noise_growth(cohorts: int, num_rounds: int) -> float:
    """Standard deviation of the noise of the round of this number over √V: the length of its row of C⁻¹.

    Rows after ten times the band are longer by less than 10⁻¹² of that.
    """
    from scipy.linalg import solve_toeplitz

    size = min(num_rounds, 10 * cohorts)
    column, above, first = np.zeros(size), np.zeros(size), np.eye(1, size)[0]
    column[:cohorts] = banded_square_root(cohorts)[:size]
    return float(np.linalg.norm(solve_toeplitz((column, above), first)))


def grid_of_sum(noise_variance: float) -> float:
    """g: the largest power of two that fits 2²⁰ times into √V. It depends on the noise alone."""
    return grid_of(math.sqrt(noise_variance), "gaussian")


def rounding_margin(num_parameters: int, shares: int, grid_in_stds: float = GRID_IN_STDS) -> float:
    """What rounding and the discreteness of the shares take of every client's √(2ρ): (g/√V + τ)√p.

    shares        that hide: who starts, less drop-outs and colluders
    grid_in_stds  g/√V, with s = √(V/shares)/g steps in the standard deviation of a share

    τ = 10 Σ_{k<shares} exp(-2π²s²k/(k+1)) ≤ 10 (shares - 1) exp(-π²s²).
    """
    steps = 1 / (grid_in_stds * math.sqrt(require_count(shares, "shares")))
    if steps < LEAST_STEPS:
        raise BadInput(f"a share of the noise is {steps:.3g} grid steps; use a grid with at least {LEAST_STEPS:g}.")
    tau = 10 * (shares - 1) * math.exp(-((math.pi * steps) ** 2))
    return (grid_in_stds + tau) * math.sqrt(require_count(num_parameters, "num_parameters"))


def hiding_shares(num_clients: int, dropouts: int, colluding: int) -> int:
    """n - d - c, the shares of noise that hide a client when as many as may drop out and collude; at least 1."""
    shares = num_clients - require_count(dropouts, "dropouts", 0) - require_count(colluding, "colluding", 0)
    if shares < 1:
        raise BadInput(
            f"{num_clients} clients less {dropouts} dropouts and {colluding} colluding leave nobody whose noise hides. "
            "Allow fewer, or have more clients."
        )
    return shares


class SecureSum:
    """One sum that opens only as a whole, or whose noise the server adds: clips each vector, weights it, rounds it to
    the grid, adds its share of the noise, and sums modulo 2⁶⁴. Holds one vector and the sum.

    weights     θ_i; a client of weight 0 takes no part
    variance    V that stays hidden: each share has V/(n - d - c) of n who take part; the server's noise is one share.
                All over c_0² where there are cohorts
    past        noise of the rounds before, the last one first, in units of their √V; after `open` what the next sum is
                to be given. As secret as the vectors
    rng         a simulation, which protects nobody, draws the sum of the shares at once; its distribution differs by
                less than 10⁻⁶⁰. Without it each share comes from the operating system's generator
    grid        g; left out, the one that `noise_of_sum` counts with
    """

    def __init__(
        self,
        protection: Protection,
        weights: ArrayLike,
        variance: float,
        num_parameters: int,
        rng: np.random.Generator | None = None,
        grid: float | None = None,
        past: Sequence[Array] = (),
    ) -> None:
        self.weights = read_only(weights, "weights")
        require(self.weights, "weights", (self.weights >= 0) & (self.weights < math.inf), "finite and at least 0")
        num_clients = int((self.weights > 0).sum())
        self.protection, self.rng = protection, rng
        self._total: NDArray[np.int64] = np.zeros(protection.num_entries(num_parameters), dtype=np.int64)
        self._noise = np.zeros_like(self._total)
        self.shares = shares_of(protection, num_clients)
        self.variance, self.grid = variance, grid_of_sum(variance) if grid is None else grid
        self.band, self.past = banded_square_root(protection.cohorts), tuple(past)
        self.share_std = math.sqrt(variance / self.shares) / self.grid / self.band[0]  # in grid steps
        if self.share_std < LEAST_STEPS:
            raise BadInput(f"a share of the noise is {self.share_std:.3g} grid steps; have fewer clients in a sum.")
        _require_room(self.weights, protection, self.grid)
        reach = self.weights.sum() * protection.longest / self.grid + 40 * self.share_std * num_clients
        if reach >= LARGEST_SUM:
            raise BadInput(f"the sum may reach {reach:.3g} grid steps, beyond 2^62. Use smaller budgets.")
        self.arrived = np.zeros(len(self.weights), dtype=np.bool_)

    def add(self, client: int, vector: Floats) -> None:
        """Adds the message of the client of this number, clipped and with its share of the noise."""
        weight = float(self.weights[client])
        if weight == 0 or self.arrived[client]:
            raise BadInput(f"client number {client} has no part in this sum, or has sent its vector already.")
        # int64 wraps around, as sums modulo 2⁶⁴ do.
        self._total += _in_steps(vector, weight, self.protection, self.grid, client).astype(np.int64)
        self.add_nothing(client)

    def add_nothing(self, client: int) -> None:
        """Adds the client's share of the noise alone: the message of one that is not sampled."""
        if self.rng is None and self.protection.trust == "secure_sum":  # else all noise is drawn in the end
            self._noise += discrete_steps(self._noise.size, self.share_std).astype(np.int64)
        self.arrived[client] = True

    def open(self) -> OpenedSum:
        """What the server reads. Raises where too few arrived: no sum opens, and nothing is spent."""
        colluding, from_server = self.protection.colluding, self.protection.trust == "server"
        count, needed = int(self.arrived.sum()), self.shares + self.protection.colluding
        if count < needed:
            raise BadInput(
                f"{count} clients arrived, {needed} are needed: no sum opens, and nothing is spent. Allow more "
                "dropouts, at the price of more noise."
            )
        opened = 1 if from_server else count
        if from_server or self.rng is not None:
            noise = discrete_steps(self._noise.size, self.share_std * math.sqrt(opened), self.rng)
            self._noise = noise.astype(np.int64)
        std_in_steps = math.sqrt(self.variance) / self.grid
        for c, before in zip(self.band[1:], self.past, strict=False):
            self._noise -= np.rint(c / self.band[0] * std_in_steps * before).astype(np.int64)
        self.past = (self._noise / std_in_steps, *self.past)[: len(self.band) - 1]
        share = self.variance / self.shares / self.band[0] ** 2
        return OpenedSum(
            np.asarray((self._total + self._noise) * self.grid, dtype=np.float64),
            self.arrived,
            noise_variance=opened * share,
            hidden_variance=(opened - colluding) * share,
        )


def opened_sum(
    protection: Protection,
    noise: SharedNoise,
    vectors: Sequence[Floats | None],
    num_parameters: int,
    rng: np.random.Generator | None,
    past: Sequence[Array] = (),
) -> tuple[Array, tuple[Array, ...]]:
    """The sum of clients' vectors as the server reads it, and the noise that the next sum is to be given.

    vectors  one of each client; None for noise alone
    """
    total = SecureSum(protection, noise.weights, noise.noise_variance, num_parameters, rng, past=past)
    for client in np.flatnonzero(noise.weights > 0).tolist():
        vector = vectors[client]
        if vector is None:
            total.add_nothing(client)
        else:
            total.add(client, vector)
    return total.open().total, total.past


def shares_of(protection: Protection, num_clients: int) -> int:
    """Shares of the noise that hide: n - d - c of the clients', or the server's one."""
    if protection.trust == "server":
        return 1
    return hiding_shares(num_clients, protection.dropouts, protection.colluding)


def margin_of(protection: Protection, num_parameters: int, num_clients: int) -> float:
    """`rounding_margin` of a sum of so many clients, and of those after it in which its vectors show."""
    margin = rounding_margin(protection.num_entries(num_parameters), shares_of(protection, num_clients))
    return margin * (1 + math.sqrt(protection.cohorts - 1))


def noise_of_sum(
    protection: Protection,
    caps: ArrayLike,
    works: Sequence[LocalWork],
    num_parameters: int,
    wished: ArrayLike,
    dispersion: float = 0.0,
) -> SharedNoise:
    """Weights, noise and what each client spends of its cap in one sum of these clients (`shared_noise_weights`)."""
    shares = shares_of(protection, len(works))
    opened = 1 if protection.trust == "server" else len(works)
    noise = shared_noise_weights(
        caps,
        [protection.sensitivity(work) for work in works],
        wished,
        dispersion,
        protection.num_entries(num_parameters),
        margin=margin_of(protection, num_parameters, len(works)),
        opened_over_hidden=opened / shares,
    )
    _require_room(noise.weights, protection, grid_of_sum(noise.noise_variance))
    return noise


def noise_of_sampled_sum(
    protection: Protection, multipliers: ArrayLike, works: Sequence[LocalWork], num_parameters: int
) -> SharedNoise:
    """Weights and noise of a sum of sampled clients, whose noise multipliers √V/(θ_i Δ_i) are given."""
    wished = np.asarray(multipliers, dtype=np.float64)
    delta = np.array([protection.sensitivity(work) for work in works])
    margin = margin_of(protection, num_parameters, len(works))
    reach = np.maximum(1 / wished - margin, 0.0) / delta
    if not reach.any():
        raise BadInput(f"rounding alone costs more than noise of {wished.min():.3g} times the sensitivity allows.")
    return SharedNoise(reach / reach.sum(), 1 / reach.sum() ** 2, np.where(reach > 0, wished, 0.0))


def sum_cost(
    protection: Protection, client: str, spent: float | None, num_clients: int, num_parameters: int,
    noise_multiplier: float | None = None,
) -> ReleaseCost:  # fmt: skip
    """What one client pays for its part in a sum: a budget, or sampled noise.

    num_clients  in all: of b cohorts, together b - 1 more at most have shares in the b sums in which its part shows
    """
    drawn = 3 * (num_clients + protection.cohorts - 1) * protection.num_entries(num_parameters) * NOT_EXACT
    return ReleaseCost(
        client,
        protection.name,
        protection.unit,
        protection.adjacency or "replace_one",
        budget=spent,
        noise_multiplier=noise_multiplier if spent is None else 1 / math.sqrt(2 * spent),
        noise_kind="simulated" if protection.is_simulated else "discrete",
        extra_delta=0.0 if protection.is_simulated else min(1.0, drawn),
        sampling_rate=protection.client_rate if spent is None else None,
        num_steps=1 if spent is None else None,
        in_sum=True,
    )


def _require_room(weights: Array, protection: Protection, grid: float) -> None:
    """Raises where a vector of the largest weight may have more steps than can be counted, whatever it holds."""
    if float(weights.max()) * protection.longest >= LARGEST_WHOLE_NUMBER * grid / 2:
        raise BadInput(
            f"the budgets buy noise on a grid of {grid:.3g}, too fine for vectors of length {protection.longest:g}. "
            "Use smaller budgets, or infinite ones for no noise."
        )


def _in_steps(vector: Floats, weight: float, protection: Protection, grid: float, client: int) -> Array:
    """The clipped, weighted vector in whole grid steps."""
    try:
        clipped = clip_and_count(vector, protection)
    except BadInput as cause:
        raise BadInput(f"The vector of client number {client} cannot be added. {cause}") from cause
    return whole_numbers(clipped.astype(np.float64) * weight, grid)
