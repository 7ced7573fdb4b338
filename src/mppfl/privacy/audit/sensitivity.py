"""Audit of sensitivity: change one record, switch the noise off, and see how far a mechanism's answers move.

A small network is really trained on data sets that differ in one record only: its label flipped, its features blown up
10, 100 and 1000 times, and mirrored. Any two of them are neighbours, so the farthest two answers bound the true
sensitivity from below. If they lie farther apart than the mechanism declares, its noise is too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

from mppfl.arrays import Array, require_count, require_number
from mppfl.errors import BadInput
from mppfl.privacy import LocalWork, PrivacyMechanism
from mppfl.privacy.audit.canaries import AuditResult

NUM_FEATURES, NUM_HIDDEN, NUM_CLASSES = 20, 64, 2
NUM_WEIGHTS = NUM_FEATURES * NUM_HIDDEN + NUM_HIDDEN + NUM_HIDDEN * NUM_CLASSES + NUM_CLASSES
OUTLIERS = (10, 100, 1000)
CLIP_NORMS = 1e-9, 1e9  # far beyond either, squares of distances leave float64
EXAMPLES_AT_ONCE = 4096  # their gradients take 48 MB
ROUNDING = 1e-9  # relative; two clipped gradients of exactly opposite direction reach the bound itself


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a mechanism is tried on: data sets that are all neighbours of each other, where they start, how they train.

    names     what was changed in each data set; the first is as it was
    features  [data sets, examples, features]
    labels    [data sets, examples]
    record    index of the record that was changed
    start     [weights]
    """

    names: tuple[str, ...]
    features: Tensor
    labels: Tensor
    record: int
    start: Tensor
    work: LocalWork
    clip_norm: float
    learning_rate: float


def audit_sensitivity(
    mechanism: PrivacyMechanism,
    *,
    local_epochs: int = 5,
    num_examples: int = 1000,
    batch_size: int = 32,
    clip_norm: float = 1.0,
    learning_rate: float = 0.01,
    seed: int = 0,
) -> AuditResult:
    """The largest ℓ2 distance between answers on neighbouring data, against the declared sensitivity.

    `claimed` and `measured` are in the unit of the noisy answer (an update, a mean gradient or a batch sum). Fails if
    an answer moves farther than declared, or if a record touches more answers than declared. `full_batch_steps` takes
    `local_epochs` steps. Trains a real network in float64, which takes seconds and PyTorch.
    """
    require_count(num_examples, "num_examples", 2)
    if require_count(batch_size, "batch_size") > num_examples:
        raise BadInput(f"batch_size={batch_size} is more than num_examples={num_examples}. Use smaller batches.")
    require_number(learning_rate, "learning_rate", 0.0, math.inf)
    require_number(clip_norm, "clip_norm", *CLIP_NORMS, open_ends=False)
    work = LocalWork(num_examples, local_epochs, local_epochs, batch_size)
    claimed = mechanism.sensitivity(clip_norm, work)
    generator = Generator().manual_seed(require_count(seed, "seed", 0))
    trial = _make_trial(mechanism, work, clip_norm, learning_rate, generator)

    farthest, total, touched = np.zeros(()), np.zeros(()), 0
    for answers in _answers(mechanism, trial, generator):
        distances = _distances(answers, mechanism)
        farthest, total = np.maximum(farthest, distances), total + distances**2
        touched += bool(distances.max() > 1e-12 * clip_norm)

    names = (*trial.names, "absent") if mechanism.adjacency == "add-remove" else trial.names
    worst = np.unravel_index(int(farthest.argmax()), farthest.shape)
    measured = float(farthest[worst])
    declared = mechanism.queries(work)
    counted = mechanism.is_zcdp  # Poisson batches hold a record at random: its accountant counts, not we
    ratio = measured / claimed
    multiplier = float(total.max()) / (declared * claimed**2) if counted else ratio**2
    holds = ratio <= 1 + ROUNDING and (touched <= declared or not counted)
    reference = len(names) - 1 if mechanism.adjacency == "add-remove" else 0
    return AuditResult(
        audit="sensitivity",
        verdict="pass" if holds else "fail",
        claimed=claimed,
        measured=measured,
        confidence=None,
        details={
            "mechanism": mechanism.name,
            "unit": mechanism.unit,
            "adjacency": mechanism.adjacency,
            "noise_on": mechanism.noise_on,
            "worst_change": measured,
            "between": [names[worst[0]], names[worst[1]]],
            "ratio": ratio,
            "budget_multiplier": multiplier,
            "worst_case_multiplier": mechanism.worst_case_budget(1.0, work) if counted else None,
            "answers_touched": touched if counted else None,
            "answers_declared": declared if counted else None,
            "change_of_each": {
                name: float(farthest[reference, where]) for where, name in enumerate(names) if where != reference
            },
            "num_examples": num_examples,
            "local_epochs": local_epochs,
            "batch_size": batch_size,
            "clip_norm": clip_norm,
            "learning_rate": learning_rate,
            "seed": seed,
            "meaning": _meaning(mechanism, ratio, multiplier, holds),
        },
    )


def _meaning(mechanism: PrivacyMechanism, ratio: float, multiplier: float, holds: bool) -> str:
    if not holds:
        return (
            f"one changed {mechanism.unit} moves the {mechanism.noise_on} {_times(ratio)} times as far as declared, "
            f"so every budget really costs at least {_times(multiplier)} times as much"
        )
    if not mechanism.is_zcdp:
        return (
            f"adding or removing a record moves a batch sum by {100 * ratio:.3g} % of the clip norm at most; "
            "how often Poisson sampling draws it is the accountant's business and is not measured here"
        )
    return (
        f"no change moved the {mechanism.noise_on} farther than declared; the worst reached {100 * ratio:.3g} % of it"
    )


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.3g}"


def _make_trial(
    mechanism: PrivacyMechanism, work: LocalWork, clip_norm: float, learning_rate: float, generator: Generator
) -> _Trial:
    """Two overlapping Gaussian classes and one record of them in all its variants."""
    n, float64 = work.num_examples, torch.float64
    labels = torch.randint(NUM_CLASSES, (n,), generator=generator)
    centre = torch.randn(NUM_FEATURES, generator=generator, dtype=float64)
    centre *= 1.0 / centre.norm()
    features = torch.randn(n, NUM_FEATURES, generator=generator, dtype=float64)
    features += (2.0 * labels - 1.0)[:, None] * centre
    record = int(torch.randint(n, (1,), generator=generator))

    x, y = features[record], int(labels[record])
    variants = [("as it was", x, y), ("label flipped", x, 1 - y)]
    for factor in OUTLIERS:
        variants += [
            (f"outlier x{factor}", factor * x, y),
            (f"outlier x{factor}, label flipped", factor * x, 1 - y),
            (f"outlier x{factor}, mirrored", -factor * x, y),
        ]
    names = [name for name, _, _ in variants]
    all_features, all_labels = features.repeat(len(names), 1, 1), labels.repeat(len(names), 1)
    for where, (_, new_x, new_y) in enumerate(variants):
        all_features[where, record], all_labels[where, record] = new_x, new_y
    if mechanism.unit == "client":  # then a neighbour may differ in every record
        names += ["every label flipped", "every record mirrored", "every record an outlier x10"]
        all_features = torch.cat((all_features, torch.stack((features, -features, 10 * features))))
        all_labels = torch.cat((all_labels, torch.stack((1 - labels, labels, labels))))

    fan_in = (
        torch.full((NUM_FEATURES * NUM_HIDDEN + NUM_HIDDEN,), float(NUM_FEATURES), dtype=float64),
        torch.full((NUM_HIDDEN * NUM_CLASSES + NUM_CLASSES,), float(NUM_HIDDEN), dtype=float64),
    )
    start = torch.randn(NUM_WEIGHTS, generator=generator, dtype=float64) / torch.cat(fan_in).sqrt()
    return _Trial(tuple(names), all_features, all_labels, record, start, work, clip_norm, learning_rate)


def _answers(mechanism: PrivacyMechanism, trial: _Trial, generator: Generator) -> Iterator[Tensor]:
    """Every answer that gets noise, [data sets, weights]; under add-remove one more row for the unit's absence.

    Mechanisms that answer step by step are compared at the same weights, those of the unchanged data: each answer is
    noisy and public before the next is asked, so only the difference at a common past counts.
    """
    if mechanism.name in ("paper", "client"):
        yield _clipped_updates(mechanism, trial, generator)
    elif mechanism.name in ("full_batch", "full_batch_steps"):
        yield from _mean_gradients(mechanism, trial)
    else:
        yield from _batch_sums(mechanism, trial, generator)


def _clipped_updates(mechanism: PrivacyMechanism, trial: _Trial, generator: Generator) -> Tensor:
    """Whole local trainings, every data set along its own path, each update clipped once at the end."""
    gradient = vmap(grad(_mean_loss))
    weights = trial.start.repeat(len(trial.names), 1)
    for batch in _shuffled_batches(trial.work, generator):
        weights = weights - trial.learning_rate * gradient(weights, trial.features[:, batch], trial.labels[:, batch])
    updates = weights - trial.start
    if not bool(torch.isfinite(updates).all()):
        raise BadInput(f"learning_rate={trial.learning_rate:g} made the training overflow. Choose a smaller one.")
    clipped = _clip(updates, trial.clip_norm)
    if mechanism.adjacency == "add-remove":  # who is absent uploads nothing
        clipped = torch.cat((clipped, torch.zeros_like(clipped[:1])))
    return clipped


def _mean_gradients(mechanism: PrivacyMechanism, trial: _Trial) -> Iterator[Tensor]:
    """Means of per-example clipped gradients over all the data."""
    weights = trial.start
    for _ in range(mechanism.queries(trial.work)):
        sums = _clipped_sums(weights, trial.features, trial.labels, trial.clip_norm)
        means = sums / trial.work.num_examples
        yield means
        weights = weights - trial.learning_rate * means[0]


def _batch_sums(mechanism: PrivacyMechanism, trial: _Trial, generator: Generator) -> Iterator[Tensor]:
    """Sums of per-example clipped gradients over batches; under add-remove always with the record, and without it."""
    weights, poisson = trial.start, mechanism.adjacency == "add-remove"
    batches = _poisson_batches(trial.work, generator) if poisson else _shuffled_batches(trial.work, generator)
    for batch in batches:
        if poisson:
            others = batch[batch != trial.record]
            present = torch.cat((others, torch.tensor([trial.record])))
            sums = torch.cat(
                (
                    _clipped_sums(weights, trial.features[:, present], trial.labels[:, present], trial.clip_norm),
                    _clipped_sums(weights, trial.features[:1, others], trial.labels[:1, others], trial.clip_norm),
                )
            )
        else:
            sums = _clipped_sums(weights, trial.features[:, batch], trial.labels[:, batch], trial.clip_norm)
        yield sums
        weights = weights - trial.learning_rate * sums[0] / trial.work.batch_size


def _shuffled_batches(work: LocalWork, generator: Generator) -> Iterator[Tensor]:
    """Indices of disjoint batches, shuffled anew in every epoch without a look at the data."""
    for _ in range(work.local_epochs):
        yield from torch.split(torch.randperm(work.num_examples, generator=generator), work.batch_size)


def _poisson_batches(work: LocalWork, generator: Generator) -> Iterator[Tensor]:
    """Indices of batches that every record joins by its own coin."""
    for _ in range(work.num_batches):
        coins = torch.rand(work.num_examples, generator=generator, dtype=torch.float64)
        yield (coins < work.sampling_rate).nonzero()[:, 0]


def _loss(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the network 20-64-2 with ReLU on one example, weights in one vector."""
    sizes = [NUM_FEATURES * NUM_HIDDEN, NUM_HIDDEN, NUM_HIDDEN * NUM_CLASSES, NUM_CLASSES]
    first, first_bias, last, last_bias = torch.split(weights, sizes)
    hidden = (first.view(NUM_HIDDEN, NUM_FEATURES) @ x + first_bias).relu()
    return cross_entropy(last.view(NUM_CLASSES, NUM_HIDDEN) @ hidden + last_bias, y)


def _mean_loss(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    losses: Tensor = vmap(_loss, (None, 0, 0))(weights, features, labels)
    return losses.mean()


def _clipped_sums(weights: Tensor, features: Tensor, labels: Tensor, clip_norm: float) -> Tensor:
    """For every data set the sum of its per-example clipped gradients at the same weights: [data sets, weights]."""
    if not labels.shape[1]:
        return torch.zeros_like(weights).repeat(len(labels), 1)
    per_example = vmap(grad(_loss), (None, 0, 0))
    together = max(1, EXAMPLES_AT_ONCE // labels.shape[1])  # data sets per call: many small calls would be slow
    sums = []
    for x, y in zip(torch.split(features, together), torch.split(labels, together), strict=True):
        gradients = per_example(weights, x.flatten(0, 1), y.flatten())
        sums.append(_clip(gradients, clip_norm).view(*y.shape, -1).sum(1))
    return torch.cat(sums)


def _clip(rows: Tensor, clip_norm: float) -> Tensor:
    """Rows longer than `clip_norm` shortened to it, the others left."""
    norms: Tensor = rows.norm(dim=1, keepdim=True)
    return rows * (clip_norm / norms.clamp(min=clip_norm))


def _distances(answers: Tensor, mechanism: PrivacyMechanism) -> Array:
    """ℓ2 distances between answers of neighbours; under add-remove only those to the absent one, the last row."""
    distances: Array = (answers[:, None] - answers[None]).norm(dim=2).numpy()
    if mechanism.adjacency == "add-remove":
        distances[:-1, :-1] = 0.0
    return distances
