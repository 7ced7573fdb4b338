"""From a spent zCDP budget to (ε, δ), by three methods, and the calibration of Poisson-sampled noise.

    exact  the Gaussian mechanism's own curve; only where every release was Gaussian      4.3772 at ρ = 0.5, δ = 1e-5
    rdp    the best Rényi order, valid for any ρ-zCDP release                             4.7284
    zcdp   ρ + 2√(ρ ln 1/δ), the formula of the textbook                                  5.2985

Budgets add over rounds, also when each is chosen from the public transcript of those before. Every answer is an upper
bound: where a search ends between two numbers, the larger is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from mppfl.arrays import Array, require_count, require_number
from mppfl.errors import BadInput

Method = Literal["exact", "zcdp", "rdp"]

LARGEST_CERTAIN_SHIFT = 9.0  # Φ(9) = 1 in double precision, so no δ below 1 lies further out
NODES, WEIGHTS = np.polynomial.legendre.leggauss(7)
MOST_LOSS_POINTS = 2e6  # grid points of a privacy loss distribution that fit into memory and a few seconds


@overload
def epsilon(rho: float, delta: float, method: str = ...) -> float: ...
@overload
def epsilon(rho: Array, delta: ArrayLike, method: str = ...) -> Array: ...
def epsilon(rho: Any, delta: Any, method: str = "exact") -> Any:
    """dp_epsilon at `delta` of a total budget ρ, elementwise, by one of the three methods."""
    if method not in METHODS:
        raise BadInput(f"method={method!r} is not known. Known: {', '.join(METHODS)}.")
    return METHODS[method](rho, delta)


@overload
def zcdp_epsilon(rho: float, delta: float) -> float: ...
@overload
def zcdp_epsilon(rho: Array, delta: ArrayLike) -> Array: ...
def zcdp_epsilon(rho: Any, delta: Any) -> Any:
    """ρ + 2√(ρ ln 1/δ) (Bun & Steinke 2016, Prop. 1.3), elementwise."""
    budgets, deltas = _checked(rho, delta)
    with np.errstate(over="ignore"):
        return _like(rho, delta, budgets + 2 * np.sqrt(budgets) * np.sqrt(-np.log(deltas)))


@overload
def rdp_epsilon(rho: float, delta: float) -> float: ...
@overload
def rdp_epsilon(rho: Array, delta: ArrayLike) -> Array: ...
def rdp_epsilon(rho: Any, delta: Any) -> Any:
    """min over orders a > 1 of aρ + ln(1/(aδ))/(a-1) + ln(1-1/a) (Canonne, Kamath & Steinke 2020, Prop. 12).

    With x = a - 1 its slope is ρ - (ln 1/δ - ln(1+x))/x², which changes sign once: the best order is found exactly.
    """
    budgets, deltas = _checked(rho, delta)
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
        found = r * (1 + x) + (log_inverse - np.log1p(x)) / x - np.log1p(1 / x)
    answer[inside] = np.maximum(found, 0.0)
    return _like(rho, delta, answer)


@overload
def gaussian_epsilon(rho: float, delta: float) -> float: ...
@overload
def gaussian_epsilon(rho: Array, delta: ArrayLike) -> Array: ...
def gaussian_epsilon(rho: Any, delta: Any) -> Any:
    """The exact dp_epsilon of Gaussian releases that cost ρ together (Balle & Wang 2018, Thm. 8), μ = √(2ρ).

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) = φ(t) (R(t) - R(t+μ)) with t = ε/μ - μ/2 and R Mills' ratio: in this form
    neither e^ε overflows nor two nearly equal numbers are subtracted.
    """
    from scipy.special import erf, ndtri

    budgets, deltas = _checked(rho, delta)
    answer = np.where(np.isinf(budgets), np.inf, 0.0)
    mu = math.sqrt(2) * np.sqrt(budgets)
    inside = (erf(mu / math.sqrt(8)) > deltas) & np.isfinite(budgets)  # else ε = 0 suffices
    mu, wanted = mu[inside], deltas[inside]
    start = -np.minimum(mu / 2, LARGEST_CERTAIN_SHIFT)
    width = np.maximum(-ndtri(wanted) - start, 0.0)  # δ(ε) < Φ(-t)
    goal = np.log(wanted)

    def is_beyond(step: Array) -> Any:
        return _log_delta(start + step, mu) < goal

    step = _bisect(is_beyond, np.zeros_like(width), width)
    with np.errstate(over="ignore"):
        answer[inside] = mu * ((mu / 2 + start) + step)
    return _like(rho, delta, answer)


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "exact": gaussian_epsilon,
    "zcdp": zcdp_epsilon,
    "rdp": rdp_epsilon,
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


def _checked(rho: Any, delta: Any) -> tuple[Array, Array]:
    """Budgets and deltas as vectors of one length, or one line on what is wrong."""
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
    return np.array(budgets).ravel(), np.array(deltas).ravel()


def _like(rho: Any, delta: Any, answer: Array) -> Any:
    """The answer in the shape of the question."""
    shape = np.broadcast_shapes(np.shape(rho), np.shape(delta))
    return answer.reshape(shape) if shape else float(answer[0])


# ---- Poisson sampling, and events for other accountants ---------------------------------------------------------


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
    noise, rate, steps = _sampling(noise_multiplier, sampling_rate, num_steps)
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return dp_accounting.SelfComposedDpEvent(event, steps) if steps > 1 else event


def composed_epsilon(events: Iterable[tuple[Any, int]], delta: float, *, grid: float = 1e-4) -> float:
    """dp_epsilon of (event, count) pairs together, through their privacy loss distributions.

    `grid` is the step of the loss, in nats; a coarser one is quicker and gives a larger answer. Costs about a second.
    """
    from dp_accounting import pld

    require_number(delta, "dp_delta", 0.0, 1.0)
    accountant = pld.PLDAccountant(value_discretization_interval=grid)
    for event, count in events:
        if not accountant.supports(event):
            raise BadInput(f"{type(event).__name__} has no privacy loss distribution; use the method rdp.")
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def poisson_epsilon(noise_multiplier: float, delta: float, sampling_rate: float, num_steps: int) -> float:
    """dp_epsilon of `num_steps` Poisson-sampled Gaussian steps, add-remove one record. Never part of a zCDP sum.

    By privacy loss distributions where they fit into memory, else by RDP; never more than without sampling.
    """
    require_number(delta, "dp_delta", 0.0, 1.0)
    noise, rate, steps = _sampling(noise_multiplier, sampling_rate, num_steps)
    per_step = _half_inverse_square(noise)
    unsampled = gaussian_epsilon(per_step * steps, delta)
    if rate == 1 or unsampled == 0:
        return unsampled
    if rate * steps <= delta:
        return 0.0  # with probability 1 - δ the record is never drawn at all
    by_orders = min(unsampled, _rdp_poisson(noise, delta, rate, steps))
    one_step = gaussian_epsilon(per_step, min(delta, 1e-10))
    grid = max(1e-4, by_orders / 2e4)
    fits = noise > 0.05 and steps <= 10**7 and delta >= 1e-12 and one_step <= MOST_LOSS_POINTS * grid
    if not fits or one_step < 10 * grid:
        return by_orders
    event = to_dp_event(noise_multiplier=noise, sampling_rate=rate)
    found = min(by_orders, composed_epsilon([(event, steps)], delta, grid=grid))
    finer = max(1e-4, found / 2e4)
    if finer < grid / 4 and one_step <= MOST_LOSS_POINTS * finer:  # RDP had overstated the scale
        found = min(found, composed_epsilon([(event, steps)], delta, grid=finer))
    return found


def poisson_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, num_steps: int) -> float:
    """The least noise σ/C with which `num_steps` Poisson-sampled steps keep (ε, δ): to three digits, never too small.

    Takes some seconds: each trial is a privacy loss distribution.
    """
    from scipy.optimize import brentq

    target = require_number(epsilon, "dp_epsilon", 1e-6, 1e3)
    require_number(delta, "dp_delta", 0.0, 1.0)
    _, rate, steps = _sampling(1.0, sampling_rate, num_steps)

    def excess_without_sampling(log_noise: float) -> float:
        return gaussian_epsilon(_half_inverse_square(math.exp(log_noise)) * steps, delta) - target

    most = brentq(excess_without_sampling, math.log(1e-3), math.log(1e12), xtol=1e-9)
    if rate == 1:
        return math.exp(most + 1e-8)

    def excess(log_noise: float) -> float:
        return poisson_epsilon(math.exp(log_noise), delta, rate, steps) - target

    least = most
    while excess(least) <= 0 and least > most - math.log(1e6):
        most, least = least, least - 0.5
    if least == most or excess(least) <= 0:
        return math.exp(most + 1e-8)
    found = brentq(excess, least, most, xtol=2e-4)
    while excess(found) > 0:
        found += 2e-4
    return math.exp(found)


def _half_inverse_square(noise: float) -> float:
    """ρ of one Gaussian step; infinite where the noise is too small to square."""
    inverse = 1 / noise
    return inverse * inverse / 2


def _sampling(noise_multiplier: Any, sampling_rate: Any, num_steps: Any) -> tuple[float, float, int]:
    noise = require_number(noise_multiplier, "noise_multiplier", 1e-150, 1e150)
    rate = require_number(sampling_rate, "sampling_rate", 0.0, 1.0, open_ends=False)
    if rate == 0:
        raise BadInput("sampling_rate=0 samples nobody; use batch_size / num_examples.")
    steps = require_count(num_steps, "num_steps")
    if steps > 1e9:
        raise BadInput(f"num_steps={steps:,} is too many to account for. Use at most 1,000,000,000.")
    return noise, rate, steps


def _rdp_poisson(noise: float, delta: float, rate: float, steps: int) -> float:
    """By RDP at whole orders: quick, and valid also where no loss distribution fits; infinite where no order helps."""
    from dp_accounting import rdp

    if not 1e-2 < noise < 1e6:
        return math.inf
    accountant = rdp.RdpAccountant(orders=[*range(2, 65), 80, 96, 128, 192, 256, 512, 1024])
    accountant.compose(
        to_dp_event(noise_multiplier=noise, sampling_rate=max(rate, 1e-12)), steps
    )  # more sampling, more loss
    found = float(accountant.get_epsilon(delta))
    return found if found >= 0 else math.inf
