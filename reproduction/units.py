"""The unit of budgets: ρ of the training = unit · ρ of the game, fixed once per data set and aggregation.

The paper gives no scale of budgets. It is fixed on one cell (SA, IID, N = 20, seed 0) so that SA's accuracy after the
last round is the paper's within .3 points; where training without noise stays below that, it is 2e-3. Every other cell
is then a prediction (docs/reproduction.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from reproduction.cells import NOISELESS, ArmName, Cell, aggregations_of
from reproduction.settings import printed_accuracy
from reproduction.store import Measured

GRID = (2e-3, 1e-3, 5e-4)  # the first trials; the fallback leads, because it may serve as it is
FALLBACK = 2e-3
TOLERANCE = 0.3  # points of accuracy
MOST_TRIALS = 7
LEAST_STEP, LARGEST_STEP = 1.25, 8.0  # beyond what was tried: a far extrapolation is no measurement
USUAL_EXPONENT = 0.7  # what noise costs falls about so with the unit on FMNIST and CIFAR-10 (0.55 to 1.3)
LEAST_COST = 0.05  # points: what noise costs is not known better than that
SA = "social_agnostic"


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of one aggregation, how near it brings SA to the paper, and how it was found.

    accuracy  of SA with this unit, in percent; None where that was not needed to fix it
    """

    unit: float
    accuracy: float | None
    target: float
    why: str


Job = tuple[ArmName, float | None]  # a training to do: which, and with which unit (None without noise)


def place_of_unit(dataset: str) -> Cell:
    """The cell on which a data set's unit is fixed."""
    return Cell(dataset, "iid", 20, 0)


def target_of(dataset: str) -> float:
    """The paper's SA accuracy there, in percent."""
    return printed_accuracy(1, dataset, "iid", 20)["SA"]


def units_of(dataset: str, trials: Sequence[Measured]) -> dict[str, Unit]:
    """The units that the trials so far fix, by aggregation."""
    found = {weights: fixed_unit(dataset, weights, trials) for weights in aggregations_of(place_of_unit(dataset))}
    return {weights: unit for weights, unit in found.items() if unit is not None}


def fixed_unit(dataset: str, aggregation: str, trials: Sequence[Measured]) -> Unit | None:
    """The unit of one aggregation, or None while more trials are needed."""
    target, ceiling, tried = target_of(dataset), _ceiling(trials), _tried(aggregation, trials)
    if ceiling is not None and ceiling < target:
        why = f"noiseless training reaches {ceiling:.2f}, below the paper's SA: fixed at {FALLBACK:g} by the protocol"
        return Unit(FALLBACK, tried.get(FALLBACK), target, why)
    if ceiling is None or not tried:
        return None
    nearest = min(tried, key=lambda unit: abs(tried[unit] - target))
    off = tried[nearest] - target
    if within(off, TOLERANCE):
        return Unit(nearest, tried[nearest], target, f"SA is {off:+.2f} points from the paper's, {len(tried)} trials")
    if not _grid_left(tried, target) and _next_unit(tried, target, ceiling) is None:
        why = f"nearest of {len(tried)} trials, {off:+.2f} points from the paper's SA: not within {TOLERANCE:g}"
        return Unit(nearest, tried[nearest], target, why)
    return None


def next_trials(dataset: str, trials: Sequence[Measured]) -> list[Job]:
    """What to train next, side by side, to fix the units; empty when they are fixed."""
    open_ones = [
        weights for weights in aggregations_of(place_of_unit(dataset)) if fixed_unit(dataset, weights, trials) is None
    ]
    if not open_ones:
        return []
    ceiling, target = _ceiling(trials), target_of(dataset)
    jobs: list[Job] = [(NOISELESS, None)] if ceiling is None else []
    left = {weights: _grid_left(_tried(weights, trials), target) for weights in open_ones}
    jobs += [(ArmName(SA, weights), unit) for unit in GRID for weights in open_ones if unit in left[weights]]
    if jobs or ceiling is None:
        return jobs
    proposed = [(weights, _next_unit(_tried(weights, trials), target, ceiling)) for weights in open_ones]
    return [(ArmName(SA, weights), unit) for weights, unit in proposed if unit is not None]


def reusable(dataset: str, trials: Iterable[Measured]) -> list[Measured]:
    """Trials that are arms of the cell on which the unit was fixed: SA with the unit that was kept, and noiseless."""
    every = list(trials)
    units = units_of(dataset, every)
    return [
        each
        for each in every
        if each.arm == NOISELESS or (each.arm.aggregation in units and each.unit == units[each.arm.aggregation].unit)
    ]


def within(difference: float, points: float) -> bool:
    """Whether two accuracies in percent are so near; a difference of just so many points is."""
    return round(abs(difference), 6) <= points


def _ceiling(trials: Iterable[Measured]) -> float | None:
    return next((100 * each.accuracy for each in trials if each.arm == NOISELESS), None)


def _tried(aggregation: str, trials: Iterable[Measured]) -> dict[float, float]:
    """Unit → accuracy of SA in percent."""
    name = ArmName(SA, aggregation)
    return {each.unit: 100 * each.accuracy for each in trials if each.arm == name and each.unit is not None}


def _grid_left(tried: dict[float, float], target: float) -> list[float]:
    """Units of the grid that are worth a trial: accuracy rises with the unit, so some are ruled out by others."""
    too_small = max((unit for unit, accuracy in tried.items() if accuracy < target), default=0.0)
    too_large = min((unit for unit, accuracy in tried.items() if accuracy >= target), default=math.inf)
    return [unit for unit in GRID if too_small < unit < too_large]


def _next_unit(tried: dict[float, float], target: float, ceiling: float) -> float | None:
    """Where the noise should cost what SA of the paper lies below noiseless training; None when to give up.

    What noise costs is taken as a power of the unit, of the exponent that two trials show.
    """
    if len(tried) >= MOST_TRIALS:
        return None
    wanted = math.log(max(ceiling - target, LEAST_COST))
    known = sorted(
        (math.log(unit), math.log(max(ceiling - accuracy, LEAST_COST)) - wanted) for unit, accuracy in tried.items()
    )  # rising units, falling costs
    around = [(low, high) for low, high in pairwise(known) if low[1] > 0 >= high[1]]
    if around:
        (x, above), (y, below) = min(around, key=lambda pair: pair[0][1] - pair[1][1])
        part = min(0.9, max(0.1, above / (above - below)))  # never a unit that was tried
        found = math.exp(x + part * (y - x))
    else:
        is_larger = known[-1][1] > 0  # noise costs too much everywhere: a larger unit is wanted
        (x, first), (y, second) = (known[-2:] if is_larger else known[:2]) if len(known) > 1 else ((0, 0), (0, 0))
        exponent = (first - second) / (y - x) if first > second else USUAL_EXPONENT
        end, off = known[-1] if is_larger else known[0]
        step = min(math.log(LARGEST_STEP), max(math.log(LEAST_STEP), abs(off) / exponent))
        found = math.exp(end + step if is_larger else end - step)
    rounded = float(f"{found:.3g}")
    return None if rounded in tried else rounded
