"""From a spent zCDP budget to (ε, δ), by three methods.

    exact  the Gaussian mechanism's own curve; only where every release was Gaussian      4.3772 at ρ = 0.5, δ = 1e-5
    rdp    the best Rényi order, valid for any ρ-zCDP release                             4.7284
    zcdp   ρ + 2√(ρ ln 1/δ), the formula of the textbook                                  5.2985

Budgets add over rounds, also when each is chosen from the public transcript of those before. Every answer is an upper
bound: where a search ends between two numbers, the larger is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from mppfl.arrays import Array
from mppfl.errors import BadInput

LARGEST_CERTAIN_SHIFT = 9.0  # Φ(9) = 1 in double precision, so no δ below 1 lies further out
NODES, WEIGHTS = np.polynomial.legendre.leggauss(7)


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
