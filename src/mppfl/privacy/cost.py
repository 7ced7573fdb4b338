"""What a release costs one client: known from public values alone, so that it can be reserved before anything is drawn.

    round_cost     the one entry of the ledger for a client's round, before the round
    cost_of_round  the same entry, added up from the answers that were given

Noise on a grid g raises the sensitivity from Δ to Δ + g√p (see noise.py). The standard deviation is raised with it,
σ = (Δ + g√p)·√(queries/(2ρ)), so the cost is the budget that was asked for, and a client never pays for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

from mppfl.arrays import require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy.mechanism import Adjacency, LocalWork, PrivacyMechanism, Unit, privacy_mechanism, require_budget
from mppfl.privacy.noise import LARGEST_WHOLE_NUMBER, NOISE_KINDS, NoiseKind, grid_of, price_of_noise


@dataclass(frozen=True, slots=True)
class ReleaseCost:
    """What one release, or one noisy answer inside local training, cost one client.

    budget             ρ spent, rounding to the grid included; for `paper` nominal; None where noise was calibrated to
                       (ε, δ) and must not enter a zCDP sum; infinite where nothing was added
    worst_case_budget  what the budget amounts to whatever the data: n² times as much for `paper`
    noise_multiplier   σ / (Δ + g√p), of each noisy answer
    extra_delta        to be added to the δ of every statement about this release
    noise_std          σ of each noisy answer, in the unit of the update
    sampling_rate      chance of a record to be in a batch; only where batches are Poisson-sampled
    num_steps          noisy steps of the whole round; only where batches are Poisson-sampled
    """

    client: str
    round_index: int
    run: str
    mechanism: str
    unit: Unit
    adjacency: Adjacency
    budget: float | None
    worst_case_budget: float | None
    noise_multiplier: float
    noise_kind: NoiseKind | Literal["none"]
    extra_delta: float
    noise_std: float
    sampling_rate: float | None = None
    num_steps: int | None = None


def round_cost(
    mechanism: PrivacyMechanism,
    budget: float | None,
    clip_norm: float,
    work: LocalWork,
    noise: NoiseKind,
    num_parameters: int,
    client: str,
    round_index: int,
    run: str,
    noise_multiplier: float | None = None,
) -> ReleaseCost:
    """What this client's whole round will cost, for the ledger: exactly what `release` reports for noise on updates.

    dpsgd_poisson takes budget=None and `noise_multiplier`, the others a budget alone. Raises, naming the client, where
    the budget cannot be met; a client with budget 0 takes no part and has no cost.
    """
    answer = answer_cost(
        mechanism, budget, clip_norm, work, noise, num_parameters, client, round_index, run, noise_multiplier
    )
    return _whole_round(answer, mechanism, work, budget)


def cost_of_round(answers: Sequence[ReleaseCost], work: LocalWork) -> ReleaseCost:
    """One client's answers of one round as the one cost that the ledger records: what `round_cost` said before.

    A record pays for the answers it is in: all steps of full_batch_steps, one batch per epoch of dpsgd_shuffle. Raises
    where the answers do not belong together, or where there are more of them than `work` has.
    """
    if not answers:
        raise BadInput("a round without answers has no cost; a client that released nothing is left out.")
    first = answers[0]
    for each in answers[1:]:
        if each != first:
            name = next(f.name for f in fields(first) if getattr(each, f.name) != getattr(first, f.name))
            raise BadInput(
                f"answers of one round must agree, but {name} is {getattr(first, name)!r} in one and "
                f"{getattr(each, name)!r} in another. Add up one client, run and round at a time."
            )
    mechanism = privacy_mechanism(first.mechanism, first.adjacency)
    most = work.num_batches if mechanism.noise_on == "batch sum" else mechanism.queries(work)
    if len(answers) > most:
        raise BadInput(
            f"client {first.client!r} gave {len(answers)} answers in a round whose work has {most}. Account for the "
            "work that was really done."
        )
    if mechanism.noise_on == "update":
        return first
    if not mechanism.is_zcdp and (first.sampling_rate, first.num_steps) != (work.sampling_rate, work.num_batches):
        raise BadInput(
            f"the answers of client {first.client!r} were sampled at the rate {first.sampling_rate} in "
            f"{first.num_steps} steps, not at {work.sampling_rate:g} in {work.num_batches}. Give the work they had."
        )
    share = first.budget
    return _whole_round(first, mechanism, work, None if share is None else share * mechanism.queries(work))


def answer_cost(
    mechanism: PrivacyMechanism,
    budget: float | None,
    clip_norm: float,
    work: LocalWork,
    noise: NoiseKind,
    num_parameters: int,
    client: str,
    round_index: int,
    run: str,
    noise_multiplier: float | None = None,
) -> ReleaseCost:
    """What one noisy answer of the round costs: the share budget / queries, of a round's whole `budget`."""
    clip = require_number(clip_norm, "clip_norm", 0.0, math.inf)
    size = require_count(num_parameters, "num_parameters")
    if noise not in NOISE_KINDS:
        raise BadInput(f"noise kind {noise!r} is not known. Known: {', '.join(NOISE_KINDS)}.")
    if mechanism.is_zcdp == (budget is None) or mechanism.is_zcdp != (noise_multiplier is None):
        raise BadInput(f"{mechanism.name} takes {'a budget' if mechanism.is_zcdp else 'a noise_multiplier'} alone.")
    std = _noise_std(mechanism, budget, noise_multiplier, clip, work, noise, size, f" of client {client!r}")
    price = price_of_noise(std, noise, size)
    queries = mechanism.queries(work)
    return ReleaseCost(
        client,
        round_index,
        run,
        mechanism.name,
        mechanism.unit,
        mechanism.adjacency,
        None if budget is None else float(budget) / queries,
        None if budget is None else mechanism.worst_case_budget(budget, work) / queries,
        std / (mechanism.sensitivity(clip, work) + price.sensitivity_added),
        price.kind,
        price.extra_delta,
        std,
        None if mechanism.is_zcdp else work.sampling_rate,
        None if mechanism.is_zcdp else work.num_batches,
    )


def _whole_round(
    answer: ReleaseCost, mechanism: PrivacyMechanism, work: LocalWork, budget: float | None
) -> ReleaseCost:
    """The round's cost from that of one of its answers.

    δ adds over the answers in which a record or client is: elsewhere the same noise serves both neighbours.
    """
    touched = mechanism.queries(work) if mechanism.is_zcdp else work.num_batches
    return replace(
        answer,
        budget=None if budget is None else float(budget),
        worst_case_budget=None if budget is None else mechanism.worst_case_budget(budget, work),
        extra_delta=min(1.0, touched * answer.extra_delta),
    )


LARGEST_STD = 1e250  # far beyond any update, and well inside what a grid can be for


def std_with_grid(sensitivity: float, noise_multiplier: float, num_parameters: int, kind: NoiseKind) -> float:
    """σ with σ = noise_multiplier · (Δ + g√p), where g is the grid of σ itself.

    Raises where no σ is enough because the grid grows with it faster than the noise does.
    """
    std = noise_multiplier * sensitivity
    for _ in range(64):
        wanted = noise_multiplier * (sensitivity + grid_of(std, kind) * math.sqrt(num_parameters))
        if wanted > LARGEST_STD:
            break
        if grid_of(wanted, kind) == grid_of(std, kind):
            return wanted
        std = wanted
    finer = "noise='gaussian', " if kind == "discrete" else ""
    raise BadInput(
        f"{kind} noise of {noise_multiplier:.3g} times the sensitivity on {num_parameters:,} parameters drowns in its "
        f"own rounding. Use {finer}a larger budget, or fewer parameters."
    )


def _noise_std(
    mechanism: PrivacyMechanism,
    budget: float | None,
    noise_multiplier: float | None,
    clip_norm: float,
    work: LocalWork,
    kind: NoiseKind,
    num_parameters: int,
    whose: str,
) -> float:
    """σ that makes one round cost `budget`; 0 for an infinite budget. Checks, from public values alone, that it can."""
    try:
        if budget is None:
            multiplier = require_number(noise_multiplier or 0.0, "noise_multiplier", 0.0, 1e100)
            asked = f"noise_multiplier={multiplier:g}"
        else:
            rho = require_budget(budget)
            if math.isinf(rho):
                return 0.0
            multiplier = math.sqrt(mechanism.queries(work) / (2 * rho))
            asked = f"budget={rho:g}"
        std = std_with_grid(mechanism.sensitivity(clip_norm, work), multiplier, num_parameters, kind)
    except BadInput as cause:
        what = "noise" if budget is None else "budget"
        raise BadInput(f"The {what}{whose} cannot be met. {cause}") from cause
    reach = clip_norm * (work.num_examples if mechanism.noise_on == "batch sum" else 1)
    if kind != "seeded" and reach >= LARGEST_WHOLE_NUMBER * grid_of(std, kind) / 2:
        raise BadInput(
            f"{asked}{whose} buys noise of {std:.3g} on updates of length {clip_norm:g}: too little for a grid. "
            f"Use a smaller budget, or an infinite one for no noise."
        )
    return std
