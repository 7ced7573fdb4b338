"""The attackers of the neighbour audit: a Gaussian field, and belief propagation, each scaled on public clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, log_expit

from mppfl.arrays import Array, IntArray
from mppfl.leakage.belief_propagation import Messages
from mppfl.leakage.couplings import friendships, is_forest
from mppfl.leakage.gaussian_field import FieldFit, field_kernel, leave_one_out
from mppfl.leakage.signals import Signals
from mppfl.network import SocialGraph

LOOPY_SWEEPS = 4  # more only turn evidence round the cycles
LOOPY_COUPLINGS = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
LOOPY_DRAWS = 2  # noise draws per target
MESSAGES_AT_ONCE = 1 << 21


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attacker gained."""

    gains: Array  # [targets, draws] log-loss gain over the prior, nats
    hits: int  # right guesses in the first draw
    predicted: Array | None = None  # [targets] the level the attacker expects


def attack_by_field(
    graph: SocialGraph,
    labels: Array,
    public: Any,
    modes: tuple[Array, Array],
    fit: FieldFit,
    signals: Signals,
    learn: Array,
    test: Array,
) -> Attack:
    """The Gaussian field's exact leave-one-out estimate and the friends' sum, scaled on the public clients."""
    p = fit.rate
    middle, spread = 2 * p - 1, 2 * math.sqrt(p * (1 - p))
    _, noise = signals.values(learn)
    left, weights = leave_one_out(field_kernel(modes, fit.beta, fit.eta), noise / spread**2)
    upper, lower = (1 - middle) / spread, (-1 - middle) / spread
    linked = friendships(graph)
    degrees = np.maximum(linked.sum(axis=1), 1.0)

    def features(uploads: Array, of: IntArray) -> Array:  # [targets, draws, features]
        values, _ = signals.values(uploads)
        centred = np.where(np.isfinite(noise), (values - middle) / spread, 0.0)
        means = weights[of] @ centred.T
        left_of = left[of][:, None]
        odds = (upper - lower) * means / left_of - 0.5 * (upper**2 - lower**2) * (1 / left_of - 1)
        lean = np.where(np.isfinite(noise), centred / (1 + noise), 0.0)
        friends = (linked[of] @ lean.T) / np.sqrt(degrees[of])[:, None]
        return np.stack([odds, means, friends], axis=2)

    known, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    found = _scaled(features(learn, known), labels[known], features(test, hidden), labels[hidden], p)
    return Attack(found.gains, found.hits, np.maximum(0.0, -0.5 * np.log(left[hidden])))


def attack_by_messages(
    graph: SocialGraph, labels: Array, public: Any, rate: float, signals: Signals, learn: Array, test: Array
) -> Attack:
    """Belief propagation with one coupling for all links, the one that serves the public clients best."""
    base = 0.5 * math.log(rate / (1 - rate))
    known, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    forest = is_forest(graph)

    def features(coupling: float, uploads: Array, of: IntArray, each: int) -> Array:  # [targets, each, 1]
        links = Messages.of(graph, coupling)
        sweeps = None if forest else LOOPY_SWEEPS
        _, silent = links.settle(np.full((graph.num_clients, 1), base), sweeps)
        targets = np.repeat(of, each)
        # Targets take turns with the draws: one draw for all would calibrate to its own luck, which loops amplify.
        draws = (np.arange(len(of))[:, None] + np.arange(each)).ravel() % len(uploads)
        leaning = base + signals.evidence(uploads).T  # [clients, draws]
        if forest:  # no message returns to its sender, so nothing need be withheld
            told = links.settle(leaning)[1][targets, draws]
        else:
            told = np.empty(len(targets))
            at_once = max(1, MESSAGES_AT_ONCE // len(links.source))
            for start in range(0, len(targets), at_once):
                some, columns = targets[start : start + at_once], draws[start : start + at_once]
                withheld = leaning[:, columns]
                withheld[some, np.arange(len(some))] = base  # else the target's own upload would return round a cycle
                told[start : start + at_once] = links.settle(withheld, sweeps)[1][some, np.arange(len(some))]
        return np.asarray(2 * (told.reshape(len(of), each) - silent[of])[:, :, None])

    best, coupling = -math.inf, LOOPY_COUPLINGS[0]
    for tried in LOOPY_COUPLINGS:
        seen = features(tried, learn, known, 1)
        score = float(_scaled(seen, labels[known], seen, labels[known], rate).gains.mean())
        if score > best:
            best, coupling = score, tried
    seen, met = features(coupling, learn, known, 1), features(coupling, test, hidden, LOOPY_DRAWS)
    return _scaled(seen, labels[known], met, labels[hidden], rate)


def _scaled(learn: Array, learn_labels: Array, test: Array, test_labels: Array, rate: float) -> Attack:
    """Log-odds = prior + features · weights, by ridge logistic regression on `learn` [targets, draws, features]."""
    offset = math.log(rate / (1 - rate))
    _, draws, width = learn.shape
    scale = np.sqrt((learn**2).mean(axis=(0, 1)))
    scale[scale == 0] = 1.0
    rows = (learn / scale).reshape(-1, width)
    sides = np.repeat(learn_labels, draws)
    weights = np.zeros(width)
    for _ in range(50):  # Newton; the ridge of one row in `draws` keeps it well posed
        chance = expit(offset + rows @ weights)
        slope = rows.T @ ((sides > 0) - chance) - draws * weights
        curve = (rows * (chance * (1 - chance))[:, None]).T @ rows + draws * np.eye(width)
        step = np.linalg.solve(curve, slope)
        weights = weights + step
        if np.abs(step).max() < 1e-10:
            break
    odds = offset + (test / scale) @ weights  # [targets, draws]
    labels = test_labels[:, None]
    gains = log_expit(labels * odds) - log_expit(labels * offset)
    return Attack(gains, int((labels[:, 0] * odds[:, 0] > 0).sum()))
