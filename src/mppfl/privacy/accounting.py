"""From releases to (ε, δ): spent zCDP budgets by three methods, Poisson-sampled steps by their loss distributions.

    exact  the Gaussian mechanism's own curve; only where every release was Gaussian      4.3772 at ρ = 0.5, δ = 1e-5
    rdp    the best Rényi order, valid for any ρ-zCDP release                             4.7284
    zcdp   ρ + 2√(ρ ln 1/δ), the formula of the textbook                                  5.2985

Budgets add over rounds, also when each is chosen from the public transcript of those before. Poisson-sampled steps have
no useful ρ: their privacy losses are composed as distributions, on a grid that is coarsened until they fit, or bounded
by RDP. Every answer is an upper bound: where a search ends between two numbers, the larger is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from mppfl.arrays import Array, read_only, require, require_count, require_number
from mppfl.errors import BadInput

LARGEST_CERTAIN_SHIFT = 9.0  # Φ(9) = 1 in double precision, so no δ below 1 lies further out
NODES, WEIGHTS = np.polynomial.legendre.leggauss(7)
LARGEST_EXPONENT = 700.0  # of e in doubles, or nearly
NEAR, MOST_TURNS = 1e-10, 40  # of a search for ε from below
FINEST_GRID = 1e-4  # step of a privacy loss, in nats
MOST_LOSS_POINTS = 3e5  # grid points of all loss distributions of a history together: some 10 s and 100 MB
MOST_KINDS = 24  # different kinds of Poisson-sampled steps in one history that are composed as distributions
ALIKE = 1.01  # kinds are taken together whose noise and rate differ by less than this factor, where there are too many
STEPS_TO_EPSILON = 2e4  # of the grid, where there is room; at least `FEWEST_STEPS` after coarsening
FEWEST_STEPS = 200
STEPS_TO_TARGET = 2e3  # of a calibration's grid: ε comes out at most some thousandths larger than on the finest
SPARE = 0.007  # of a target, that a calibration may leave unused
MOST_NOISES = 12  # different ones in a calibrated plan: each is a loss distribution more to compose
FINEST_RATIO = math.log(2) / 4  # of noises that are told apart, as a logarithm
LEAST_TARGET, MOST_TARGET = 1e-6, 1e3  # ε to which noise is calibrated
ORDERS = np.array([*range(2, 65), 80, 96, 128, 192, 256, 512, 1024])  # of Rényi divergence
DELTA_OF_ORDERS = {1.0: 3 / 4, 3 / 4: 1 / 12, 1 / 2: 1 / 12, 1 / 4: 1 / 12}  # of a filter: part of its best order, of δ
DELTA_OF_NOISE = 0.01  # of a filter's δ, for noise that is only near the one meant


@overload
def epsilon(rho: float, delta: float, method: str = ...) -> float: ...
@overload
def epsilon(rho: Array, delta: ArrayLike, method: str = ...) -> Array: ...
def epsilon(rho: Any, delta: Any, method: str = "exact") -> Any:
    """dp_epsilon at `delta` of a total budget ρ, elementwise, by one of the three methods."""
    if method not in METHODS:
        raise BadInput(f"method={method!r} is not known. Known: {', '.join(METHODS)}.")
    try:
        budgets, deltas = np.broadcast_arrays(np.asarray(rho, np.float64), np.asarray(delta, np.float64))
    except (TypeError, ValueError) as cause:
        raise BadInput(
            f"rho and delta must be numbers of matching shapes, got {rho!r:.60} and {delta!r:.60}."
        ) from cause
    wrong = ~(budgets >= 0)
    if wrong.any():
        raise BadInput(f"rho={budgets[wrong].flat[0]:g} must be a budget of at least 0.")
    wrong = ~((deltas > 0) & (deltas < 1))
    if wrong.any():
        raise BadInput(f"dp_delta={deltas[wrong].flat[0]:g} must lie between 0 and 1; 1e-5 is usual.")
    answer = METHODS[method](np.array(budgets).ravel(), np.array(deltas).ravel())
    return answer.reshape(budgets.shape) if budgets.shape else float(answer[0])


def gaussian_epsilon(rho: float, delta: float) -> float:
    """The exact dp_epsilon of Gaussian releases that cost ρ together."""
    return epsilon(rho, delta, "exact")


def _by_textbook(budgets: Array, deltas: Array) -> Array:
    """ρ + 2√(ρ ln 1/δ) (Bun & Steinke 2016, Prop. 1.3), elementwise."""
    with np.errstate(over="ignore"):
        return np.asarray(budgets + 2 * np.sqrt(budgets) * np.sqrt(-np.log(deltas)))


def _by_best_order(budgets: Array, deltas: Array) -> Array:
    """min over orders a > 1 of aρ + ln(1/(aδ))/(a-1) + ln(1-1/a) (Canonne, Kamath & Steinke 2020, Prop. 12).

    With x = a - 1 its slope is ρ - (ln 1/δ - ln(1+x))/x², which changes sign once: the best order is found exactly.
    """
    answer = np.where(np.isinf(budgets), np.inf, 0.0)
    inside = (budgets > 0) & np.isfinite(budgets)
    r, log_inverse = budgets[inside], -np.log(deltas[inside])
    with np.errstate(over="ignore", under="ignore"):
        root, root_log = np.sqrt(r), np.sqrt(log_inverse)
        low = np.log(2 * log_inverse / (1 + np.hypot(1.0, 2 * root * root_log)))  # root of ρx² + x = ln 1/δ
        high = np.log(np.minimum(root_log / root, np.expm1(log_inverse)))
        low, high = np.minimum(low, high), np.maximum(low, high)

        def is_beyond(log_x: Array) -> Any:
            x = np.exp(log_x)
            return (root * x) ** 2 + np.log1p(x) > log_inverse

        x = np.exp(_bisect(is_beyond, low, high))
        least = r * (1 + x) + (log_inverse - np.log1p(x)) / x - np.log1p(1 / x)
    answer[inside] = np.maximum(least, 0.0)
    return answer


def _by_gaussian_curve(budgets: Array, deltas: Array) -> Array:
    """The exact curve of the Gaussian mechanism (Balle & Wang 2018, Thm. 8), μ = √(2ρ).

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) = φ(t) (R(t) - R(t+μ)) with t = ε/μ - μ/2 and R Mills' ratio: in this form
    neither e^ε overflows nor two nearly equal numbers are subtracted.
    """
    from scipy.special import erf, ndtri

    answer = np.where(np.isinf(budgets), np.inf, 0.0)
    mu = math.sqrt(2) * np.sqrt(budgets)
    inside = (erf(mu / math.sqrt(8)) > deltas) & np.isfinite(budgets)  # else ε = 0 suffices
    mu, goals = mu[inside], deltas[inside]
    start = -np.minimum(mu / 2, LARGEST_CERTAIN_SHIFT)
    width = np.maximum(-ndtri(goals) - start, 0.0)  # δ(ε) < Φ(-t)
    goal = np.log(goals)

    def is_beyond(step: Array) -> Any:
        return _log_delta(start + step, mu) < goal

    step = _bisect(is_beyond, np.zeros_like(width), width)
    with np.errstate(over="ignore"):
        answer[inside] = mu * ((mu / 2 + start) + step)
    return answer


METHODS: dict[str, Callable[[Array, Array], Array]] = {
    "exact": _by_gaussian_curve,
    "zcdp": _by_textbook,
    "rdp": _by_best_order,
}


def _log_delta(t: Array, mu: Array) -> Array:
    """ln φ(t) (R(t) - R(t+μ)); for small μ the difference is an integral of -R'(s) = 1 - sR(s)."""
    from scipy.special import erfcx

    def mills(s: Array) -> Array:
        return np.asarray(math.sqrt(math.pi / 2) * erfcx(s / math.sqrt(2)))

    difference = np.empty_like(t)
    small = mu < 0.5
    s = t[small, None] + mu[small, None] * (NODES + 1) / 2
    difference[small] = mu[small] / 2 * ((1 - s * mills(s)) @ WEIGHTS)
    difference[~small] = mills(t[~small]) - mills(t[~small] + mu[~small])
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(difference) - t**2 / 2 - math.log(2 * math.pi) / 2)


def _bisect(is_beyond: Callable[[Array], Any], low: Array, high: Array) -> Array:
    """The upper end of an interval, halved until nothing lies between its ends."""
    for _ in range(80):
        middle = low + (high - low) / 2
        beyond = is_beyond(middle)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return high


def to_dp_event(
    *,
    budget: float | None = None,
    noise_multiplier: float | None = None,
    sampling_rate: float = 1.0,
    num_steps: int = 1,
    is_gaussian: bool = True,
) -> Any:
    """A release as an event of dp-accounting, for an accountant with ADD_OR_REMOVE_ONE.

    A budget ρ becomes GaussianDpEvent(1/√(2ρ)): noise over sensitivity, whatever the adjacency was, so the accountant
    must not double it again for REPLACE_ONE. Without `is_gaussian` it becomes a ZCDpEvent, which only RDP understands.
    """
    import dp_accounting  # type: ignore[import-untyped, unused-ignore]

    if (budget is None) == (noise_multiplier is None):
        raise BadInput("give either a budget or a noise_multiplier.")
    if budget is not None:
        rho = require_number(budget, "budget", 0.0, math.inf, open_ends=False)
        if math.isinf(rho):
            return dp_accounting.NonPrivateDpEvent()
        if rho == 0:
            return dp_accounting.NoOpDpEvent()
        return dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho)) if is_gaussian else dp_accounting.ZCDpEvent(rho)
    noise, rate, steps = require_sampling(noise_multiplier, sampling_rate, num_steps)
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return dp_accounting.SelfComposedDpEvent(event, steps) if steps > 1 else event


def added_delta(dp_epsilon: Array | float, extra: Array | float) -> Array:
    """δ that noise adds by being `extra` in total variation from the noise meant: (1 + e^ε) · extra.

    What is (ε, δ)-indistinguishable stays (ε, δ + that)-indistinguishable when both sides move so far.
    """
    return np.asarray((1 + np.exp(np.minimum(dp_epsilon, LARGEST_EXPONENT))) * extra)


def epsilon_with_extra(of_delta: Callable[[Array], Array], dp_delta: float, extra: Array) -> Array:
    """dp_epsilon of each at `dp_delta` in all, where noise was drawn from a distribution that is near the one meant.

    of_delta  dp_epsilon of each with the noise that was meant, at a δ for each
    extra     how far in total variation, over all releases of each

    The least ε at which both fit into `dp_delta` is found from below; it is infinite where there is none.
    """
    if not extra.any():
        return of_delta(np.full(len(extra), dp_delta))
    bound = np.zeros(len(extra))
    for _ in range(MOST_TURNS):
        left = dp_delta - added_delta(bound, extra)
        fits = left > 0
        needed = np.where(fits, of_delta(np.where(fits, left, dp_delta)), np.inf)
        if (needed <= bound * (1 + NEAR)).all():
            return np.where(needed > bound, needed * (1 + 10 * NEAR), bound)
        bound = needed
    return np.where(extra > 0, np.inf, bound)  # δ is all but used up: another hair of ε asks for more of it


def composed_epsilon(events: Iterable[tuple[Any, int]], delta: float, *, grid: float = FINEST_GRID) -> float:
    """dp_epsilon of (event, count) pairs together, through their privacy loss distributions.

    `grid` is the step of the loss, in nats; a coarser one is quicker and gives a larger answer. Costs about a second.
    """
    require_number(delta, "dp_delta", 0.0, 1.0)
    return float(_composed(events, grid).get_epsilon(delta))


def _composed(events: Iterable[tuple[Any, int]], grid: float) -> Any:
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=grid)
    for event, count in events:
        if not accountant.supports(event):
            raise BadInput(f"{type(event).__name__} has no privacy loss distribution; use the method rdp.")
        accountant.compose(event, count)
    return accountant


def history_epsilon(
    sampled: Iterable[tuple[float, float, int]], delta: float, *, budget: float = 0.0, by_orders_alone: bool = False,
    is_gaussian: bool = True,
) -> float:  # fmt: skip
    """dp_epsilon of Poisson-sampled steps of several kinds and releases that cost `budget`, all together.

    sampled  (noise_multiplier, sampling_rate, num_steps) of each kind; the same kind may come more than once

    By privacy loss distributions. Their grid is coarsened until they have at most `MOST_LOSS_POINTS` points together,
    and stays below 1/`FEWEST_STEPS` of what RDP says. Of more than `MOST_KINDS` kinds those within 1 % of each other
    count as one, with the least noise and the largest rate among them. Where that does not do, the answer is RDP's. So
    it takes seconds, and every answer is an upper bound.
    `by_orders_alone` stops at RDP's answer: looser by some per cent, in milliseconds. So it does where `budget` is not
    of Gaussian releases alone.
    """
    require_number(delta, "dp_delta", 0.0, 1.0)
    kinds, rho, in_all = _kinds_of(sampled, budget)
    if not is_gaussian:
        return min(epsilon(in_all, delta, "rdp"), _rdp_epsilon(kinds, rho, delta))
    unsampled = gaussian_epsilon(in_all, delta)
    if not kinds or unsampled == 0 or math.isinf(rho):
        return unsampled
    if rho == 0 and math.fsum(rate * steps for (_, rate), steps in kinds.items()) <= delta:
        return 0.0  # with probability 1 - δ the record is never drawn at all
    by_orders = min(unsampled, _rdp_epsilon(kinds, rho, delta))
    if by_orders_alone or delta < 1e-12:
        return by_orders
    least, grid = _grids(kinds, rho, delta, by_orders)
    if math.isinf(grid):
        return by_orders
    events = _events(kinds, rho)
    composed = min(by_orders, composed_epsilon(events, delta, grid=grid))
    finer = max(least, composed / STEPS_TO_EPSILON)
    if finer < grid / 4:  # RDP had overstated the scale
        composed = min(composed, composed_epsilon(events, delta, grid=finer))
    return composed


def history_deltas(
    sampled: Iterable[tuple[float, float, int]], losses: Array, *, budget: float = 0.0, delta: float = 1e-6
) -> Array:
    """δ(ε) at each of these losses ε of such a history: by its loss distribution, or as if nothing had been sampled.

    delta  least δ that matters, for the grid of the distribution
    """
    kinds, rho, in_all = _kinds_of(sampled, budget)
    mu = math.sqrt(2 * in_all)
    if mu == 0 or math.isinf(mu):
        return np.full(len(losses), float(mu > 0))
    shift = losses / mu - mu / 2
    inside = np.maximum(shift, -LARGEST_CERTAIN_SHIFT)
    deltas = np.where(shift < inside, 1.0, np.exp(_log_delta(inside, np.full(len(losses), mu))))
    by_orders = min(gaussian_epsilon(in_all, delta), _rdp_epsilon(kinds, rho, delta)) if kinds else 0.0
    grid = _grids(kinds, rho, delta, by_orders)[1] if by_orders > 0 else math.inf
    if math.isinf(grid):
        return deltas
    return np.asarray(np.minimum(deltas, _composed(_events(kinds, rho), grid).get_delta(losses)))


def _kinds_of(
    sampled: Iterable[tuple[float, float, int]], budget: float
) -> tuple[dict[tuple[float, float], int], float, float]:
    """Steps by noise and rate, not too many kinds of them; ρ of what was not sampled; ρ if nothing had been."""
    rho = require_number(budget, "budget", 0.0, math.inf, open_ends=False)
    kinds: dict[tuple[float, float], int] = {}
    for kind in sampled:
        noise, rate, steps = require_sampling(*kind)
        if rate == 1:
            rho += _half_inverse_square(noise) * steps
        else:
            kinds[noise, rate] = kinds.get((noise, rate), 0) + steps
    in_all = rho + math.fsum(_half_inverse_square(noise) * steps for (noise, _), steps in kinds.items())
    return (kinds if len(kinds) <= MOST_KINDS else _taken_together(kinds)), rho, in_all


def _grids(
    kinds: dict[tuple[float, float], int], rho: float, delta: float, scale: float, steps: float = STEPS_TO_EPSILON
) -> tuple[float, float]:
    """The finest affordable grid of losses, and the one to take for an ε of about `scale`; infinite for none."""
    if len(kinds) > MOST_KINDS or sum(kinds.values()) > 10**7 or min(noise for noise, _ in kinds) <= 0.05:
        return math.inf, math.inf
    one_step = [gaussian_epsilon(_half_inverse_square(noise), min(delta, 1e-10)) for noise, _ in kinds]
    least = max(FINEST_GRID, (math.fsum(one_step) + gaussian_epsilon(rho, min(delta, 1e-10))) / MOST_LOSS_POINTS)
    grid = max(least, scale / steps)
    if least > max(FINEST_GRID, scale / FEWEST_STEPS) or min(one_step) < 10 * grid:
        return least, math.inf
    return least, grid


def _events(kinds: dict[tuple[float, float], int], rho: float) -> list[tuple[Any, int]]:
    """The history as (event of dp-accounting, count)."""
    steps = [(to_dp_event(noise_multiplier=noise, sampling_rate=rate), kinds[noise, rate]) for noise, rate in kinds]
    return [*steps, (to_dp_event(budget=rho), 1)] if rho > 0 else steps


def poisson_noise_of_plan(budgets: ArrayLike, sampling_rate: float, num_steps: int, delta: float) -> Array:
    """Noise σ/C of the Poisson-sampled steps of each round, calibrated for the whole plan of one client at once.

    The plan ends at most at the exact dp_epsilon of Gaussian releases that cost Σρ together, and within 1 % of it where
    a loss distribution tells it. Noise of a round is in proportion to 1/√ρ, rounded so that at most `MOST_NOISES` kinds
    occur. Takes about a second; the same plan again takes no time.

    budgets    ρ of each round, as for Gaussian releases; 0 where the client takes no part, with 0 for its noise, too
    num_steps  steps in each round, each with this `sampling_rate`

    Raises BadInput where a budget is infinite, or Σρ stands for an ε that noise cannot be calibrated to.
    """
    rhos = read_only(budgets, "budgets")
    require(rhos, "budgets", (rhos >= 0) & np.isfinite(rhos), "finite and at least 0")
    require_number(delta, "dp_delta", 0.0, 1.0)
    _, rate, steps = require_sampling(1.0, sampling_rate, num_steps)
    noises = np.zeros(rhos.shape)
    taking_part = rhos > 0
    if taking_part.any():
        logs = np.log(rhos[taking_part]) / 2
        width = max(FINEST_RATIO, float(np.ptp(logs)) / (MOST_NOISES - 1))
        _, kinds, counts = np.unique(
            np.rint((logs - logs.max()) / width).astype(int), return_inverse=True, return_counts=True
        )
        total = math.fsum(rhos[taking_part])
        shares = np.bincount(kinds, rhos[taking_part]) / counts / total  # mean ρ of each kind, of the total
        rounds = tuple(zip(shares.tolist(), counts.tolist(), strict=True))
        noises[taking_part] = _scale_of_noise(rounds, total, float(delta), rate, steps) / np.sqrt(shares[kinds])
    return noises


@lru_cache(maxsize=4096)
def _scale_of_noise(
    rounds: tuple[tuple[float, int], ...], total: float, delta: float, sampling_rate: float, num_steps: int
) -> float:
    """The scale c of noise c/√share with which (share, count) rounds keep the ε that `total` stands for."""
    target = gaussian_epsilon(total, delta)
    if not LEAST_TARGET < target < MOST_TARGET:
        raise BadInput(
            f"budgets of {total:.3g} in all are ε = {target:.3g} at δ = {delta:g}, outside what Poisson sampling is "
            f"calibrated for ({LEAST_TARGET:g} to {MOST_TARGET:g}). Change budget_unit, or the budgets."
        )
    most = math.log(num_steps / (2 * total)) / 2 + 1e-9  # enough if nothing were sampled
    if sampling_rate == 1:
        return math.exp(most)

    def excess(log_scale: float) -> float:
        """ln of ε over the target, by loss distributions."""
        noises = [math.exp(log_scale) / math.sqrt(share) for share, _ in rounds]
        kinds = {(noise, sampling_rate): count * num_steps for noise, (_, count) in zip(noises, rounds, strict=True)}
        grid = _grids(kinds, 0.0, delta, target, STEPS_TO_TARGET)[1]
        if math.isinf(grid):
            sampled = [(noise, sampling_rate, steps) for (noise, _), steps in kinds.items()]
            reached = history_epsilon(sampled, delta, by_orders_alone=True)
        else:
            reached = composed_epsilon(_events(kinds, 0.0), delta, grid=grid)
        return math.log(max(reached / target, 1e-3))

    def nearly(log_scale: float) -> float:
        """The same in the limit of many steps: one Gaussian release with μ² = Σ q²(e^(1/σ²) - 1) (Bu, Dong, Long & Su
        2020, Cor. 5.4)."""
        squares = [count * math.expm1(min(share * math.exp(-2 * log_scale), 600.0)) for share, count in rounds]
        reached = gaussian_epsilon(num_steps * sampling_rate**2 * math.fsum(squares) / 2, delta)
        return math.log(max(reached / target, 1e-3))

    return math.exp(_least_where(excess, nearly, most))


def _least_where(excess: Callable[[float], float], nearly: Callable[[float], float], most: float) -> float:
    """An x up to `most` with -`SPARE` <= excess(x) <= 0; excess falls, and is at most 0 at `most`.

    Each x is where `nearly`, raised or lowered by what it was off before, says so. Where excess jumps over that range,
    the smallest x on the good side of the jump, to four digits.
    """
    from scipy.optimize import brentq

    low, high, off = -math.inf, most, 0.0
    for _ in range(60):
        bottom = max(low, high - 10)
        is_between = nearly(bottom) + off > -SPARE / 2 > nearly(high) + off
        x = brentq(lambda x, off=off: nearly(x) + off + SPARE / 2, bottom, high, xtol=1e-4) if is_between else high
        if not low < x < high:
            x = (low + high) / 2 if low > -math.inf else high - 0.5
        value = excess(x)
        if -SPARE <= value <= 0:
            return x
        low, high, off = (x, high, value - nearly(x)) if value > 0 else (low, x, value - nearly(x))
        if high - low < 1e-4:
            break
    return high


def require_sampling(noise_multiplier: Any, sampling_rate: Any, num_steps: Any) -> tuple[float, float, int]:
    """The three numbers of Poisson-sampled steps, checked: noise over sensitivity, chance of a record, steps."""
    noise = require_number(noise_multiplier, "noise_multiplier", 1e-150, 1e150)
    rate = require_number(sampling_rate, "sampling_rate", 0.0, 1.0, open_ends=False)
    if rate == 0:
        raise BadInput("sampling_rate=0 samples nobody; use batch_size / num_examples.")
    steps = require_count(num_steps, "num_steps")
    if steps > 1e9:
        raise BadInput(f"num_steps={steps:,} is too many to account for. Use at most 1,000,000,000.")
    return noise, rate, steps


def _taken_together(kinds: dict[tuple[float, float], int]) -> dict[tuple[float, float], int]:
    """Fewer kinds that lose no less: neighbours within a factor `ALIKE` as one."""
    groups: dict[tuple[int, int], tuple[float, float, int]] = {}
    for (noise, rate), steps in kinds.items():
        group = math.floor(math.log(noise) / math.log(ALIKE)), math.floor(math.log(rate) / math.log(ALIKE))
        least, largest, count = groups.get(group, (noise, rate, 0))
        groups[group] = min(least, noise), max(largest, rate), count + steps
    return {(noise, rate): steps for noise, rate, steps in groups.values()}


def _half_inverse_square(noise: float) -> float:
    """ρ of one Gaussian step; infinite where the noise is too small to square."""
    inverse = 1 / noise
    return inverse * inverse / 2


def _rdp_epsilon(kinds: dict[tuple[float, float], int], budget: float, delta: float) -> float:
    """By RDP at whole orders: quick, and valid also where no loss distribution fits."""
    losses = renyi_losses(((*kind, steps) for kind, steps in kinds.items()), budget)
    bounds = np.where(delta**2 + np.expm1(-losses) > 0, 0.0, losses + _order_cost(ORDERS, delta))  # by KL, where ε is 0
    return max(0.0, float(bounds.min()))


# ---- Rényi losses, and a filter for losses that are chosen as it goes ------------------------------------------------


def renyi_losses(sampled: Iterable[tuple[float, float, int]], budget: float) -> Array:
    """Rényi divergence at each of `ORDERS` of steps (noise_multiplier, sampling_rate, num_steps) and a budget."""
    return np.asarray(
        sum((steps * _loss_of_step(noise, rate) for noise, rate, steps in sampled), ORDERS * budget), dtype=np.float64
    )


@lru_cache(maxsize=4096)
def _loss_of_step(noise: float, rate: float) -> Array:
    """ln Σ_k C(α,k) (1-q)^(α-k) q^k e^(k(k-1)/(2σ²)) / (α-1) for adding or removing (Mironov, Talwar & Zhang 2019)."""
    from scipy.special import gammaln, logsumexp

    if rate == 1 or not 1e-2 < noise < 1e6:
        return ORDERS * _half_inverse_square(noise)  # as if nobody were left out
    k, left = np.arange(ORDERS[-1] + 1), ORDERS[:, None] - np.arange(ORDERS[-1] + 1)
    ways = gammaln(ORDERS + 1)[:, None] - gammaln(k + 1) - gammaln(np.maximum(left, 0) + 1)
    terms = ways + left * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) * _half_inverse_square(noise)
    return np.asarray(np.maximum(logsumexp(np.where(left < 0, -np.inf, terms), axis=1), 0) / (ORDERS - 1))


def _order_cost(orders: Array, delta: Any) -> Array:
    """What an order adds to its divergence to be an ε at δ (Canonne, Kamath & Steinke 2020, Prop. 12)."""
    return np.asarray(np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))


def filter_room(losses: Array, dp_epsilon: float, dp_delta: float, extra: float = 0.0) -> float:
    """The largest ρ that a filter for (dp_epsilon, dp_delta) still admits; below 0 where it is passed.

    losses  `renyi_losses` of all releases, each of which may have been chosen from what was public before
    extra   how far the noise drawn is, in total variation, from the noise meant

    A Rényi filter at one order, whose bound is fixed in advance, holds for adaptive choices (Feldman & Zrnic 2021,
    arXiv:2008.11193). Here are a few, each with a fixed part of δ, and releases go on while one has room: one that has
    room in the end would have released the same by itself, so the parts of δ add up. Most of δ has the order that
    admits the most Gaussian releases, the rest lower ones, which suit steps with little noise.
    """
    if added_delta(dp_epsilon, extra) > DELTA_OF_NOISE * dp_delta:
        return -math.inf
    return float(((dp_epsilon - losses - _filter_costs(dp_epsilon, dp_delta)) / ORDERS).max())


@lru_cache(maxsize=1024)
def _filter_costs(dp_epsilon: float, dp_delta: float) -> Array:
    """What each order adds to its divergence under the filter; infinite at those that have no part of δ."""
    require_number(dp_delta, "dp_delta", 0.0, 1.0)
    delta = (1 - DELTA_OF_NOISE) * dp_delta
    best = int(np.argmax((dp_epsilon - _order_cost(ORDERS, DELTA_OF_ORDERS[1.0] * delta)) / ORDERS))
    shares = np.zeros(len(ORDERS))
    for part, share in DELTA_OF_ORDERS.items():
        shares[np.searchsorted(ORDERS, part * ORDERS[best])] += share
    with np.errstate(divide="ignore"):
        costs = np.where(shares > 0, _order_cost(ORDERS, shares * delta), np.inf)
    if costs.min() >= dp_epsilon:
        raise BadInput(f"a cap of ε = {dp_epsilon:g} at δ = {dp_delta:g} admits nothing at all. Use a larger ε or δ.")
    return costs
