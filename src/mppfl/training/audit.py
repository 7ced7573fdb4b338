"""Audits of a training through the engine, model and precision that train it: how far a neighbour's data move what gets
noise, and what a whole training tells about the data it saw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn

from mppfl.arrays import Array, BoolArray, IntArray, require_count, require_number
from mppfl.data import ClientData, Inputs
from mppfl.errors import BadInput
from mppfl.game import Plan, RoundTerms, plan_from_rounds
from mppfl.privacy import (
    LocalWork,
    Protection,
    banded_square_root,
    clip_and_count,
    noise_of_sum,
    opened_sum,
    release_updates,
)
from mppfl.privacy.audit import AuditResult
from mppfl.spec import TrainingConfig
from mppfl.training.budget_unit import plan_in_turns
from mppfl.training.client import ClientSlot, GradientNoise, as_array, batches_of_round, local_work
from mppfl.training.engines import Engine, choose_engine
from mppfl.training.job import require_private
from mppfl.training.models import FlatModel, flat_model, load_weights
from mppfl.training.rounds import train_rounds

ROUNDING = 1e-9  # relative; two clipped gradients of exactly opposite direction reach the bound itself
STEPS_AUDITED = 4  # of a round: each is like the others
SHARES_GUESSED = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1)  # of the coins; each guess costs confidence

# ---- sensitivity ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _Recorder(GradientNoise):
    """Adds no noise, and keeps what would have got some."""

    answers: list[Array] = field(default_factory=list)

    def gradient(self, clipped_sum: Tensor) -> Tensor:
        self.answers.append(as_array(clipped_sum.double() / self.answer_divisor))
        return GradientNoise.gradient(self, clipped_sum)


@dataclass(frozen=True, eq=False, slots=True)
class _Neighbour:
    """What was changed, and the client's data then: all of them, without some of its rows where these are absent."""

    name: str
    features: Inputs
    labels: IntArray
    present: BoolArray


def audit_sensitivity(
    model: nn.Module, data: ClientData, config: TrainingConfig, *, client: int = 0, seed: int = 0
) -> AuditResult:
    """The largest ℓ2 distance between answers on neighbouring data, against the declared sensitivity.

    One record of the client, or all its data, is changed: labels flipped, features blown up 10, 100 and 1000 times,
    mirrored, set to 0, or absent. Every variant goes through the engine, model, precision and clipping of the training,
    with the noise switched off, and what would have got noise is compared. Under sums that open as a whole the weight
    and the rounding to the grid are audited with it, with cohorts over rounds in which the client has two turns.

    Args:
        model: The model that is trained, at the weights where the audit looks.
        data: The clients' data.
        config: Training and protection.
        client: Position of the audited client.
        seed: Of the changed record and of the batches.

    Returns:
        "fail" if an answer moves farther than declared, or a record touches more answers than declared.

    Raises:
        BadInput: The client is not there, or model, data and configuration do not fit together.
    """
    if not 0 <= require_count(client, "client", 0) < data.num_clients:
        raise BadInput(f"client={client} is none of the {data.num_clients} clients.")
    protection = config.protection
    flat, rng = flat_model(model), np.random.default_rng([seed, 77])
    require_private(flat, data, config)
    work = local_work(int(data.num_examples[client]), config, data.names[client])
    if choose_engine(flat, config, torch.device(config.device), 2) == "processes":
        config = replace(config, engine="loop")  # which these processes run
    record = int(rng.integers(work.num_examples))
    neighbours = list(_neighbours(data, client, record, protection.unit, rng))
    batches = batches_of_round(work, protection, rng)
    touched = sum(record in batch for batch in batches)
    answers = _answers(flat, neighbours, config, work, batches)
    distances = np.stack(
        [_distances(_as_released(vectors, protection, work), protection.adjacency == "zero_out") for vectors in answers]
    )
    worst = np.unravel_index(int(distances.argmax()), distances.shape)
    claimed, measured = protection.sensitivity(work), float(distances.max())
    declared = protection.queries(work)
    counted = protection.is_zcdp and protection.unit == "record"  # samples are counted by their accountant
    ratio = measured / claimed
    pair: list[Array | None] = list(answers[worst[0]][[worst[1], worst[2]]])
    if protection.unit == "client" and worst[2] == len(neighbours) - 1:  # absent: no message, and no count
        pair[1] = None
    in_sum = _spent_in_sums(pair, flat.num_parameters, config, data, client) if protection.opens_sums else 0.0
    holds = max(ratio, in_sum) <= 1 + ROUNDING and (touched <= declared or not counted)
    between = [neighbours[int(k)].name for k in worst[1:]]
    return AuditResult(
        audit="sensitivity",
        verdict="pass" if holds else "fail",
        claimed=claimed,
        measured=measured,
        confidence=None,
        details={
            "protection": protection.name,
            "unit": protection.unit,
            "adjacency": protection.adjacency,
            "engine": config.engine,
            "precision": config.precision,
            "client": data.names[client],
            "num_examples": work.num_examples,
            "between": between,
            "ratio": ratio,
            "budget_ratio": max(ratio, in_sum) ** 2,
            "ratio_in_sum": in_sum if protection.opens_sums else None,
            "answers_touched": touched if counted else None,
            "answers_declared": declared if counted else None,
            "seed": seed,
            "meaning": _meaning(protection.unit, max(ratio, in_sum), holds, touched > declared and counted),
        },
    )


def _meaning(unit: str, ratio: float, holds: bool, too_often: bool) -> str:
    if holds:
        return f"no change moved it farther than declared; the worst reached {100 * ratio:.3g} %"
    if too_often:
        return f"one {unit} is in more answers than are charged"
    return (
        f"one changed {unit} moves it {ratio:,.3g} times as far as declared: every budget really costs at least "
        f"{ratio * ratio:,.3g} times as much"
    )


def _neighbours(
    data: ClientData, client: int, record: int, unit: str, rng: np.random.Generator
) -> Iterator[_Neighbour]:
    """The client's data as they are, changed in every way, and absent."""
    rows = data.members[client]
    features, labels = np.array(data.features[rows]), np.array(data.labels[rows])
    changed = slice(None) if unit == "client" else slice(record, record + 1)
    everything, nothing = np.ones(len(rows), dtype=np.bool_), np.ones(len(rows), dtype=np.bool_)
    nothing[changed] = False
    other_labels = (labels + 1) % data.num_classes
    yield _Neighbour("as it was", features, labels, everything)
    for factor, flipped in ((1, True), (10, False), (100, True), (1000, False), (-1000, True), (-1, False), (0, True)):
        x, y = features.copy(), labels.copy()
        x[changed] *= np.float32(factor)
        if flipped:
            y[changed] = other_labels[changed]
        yield _Neighbour(f"features × {factor}{', label flipped' if flipped else ''}", x, y, everything)
    x, y = features.copy(), labels.copy()
    x[changed] = rng.standard_normal(x[changed].shape).astype(x.dtype) * 100
    yield _Neighbour("noise as features", x, y, everything)
    yield _Neighbour("absent", features, labels, nothing)


def _answers(
    model: FlatModel,
    neighbours: Sequence[_Neighbour],
    config: TrainingConfig,
    work: LocalWork,
    batches: Sequence[IntArray],
) -> list[Array]:
    """What gets noise in each of the round's first steps, or is shortened for it, of every neighbour [neighbours, p].

    Each answer is noisy and public before the next is asked, so all are compared at the same weights.
    """
    protection, answers, rng = config.protection, [], np.random.default_rng(0)
    start = flat_start(model, config)
    num_entries = protection.num_entries(model.num_parameters) if protection.clips_examples else model.num_parameters
    steps: list[Sequence[IntArray]] = (
        [[batch] for batch in batches[:STEPS_AUDITED]] if protection.clips_examples else [batches]
    )
    for step in steps:
        vectors = []
        for neighbour in neighbours:
            engine = Engine(model, neighbour.features, neighbour.labels, config, 1)
            kept = [batch[neighbour.present[batch]] for batch in step]
            noise = _Recorder(protection, work, math.inf, rng=rng) if protection.clips_examples else None
            slot = ClientSlot(start.to(engine.device), kept, noise, epochs=work.local_epochs)
            if not neighbour.present.any():
                vectors.append(np.zeros(num_entries))
                continue
            (rows,) = engine.updates([slot])
            update = as_array(rows)[0].astype(np.float64)
            if noise is None:
                vectors.append(update if np.isfinite(update).all() else np.zeros_like(update))  # as in a training
            elif noise.answers:
                vectors.append(noise.answers[0])
            else:  # the GPU adds its noise, here 0, where no recorder sees it: the step that it made tells the answer
                vectors.append(update * -(noise.step_divisor / config.learning_rate))
        answers.append(np.stack(vectors))
    return answers


def _as_released(vectors: Array, protection: Protection, work: LocalWork) -> Array:
    """What gets noise, as the code that releases it makes it of these vectors, the last of which is absent."""
    if protection.clips_examples:
        return vectors
    if protection.opens_sums:
        released = np.stack([clip_and_count(vector, protection) for vector in vectors])
    else:
        endless = np.full(len(vectors), math.inf)  # budgets without noise
        released = release_updates(vectors, endless, protection, work=work, round_index=1, run="audit").updates
    released[-1] = 0.0  # who is absent is not counted
    return np.asarray(released)


def flat_start(model: FlatModel, config: TrainingConfig) -> Tensor:
    """The module's own weights [parameters], in the precision in which training holds them."""
    parts = [parameter.detach().reshape(-1) for parameter in model.module.parameters() if parameter.requires_grad]
    return torch.cat(parts).to(torch.float64 if config.precision == "float64" else torch.float32)


def _distances(vectors: Array, to_absent: bool) -> Array:
    """ℓ2 distances of all pairs of those that are present, or of each from the absent one, the last row."""
    present, absent = vectors[:-1], vectors[-1]
    table = np.zeros((len(vectors), len(vectors)))
    if to_absent:
        table[:-1, -1] = np.linalg.norm(present - absent, axis=1)
        return table
    for k, vector in enumerate(present):
        table[k, : len(present)] = np.linalg.norm(present - vector, axis=1)
    return table


def _spent_in_sums(
    pair: Sequence[Array | None], num_parameters: int, config: TrainingConfig, data: ClientData, client: int
) -> float:
    """√(spent / charged) of the pair of vectors in sums of all clients, through the real sums.

    With cohorts over as many rounds as the client has two turns in. Whoever saw the same sums before knows what noise
    there was if it was the first vector, and what if the second: a round tells how far apart its sums then are.
    """
    protection = config.protection
    works = [local_work(int(size), config, name) for size, name in zip(data.num_examples, data.names, strict=True)]
    caps = np.where(np.arange(data.num_clients) == client, 0.01, 0.1)  # so that its weight is bounded
    dispersion = config.dispersion * protection.clip_norm**2
    terms = [RoundTerms(t + 1, 1.0, 1.0, caps) for t in range(2 * protection.cohorts)]
    spent, charged = 0.0, 0.0
    past: list[tuple[Array, ...]] = [(), ()]  # noise of the rounds before, if it was the first vector, or the second
    for position, turn in enumerate(plan_in_turns(plan_from_rounds("audit", terms), config)):
        joining = np.flatnonzero(turn.budgets)
        of_joining = caps[joining], [works[k] for k in joining], num_parameters, data.num_examples[joining]
        noise = noise_of_sum(protection, *of_joining, dispersion)
        apart = np.zeros(protection.num_entries(num_parameters))
        for number, vector in enumerate(pair):  # the same fresh noise in both, which goes out of their difference
            rng, vectors = np.random.default_rng(position), [vector if k == client else None for k in joining]
            total, past[number] = opened_sum(protection, noise, vectors, num_parameters, rng, past[number])
            apart = total / math.sqrt(noise.noise_variance) - apart
        spent += float(apart @ apart) * banded_square_root(protection.cohorts)[0] ** 2 / 2
        charged += float(noise.used[joining == client].sum())
        past[1] = tuple(before - (age == 0) * apart for age, before in enumerate(past[1]))
    return math.sqrt(spent / charged) if charged > 0 else 0.0


# ---- a whole training, in one run -----------------------------------------------------------------------------------


def audit_training(
    model: nn.Module,
    data: ClientData,
    plan: Plan,
    config: TrainingConfig,
    *,
    num_coins: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> AuditResult:
    """A lower bound on ε from one whole training (Steinke, Nasr & Jagielski 2023, arXiv:2305.08846v1, Thm. 5.2).

    A coin decides for each of `num_coins` records, or for each client, which of two versions of it is trained on. Both
    have wrong labels, which a model can only have learned by heart (of two classes one is right). The final model is
    then asked which version it knows better, and ε is bounded by how often that is right.

    Args:
        model: The model to train.
        data: The clients' data.
        plan: Budgets of every round.
        config: Training and protection.
        num_coins: Records that are audited at once; for clients at most as many as there are.
        confidence: With which the bound holds.
        seed: Of the coins.

    Returns:
        "fail" if the bound exceeds the largest ε that the training declares.

    Raises:
        BadInput: Model, plan, data and configuration do not fit together.
    """
    level = require_number(confidence, "confidence", 0.5, 1.0)
    rng, by_client = np.random.default_rng([seed, 78]), config.protection.unit == "client"
    if by_client:
        groups = [data.members[k] for k in rng.permutation(data.num_clients)[:num_coins]]
    else:
        rows = np.concatenate(data.members)
        groups = [rows[k : k + 1] for k in rng.permutation(len(rows))[: require_count(num_coins, "num_coins")]]
    coins = rng.integers(0, 2, len(groups)).astype(np.bool_)
    wrong = np.arange(data.num_classes > 2, data.num_classes)
    versions = np.array([rng.choice(wrong, 2, replace=False) for _ in groups])  # by what labels are moved on
    labels = np.array(data.labels)
    for group, coin, steps in zip(groups, coins, versions, strict=True):
        labels[group] = (data.labels[group] + steps[int(coin)]) % data.num_classes
    *_, record = train_rounds(model, replace(data, labels=labels), plan, config)
    trained = load_weights(model, record).eval()
    scores = np.array([_prefers_second(trained, data, *known) for known in zip(groups, versions, strict=True)])
    claimed, delta = _claim(record.dp_epsilon, config.protection.dp_delta, config.protection.adjacency == "zero_out")
    bounds = {share: _bound(scores, coins, share, delta, (1 - level) / len(SHARES_GUESSED)) for share in SHARES_GUESSED}
    measured = max(bounds.values())
    return AuditResult(
        "training",
        "fail" if measured > claimed else "pass",
        claimed,
        measured,
        level,
        {
            "protection": config.protection.name,
            "unit": config.protection.unit,
            "num_coins": len(groups),
            "right": int(((scores > np.median(scores)) == coins).sum()),
            "dp_delta": delta,
            "accuracy": record.accuracy,
            "bound_by_share_guessed": bounds,
            "seed": seed,
        },
    )


def _claim(dp_epsilon: float, dp_delta: float, doubled: bool) -> tuple[float, float]:
    """ε and δ between the two versions: a record that is taken out and put back changed is two steps of zero-out."""
    if not doubled:
        return dp_epsilon, dp_delta
    return 2 * dp_epsilon, min(1.0, dp_delta * (1 + math.exp(min(dp_epsilon, 500.0))))


def _prefers_second(model: nn.Module, data: ClientData, rows: IntArray, steps: IntArray) -> float:
    """How much better the model knows the second version of these rows: its log-likelihood less that of the first."""
    labels = (data.labels[rows, None] + steps) % data.num_classes  # [rows, versions]
    with torch.no_grad():
        log_likelihood = torch.log_softmax(model(torch.from_numpy(np.array(data.features[rows]))).double(), 1)
    return float(log_likelihood.gather(1, torch.from_numpy(labels)).diff().mean())


def _bound(scores: Array, coins: BoolArray, share: float, delta: float, chance: float) -> float:
    """ε that so many right guesses refute, where the share of the coins about which the model says most is guessed."""
    from_median = scores - np.median(scores)
    guessed = np.argsort(-np.abs(from_median))[: max(1, round(share * len(scores)))]
    right = int(((from_median[guessed] > 0) == coins[guessed]).sum())
    low, high = 0.0, 1.0
    if _p_value(len(scores), len(guessed), right, 0.0, delta) >= chance:
        return 0.0
    while high < 64 and _p_value(len(scores), len(guessed), right, high, delta) < chance:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _p_value(len(scores), len(guessed), right, middle, delta) < chance else (low, middle)
        )
    return low


def _p_value(num_coins: int, guesses: int, right: int, dp_epsilon: float, dp_delta: float) -> float:
    """How likely an (ε, δ) training allows at least `right` right guesses.

    P[B ≥ v] + 2mδ · max_i P[v > B ≥ v-i]/i with B ~ Binomial(guesses, 1/(1+e^-ε)), at most 1.
    """
    right_by_chance = binom(guesses, 1 / (1 + math.exp(-dp_epsilon)))
    tail = float(right_by_chance.sf(right - 1))
    short = np.arange(1, right + 1)
    near = (right_by_chance.sf(right - 1 - short) - tail) / short
    return min(1.0, tail + 2 * num_coins * dp_delta * float(near.max(initial=0.0)))
