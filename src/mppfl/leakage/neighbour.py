"""The neighbour audit: withhold one client's upload, infer its attribute from everybody else's, compare with the bound.

Two settings. With `couplings` the attribute is drawn from a known Ising model on a forest, where ρ/4 per path is a
theorem (`r_bound`): exact belief propagation attacks, and a leak above the bound is a failure. With one real attribute
there is no theorem to contradict: a Gaussian field and loopy belief propagation attack, and the stronger counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit
from scipy.stats import beta as beta_distribution
from scipy.stats import norm, spearmanr

from mppfl.arrays import Array, require_count, require_number
from mppfl.errors import BadInput
from mppfl.leakage.attackers import Attack, attack_by_field, attack_by_messages
from mppfl.leakage.couplings import is_forest
from mppfl.leakage.exposure import as_signs, client_budgets, r_bound, read_attribute, require_dense
from mppfl.leakage.gaussian_field import FieldFit, fit_field, graph_modes
from mppfl.leakage.ising_tree import sample_ising_tree, tree_logits
from mppfl.leakage.signals import Release, Signals, client_release, learn_signals
from mppfl.network import SocialGraph
from mppfl.privacy.audit import AuditResult, Verdict

ATTACKERS = ("gaussian_field", "belief_propagation")
SURE = 4.0  # standard errors beyond which a leak contradicts the bound, or more where Bonferroni asks for more
FIELD_DRAWS = 8  # noise draws per target


def audit_neighbour(
    graph: SocialGraph,
    attribute: Any,
    budgets: Any,
    *,
    rng: np.random.Generator,
    couplings: Any = None,
    fields: Any = 0.0,
    release: Release = client_release,
    attackers: Sequence[str] = ATTACKERS,
    public_share: float = 0.3,
    draws: int = 4_000,
    clip_norm: float = 1.0,
) -> AuditResult:
    """How much everybody else's uploads tell about a client whose own is withheld.

    attribute  ±1 or 0/1, one per client; with `couplings` None (drawn from the model) or one row per draw
    budgets    client-level ρ, one or one per client
    couplings  of a known Ising model on a forest, as in `r_bound`; `fields` are its node fields
    draws      of attribute and noise, with `couplings`

    measured   the stronger attacker's mean log-loss gain over the prior, in nats: a lower bound on the information
    claimed    the mean of the tree bound, or None where no theorem holds
    Fails where a client's leak exceeds its bound by more than `SURE` standard errors (more after Bonferroni), or where
    uploads separate the two values by more than their budget allows. Without a theorem there is no claim to test.
    """
    size = graph.num_clients
    spent = client_budgets(budgets, size)
    clip = require_number(clip_norm, "clip_norm", 0.0, np.inf)
    unknown = set(attackers) - set(ATTACKERS)
    if unknown or not attackers:
        raise BadInput(f"attackers={tuple(attackers)!r} must be some of {', '.join(ATTACKERS)}.")
    if not (spent > 0).any():
        raise BadInput("every budget is 0: nobody uploads anything, so nothing can be inferred.")
    signals, shadow = learn_signals(release, spent, clip, rng)
    if couplings is not None:
        known = _ising_draws(graph, attribute, couplings, fields, require_count(draws, "draws", 100), rng)
        return _audit_tree(graph, known, spent, couplings, fields, release, signals, shadow, clip, rng)
    if attribute is None or np.ndim(attribute) > 1:
        raise BadInput(
            "attribute must be one value per client; only with couplings can it be None or one row per draw."
        )
    signs = read_attribute(graph, attribute)
    if np.isnan(signs).any():
        raise BadInput(f"attribute is unknown for {int(np.isnan(signs).sum()):,} clients; the audit needs all of them.")
    share = require_number(public_share, "public_share", 0.0, 1.0)
    return _audit_attribute(graph, signs, spent, release, signals, shadow, clip, tuple(attackers), share, rng)


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval for a chance of success."""
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta_distribution.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta_distribution.isf(tail, hits + 1, trials - hits))
    return low, high


def _audit_tree(
    graph: SocialGraph,
    known: Array,
    spent: Array,
    couplings: Any,
    fields: Any,
    release: Release,
    signals: Signals,
    shadow: dict[str, Any],
    clip: float,
    rng: np.random.Generator,
) -> AuditResult:
    draws, size = known.shape
    uploads = release(known, spent, clip, rng)
    prior, posterior = tree_logits(graph, couplings, fields, signals.evidence(uploads))
    gains = log_expit(known * posterior) - log_expit(known * prior)  # [draws, clients]
    leak, error = gains.mean(axis=0), gains.std(axis=0) / math.sqrt(draws)
    # The bound needs the rate for its entropy alone, the same for both values. The rarer one's chance keeps its digits
    # where the commoner's rounds to 1; where it vanishes too, the least number bounds it from above.
    rarer = np.maximum(expit(-np.abs(prior)), np.finfo(np.float64).tiny)
    bound = r_bound(graph, couplings, spent, rate=rarer)
    sure = max(SURE, float(norm.isf(1e-4 / size)))
    violated = np.flatnonzero(leak - sure * error > bound.nats + 1e-12)
    failures = _failures(shadow)
    if len(violated):
        failures.append(f"{len(violated)} of {size} clients leak more than the tree bound")
    picked = rng.integers(size, size=draws)  # one target per draw, so that trials are independent
    rows = np.arange(draws)
    hits = int((known[rows, picked] * posterior[rows, picked] > 0).sum())
    mean, mean_error = float(gains.mean()), float(gains.mean(axis=1).std() / math.sqrt(draws))
    null, null_error = _tree_null(known, prior, posterior, rng)
    excess = np.divide(leak - bound.nats, error, out=np.zeros(size), where=error > 0)
    details = {
        "setting": "Ising forest with known couplings",
        "strongest": "belief_propagation",
        "note": "belief propagation is exact here, so no other attacker can be stronger",
        "failures": failures,
        "release": shadow,
        "client_leak": leak,
        "client_standard_error": error,
        "client_bound": bound.nats,
        "bound": {"theorem": bound.theorem, "premises": bound.premises},
        "violations": [graph.name(int(i)) for i in violated],
        "standard_errors_for_violation": sure,
        "largest_excess_in_standard_errors": float(excess.max()),
        "draws": draws,
        **_summary(mean, mean_error, hits, draws),
        "null_leak": null,
        "null_standard_error": null_error,
        "ranking": _ranking(bound.nats, leak, mean, mean_error),
    }
    confidence = 1 - size * float(norm.sf(sure))
    verdict: Verdict = "fail" if failures else "pass"
    return AuditResult("neighbour", verdict, float(bound.nats.mean()), mean, confidence, details)


def _audit_attribute(
    graph: SocialGraph,
    signs: Array,
    spent: Array,
    release: Release,
    signals: Signals,
    shadow: dict[str, Any],
    clip: float,
    attackers: tuple[str, ...],
    share: float,
    rng: np.random.Generator,
) -> AuditResult:
    size = graph.num_clients
    require_dense(size, "the Gaussian field")
    public = np.zeros(size, dtype=np.bool_)
    public[rng.permutation(size)[: round(share * size)]] = True
    targets = np.flatnonzero(~public)
    if len(targets) < 2:
        raise BadInput(f"public_share={share:g} leaves {len(targets)} of {size} clients to attack. Lower it.")
    modes = graph_modes(graph)

    def attack(labels: Array, names: tuple[str, ...]) -> tuple[FieldFit, dict[str, Attack]]:
        fit = fit_field(graph, np.where(public, labels, np.nan), modes)
        learn, test = (release(np.tile(labels, (FIELD_DRAWS, 1)), spent, clip, rng) for _ in range(2))
        found = {}
        for name in names:
            if name == "gaussian_field":
                found[name] = attack_by_field(graph, labels, public, modes, fit, signals, learn, test)
            else:
                found[name] = attack_by_messages(graph, labels, public, fit.rate, signals, learn, test)
        return fit, found

    fit, found = attack(signs, attackers)
    levels = {name: _mean_and_error(each.gains) for name, each in found.items()}
    strongest = max(levels, key=lambda name: levels[name][0])
    _, permuted = attack(rng.permutation(signs), (strongest,))
    null, null_error = _mean_and_error(permuted[strongest].gains)
    mean, error = levels[strongest]
    per_client = found[strongest].gains.mean(axis=1)
    predicted = next((each.predicted for each in found.values() if each.predicted is not None), None)
    rate = fit.rate
    failures = _failures(shadow)
    details = {
        "setting": "one attribute, fitted on a public sample",
        "strongest": strongest,
        "attackers": {name: _summary(*levels[name], each.hits, len(targets)) for name, each in found.items()},
        "failures": failures,
        "release": shadow,
        "bound": {"theorem": "none", "premises": "no couplings given: nothing to contradict on this graph"},
        "fit": fit,
        "prior_accuracy": max(rate, 1 - rate),
        "entropy": -rate * math.log(rate) - (1 - rate) * math.log1p(-rate),
        "targets": targets,
        "client_leak": per_client,
        "predicted_leak": predicted,
        **_summary(mean, error, found[strongest].hits, len(targets)),
        "null_leak": null,
        "null_standard_error": null_error,
        "ranking": "not ranked: needs the gaussian_field attacker"
        if predicted is None
        else _ranking(predicted, per_client, mean, error),
    }
    return AuditResult("neighbour", "fail" if failures else "no claim to test", None, mean, None, details)


def _tree_null(known: Array, prior: Array, posterior: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Leak about permuted labels, with the scale of the odds fitted on one half of the draws and tried on the other."""
    mixed = known[rng.permutation(len(known))]
    half = len(mixed) // 2
    shift = posterior - prior

    def gains(scale: float, rows: slice) -> Array:
        side = mixed[rows]
        return np.asarray(log_expit(side * (prior + scale * shift[rows])) - log_expit(side * prior))

    first, second = slice(0, half), slice(half, None)
    best = minimize_scalar(lambda scale: -gains(scale, first).mean(), bounds=(-1.0, 1.0), method="bounded")
    per_draw = gains(float(best.x), second).mean(axis=1)
    return float(per_draw.mean()), float(per_draw.std() / math.sqrt(len(per_draw)))


def _ising_draws(
    graph: SocialGraph, attribute: Any, couplings: Any, fields: Any, draws: int, rng: np.random.Generator
) -> Array:
    if not is_forest(graph):
        raise BadInput("couplings are for forests, where the bound is exact to test; this graph has cycles. Omit them.")
    if attribute is None:
        return sample_ising_tree(graph, couplings, fields, draws, rng)
    rows = np.asarray(attribute, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != graph.num_clients or len(rows) < 100:
        raise BadInput(
            f"attribute of shape {rows.shape} with couplings: give None, or at least 100 draws of "
            f"{graph.num_clients} values. The bound is an average over draws of the model."
        )
    signs = as_signs(rows)
    if np.isnan(signs).any():
        raise BadInput("attribute has unknown values; draws of the model must be complete.")
    return signs


def _failures(shadow: dict[str, Any]) -> list[str]:
    loud = shadow["clients_louder_than_budget"]
    return [f"{loud} clients' uploads separate the two values by more than their budgets allow"] if loud else []


def _mean_and_error(gains: Array) -> tuple[float, float]:
    """Mean of gains [clients, draws] and its standard error: draws share a client's attribute, clients share a draw."""
    errors = [
        float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        for means in (gains.mean(axis=1), gains.mean(axis=0))
    ]
    return float(gains.mean()), math.hypot(*errors)


def _summary(mean: float, error: float, hits: int, trials: int) -> dict[str, Any]:
    return {
        "leak": mean,
        "standard_error": error,
        "interval": (mean - 1.96 * error, mean + 1.96 * error),
        "accuracy": hits / trials,
        "accuracy_interval": clopper_pearson(hits, trials),
    }


def _ranking(predicted: Array, leak: Array, mean: float, error: float) -> str:
    """Spearman of predicted and realised leak over the targets with its 95 % interval, or "no ranking"."""
    if mean - 1.96 * error <= 0:
        return "no ranking: the interval of the leak contains 0"
    if len(leak) < 10 or np.ptp(predicted) == 0 or np.ptp(leak) == 0:
        return "no ranking: too few clients, or all alike"
    found = float(spearmanr(predicted, leak).statistic)
    middle = math.atanh(max(-0.999999, min(found, 0.999999)))  # Fisher's z, wider by 1.06 for ranks
    low, high = (math.tanh(middle + side * 1.96 * 1.06 / math.sqrt(len(leak) - 3)) for side in (-1, 1))
    if low <= 0:
        return f"no ranking: Spearman {found:.2f}, interval {low:.2f} to {high:.2f} contains 0"
    return f"Spearman {found:.2f} ({low:.2f} to {high:.2f}) of predicted with realised leak"
