"""The server's rate from clients' answers alone: where everybody shares, its cost no longer falls (model, eq. 16).

Everybody may share at some rates only: below them some are not paid enough, above them others' budgets crowd some out,
and that somebody gives 0 does not say which. Each client's wish is straight in the rate, and before anybody is exposed
its answers are its wishes; two of them, and the network, tell between which rates everybody shares (model, eq. 14).
That only says where to ask: a rate counts once everybody's settled answer to it is above 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mppfl.arrays import Array, BoolArray
from mppfl.errors import NoEquilibrium
from mppfl.game.conversation import Conversation
from mppfl.game.loss import LossOperator

Cost = Callable[[Array, Array], Array]
"""Rates [rounds] and budgets [rounds, clients] in; the server's cost of each round out."""
Slope = Callable[[Array], Array]

MAX_RATES = 200
MAX_SECTIONS = 40  # the golden section then leaves 4e-9 of an interval
HIGHEST_RATE = 1e9
NUDGE = 1e-3  # short, so that few ceilings lie between two answers; long enough to keep twelve digits of a slope


def where_cost_stops_falling(talk: Conversation, cost: Cost, num_rounds: int) -> Array:
    """The rate of each round at which the cost, with exposures as they stand, has slope 0: bisection and secants."""

    def slope(rates: Array) -> Array:
        """−∞ where somebody does not share."""
        budgets, _ = talk.settle(rates)
        everybody: BoolArray = np.asarray((budgets > 0).all(axis=1))
        found = np.full(num_rounds, -np.inf)
        if everybody.any():
            found[everybody] = _slope_at(talk, cost, rates, everybody)[everybody]
        return found

    low, at_low, high, at_high = _bracket(slope, _where_everybody_shares(talk, num_rounds), num_rounds)
    for step in range(MAX_RATES):
        if (high - low <= 4 * talk.tolerance * high).all():
            break
        middle = 0.5 * (low + high)
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = (low * at_high - high * at_low) / (at_high - at_low)
        usable = np.isfinite(at_low) & (secant > low) & (secant < high) & (step % 3 != 2)
        rates = np.where(usable, secant, middle)
        value = slope(rates)
        above = value > 0
        # Illinois: an end that stays twice running has its value halved, so that the secant crosses over.
        at_low = np.where(above, np.where(usable, at_low / 2, at_low), value)
        at_high = np.where(above, value, np.where(usable, at_high / 2, at_high))
        low, high = np.where(above, low, rates), np.where(above, rates, high)
        if (value == 0).any():
            low, high = np.where(value == 0, rates, low), np.where(value == 0, rates, high)
    return np.asarray(0.5 * (low + high))


def _where_everybody_shares(talk: Conversation, num_rounds: int) -> tuple[float, float]:
    """Between which rates everybody shares, were all answers straight in the rate; the first is not below the second
    where there are none. Must be asked before anybody is exposed. Rates double until every client's line is seen,
    wish = steepness·r − reluctance.
    """
    steepness, reluctance = (np.zeros(talk.propagation.num_clients) for _ in range(2))
    rate = 1.0
    while True:
        here, above = (talk.ask(np.full(num_rounds, each))[0] for each in (rate, rate * (1 + NUDGE)))
        seen = (steepness == 0) & (here > 0) & (above > here)
        steepness = np.where(seen, (above - here) / (NUDGE * rate), steepness)
        reluctance = np.where(seen, steepness * rate - here, reluctance)
        free = steepness > 0
        if free.all() or 2 * rate > HIGHEST_RATE:
            break
        rate *= 2
    if (here[~free] <= 0).any():  # who gives nothing even so
        return np.inf, 0.0
    loss = LossOperator(talk.propagation, talk.externality_strength)
    held = loss @ np.where(free, 0.0, here)  # who never moves stands at a bound
    line = loss.solve(np.column_stack([steepness, reluctance + held]), free)
    slopes, offsets = line[free].T
    rising, falling = slopes > 0, slopes < 0
    if (offsets[~rising & ~falling] >= 0).any():
        return np.inf, 0.0
    lowest = (offsets[rising] / slopes[rising]).max(initial=0.0)
    return float(lowest), float((offsets[falling] / slopes[falling]).min(initial=np.inf))


def _bracket(slope: Slope, sharing: tuple[float, float], num_rounds: int) -> tuple[Array, Array, Array, Array]:
    """A rate of each round below the one sought, the slope there, a rate above it, the slope there.

    Somebody who gives 0 below the second gives it for too low a rate: there is one interval in which everybody shares.
    """
    lowest, highest = sharing
    ends = _Ends(np.zeros(num_rounds), np.full(num_rounds, -np.inf), np.ones(num_rounds), slope(np.ones(num_rounds)))
    if lowest < highest <= HIGHEST_RATE:
        ends.double(slope, highest)
        if ends.lost.any():
            rates, values = _highest_slope(slope, lowest, highest, num_rounds)
            found = ends.lost & (values > 0)
            ends.low, ends.at_low = np.where(found, 0.0, ends.low), np.where(found, -np.inf, ends.at_low)
            ends.high, ends.at_high = np.where(found, rates, ends.high), np.where(found, values, ends.at_high)
    ends.double(slope, HIGHEST_RATE)
    if ends.lost.any():
        raise NoEquilibrium(
            "somebody shares nothing, or the server's cost falls on, at any reward rate that was tried up to "
            f"{HIGHEST_RATE:g}. Announce rates of your own."
        )
    return ends.low, ends.at_low, ends.high, ends.at_high


@dataclass(slots=True)
class _Ends:
    """Rates to either side of those sought, and the slopes there."""

    low: Array
    at_low: Array
    high: Array
    at_high: Array

    @property
    def lost(self) -> BoolArray:
        """In which rounds the cost does not rise at the upper rate."""
        return np.asarray(self.at_high <= 0)

    def double(self, slope: Slope, limit: float) -> None:
        """Raises the upper rates of lost rounds, to the limit at most."""
        while (self.lost & (2 * self.high <= limit)).any():
            rising = self.lost & (2 * self.high <= limit)
            self.low, self.at_low = np.where(rising, self.high, self.low), np.where(rising, self.at_high, self.at_low)
            self.high = np.where(rising, 2 * self.high, self.high)
            self.at_high = np.where(rising, slope(self.high), self.at_high)


def _highest_slope(slope: Slope, lowest: float, highest: float, num_rounds: int) -> tuple[Array, Array]:
    """A rate of each round with a slope above 0, or the rate with the highest one, by golden sections.

    The slope is linear less a sum of g_i/(r u_i − v_i)², hence concave, and falls to −∞ at both ends.
    """
    share = 0.5 * (np.sqrt(5) - 1)
    low, high = np.full(num_rounds, lowest), np.full(num_rounds, highest)
    left, right = high - share * (high - low), low + share * (high - low)
    at_left, at_right = slope(left), slope(right)
    for _ in range(MAX_SECTIONS):
        higher = np.maximum(at_left, at_right)
        if (higher > 0).all() or not np.isfinite(higher).any():  # found, or bounds bend answers and nobody knows where
            break
        leftward = at_left >= at_right
        low, high = np.where(leftward, low, left), np.where(leftward, right, high)
        kept, at_kept = np.where(leftward, left, right), np.where(leftward, at_left, at_right)
        asked = np.where(leftward, high - share * (high - low), low + share * (high - low))
        done = at_kept > 0
        asked = np.where(done, kept, asked)
        value = slope(asked)
        left, right = np.where(leftward, asked, kept), np.where(leftward, kept, asked)
        at_left, at_right = np.where(leftward, value, at_kept), np.where(leftward, at_kept, value)
    best = at_left >= at_right
    return np.where(best, left, right), np.where(best, at_left, at_right)


def _slope_at(talk: Conversation, cost: Cost, rates: Array, everybody: BoolArray) -> Array:
    """d cost / d rate with exposures unchanged, from the costs a little to either side (Richardson's extrapolation).

    The step is shortened until the two differences it is made of agree, in the rounds in which everybody shares.
    """
    step = 1e-3 * rates
    for _ in range(12):
        with np.errstate(invalid="ignore"):  # where somebody does not share, costs are infinite, and steps too long
            wide, narrow = (
                (cost(rates + h, talk.ask(rates + h)) - cost(rates - h, talk.ask(rates - h))) / (2 * h)
                for h in (step, step / 2)
            )
            found = (4 * narrow - wide) / 3
            rough = everybody & ~(np.abs(narrow - wide) <= 1e-5 * (np.abs(narrow) + 1))
        if not rough.any():
            break
        step = np.where(rough, step / 4, step)
    return np.where(np.isfinite(found), found, -np.inf)
