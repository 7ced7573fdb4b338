"""The neighbour audit: withhold one client's upload, infer its attribute from everybody else's, compare with the bound.

Two settings. With `couplings` the attribute is drawn from a known Ising model on a forest, where ρ/4 per path is a
theorem (`r_bound`): exact belief propagation attacks, and a leak above the bound is a failure. With one real attribute
there is no theorem to contradict: a Gaussian field and loopy belief propagation attack, and the stronger counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize_scalar
from scipy.special import expit
from scipy.stats import binomtest, norm

from mppfl.arrays import Array, BoolArray, IntArray, read_only, require_count, require_number
from mppfl.errors import BadInput
from mppfl.leakage.calibrate import public_part, spearman
from mppfl.leakage.field import (
    FieldFit,
    NormalisedWalk,
    field_of,
    fit_field,
    friendships,
    log_loss_gain,
    require_dense,
    walk_of,
)
from mppfl.leakage.levels import client_budgets, coupled_edges, is_forest, r_bound, read_attribute, rooted
from mppfl.network import SocialGraph, graph_from_edges
from mppfl.privacy import LocalWork, Protection
from mppfl.privacy.audit import AuditResult, Verdict

ATTACKERS = ("gaussian_field", "belief_propagation")
SURE = 4.0  # standard errors beyond which a leak contradicts the bound, or more where Bonferroni asks for more
FIELD_DRAWS = 8  # noise draws per target
LOOPY_SWEEPS = 4  # more only turn evidence round the cycles
LOOPY_COUPLINGS = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
LOOPY_DRAWS = 2  # noise draws per target
MESSAGES_AT_ONCE = 1 << 21
# (attribute ±1 [draws, clients], budgets, clip_norm, generator) -> what each client uploads [draws, clients]. A vector
# upload enters by its projection on the direction in which the attribute moves it: all that isotropic noise leaves.
Release = Callable[[Array, Array, float, np.random.Generator], Array]
SHADOWS = 400  # releases of a known value on either side, from which the attacker learns what the noise really is
SHADOW_SURE = 6.0  # standard errors: 1e-9 per client
STRONGEST_EVIDENCE = 20.0  # half log-likelihood ratio at which tanh is 1 to 17 digits


@dataclass(frozen=True, slots=True)
class Signals:
    """What an attacker takes uploads for: N(middle ± half_gap, std²); half_gap 0 where a client is silent."""

    middle: Array
    half_gap: Array
    std: Array

    def evidence(self, uploads: Array) -> Array:
        """Half the log-likelihood ratio of +1 against -1."""
        lean = self.half_gap * (uploads - self.middle) / self.std**2
        return np.clip(lean, -STRONGEST_EVIDENCE, STRONGEST_EVIDENCE)

    def values(self, uploads: Array) -> tuple[Array, Array]:
        """Unbiased noisy values of x and their variances, infinite for the silent."""
        heard = self.half_gap != 0  # below 0: an upload turned round tells as much
        gap = np.where(heard, self.half_gap, 1.0)
        noise = np.maximum((self.std / gap) ** 2, 1e-9)
        return np.where(heard, (uploads - self.middle) / gap, 0.0), np.where(heard, noise, np.inf)


def client_release(attribute: Array, budgets: Array, clip_norm: float, rng: np.random.Generator) -> Array:
    """x·clip_norm plus the noise of the `client` mechanism [draws, clients]; clients with budget 0 upload 0."""
    heard = budgets > 0
    std = _noise_std(budgets, clip_norm)
    noisy = attribute * clip_norm + np.where(heard, std, 0.0) * rng.standard_normal(attribute.shape)
    return np.where(heard, noisy, 0.0)


def learn_signals(
    release: Release, spent: Array, clip: float, rng: np.random.Generator
) -> tuple[Signals, dict[str, Any]]:
    """What uploads look like: as declared where shadow releases agree with it, else as the shadows show."""
    size = len(spent)
    plus, minus = (release(np.full((SHADOWS, size), side), spent, clip, rng) for side in (1.0, -1.0))
    if plus.shape != (SHADOWS, size) or not (np.isfinite(plus).all() and np.isfinite(minus).all()):
        raise BadInput(f"release gave shape {plus.shape} or values not finite; it must give a number per client.")
    declared = declared_signals(spent, clip)
    center, gap = (plus.mean(axis=0) + minus.mean(axis=0)) / 2, (plus.mean(axis=0) - minus.mean(axis=0)) / 2
    std = np.sqrt((plus.var(axis=0, ddof=1) + minus.var(axis=0, ddof=1)) / 2)
    floor = np.maximum(std, 1e-6 * np.maximum(np.abs(gap), 1e-300))
    as_declared = np.array([declared.middle, declared.half_gap, declared.std])
    errors = declared.std / np.sqrt(SHADOWS * np.array([[2], [2], [4]]))
    differs = (np.abs([center, gap, std] - as_declared) > SHADOW_SURE * errors).any(axis=0)
    differs &= (spent > 0) | (std > 0) | (gap != 0)
    ratio = np.abs(gap) / floor  # of half the gap to the noise; √(ρ/2) is what the budget pays for
    loud = ratio - np.sqrt(spent / 2) > SHADOW_SURE * np.sqrt((1 + ratio**2 / 2) / (2 * SHADOWS))
    shadow = {
        "clients_unlike_declared": int(differs.sum()),
        "clients_louder_than_budget": int(loud.sum()),
        "shadow_releases": 2 * SHADOWS,
    }
    return Signals(*np.where(differs, [center, gap, floor], as_declared)), shadow


def declared_signals(spent: Array, clip: float) -> Signals:
    """What uploads under protection of clients look like for these budgets."""
    heard = spent > 0
    return Signals(np.zeros(len(spent)), np.where(heard, clip, 0.0), _noise_std(spent, clip))


def _noise_std(spent: Array, clip: float) -> Array:
    protection, work = Protection(unit="client", clip_norm=clip), LocalWork(num_examples=1)
    return np.array([protection.noise_std(rho, work) if rho > 0 else 1.0 for rho in spent])


@dataclass(frozen=True, slots=True)
class Attack:
    """What an attacker gained."""

    gains: Array  # [targets, draws] log-loss gain over the prior, nats
    hits: int  # right guesses in the first draw
    predicted: Array | None = None  # [targets] the level the attacker expects


def attack_by_field(
    walk: NormalisedWalk, labels: Array, public: BoolArray, fit: FieldFit, signals: Signals, learn: Array, test: Array
) -> Attack:
    """The Gaussian field's exact leave-one-out estimate and the friends' sum, scaled on the public clients.

    For networks that fit matrices.
    """
    middle, spread = fit.mean_and_spread
    noise = signals.values(learn)[1]
    heard = field_of(walk, fit, np.random.default_rng(0)).hear(noise / spread**2, np.random.default_rng(0))
    degrees = np.maximum(walk.connected.sum(axis=1), 1.0)[:, None]

    def features(uploads: Array, of: IntArray) -> Array:  # [targets, draws, features]
        values = signals.values(uploads)[0]
        centred = np.where(np.isfinite(noise), (values - middle) / spread, 0.0).T
        means = heard.means(centred)
        friends = walk.connected @ (centred / (1 + noise[:, None])) / np.sqrt(degrees)
        return np.stack([fit.log_odds(means, heard.left[:, None]), means, friends], axis=2)[of]

    shown, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    attack = _scaled(features(learn, shown), labels[shown], features(test, hidden), labels[hidden], fit.rate)
    return Attack(attack.gains, attack.hits, np.maximum(0.0, -0.5 * np.log(heard.left[hidden])))


def attack_by_messages(
    graph: SocialGraph, labels: Array, public: BoolArray, rate: float, signals: Signals, learn: Array, test: Array
) -> Attack:
    """Belief propagation with one coupling for all edges, the one that serves the public clients best."""
    base = 0.5 * math.log(rate / (1 - rate))
    shown, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    forest = is_forest(graph)

    def features(coupling: float, uploads: Array, of: IntArray, num_draws: int) -> Array:
        edges = IsingModel(graph, coupling)
        sweeps = None if forest else LOOPY_SWEEPS
        _, silent = edges.settle(np.full((graph.num_clients, 1), base), sweeps)
        targets = np.repeat(of, num_draws)
        # Targets take turns with the draws: one draw for all would calibrate to its own luck, which loops amplify.
        draws = (np.arange(len(of))[:, None] + np.arange(num_draws)).ravel() % len(uploads)
        leaning = base + signals.evidence(uploads).T  # [clients, draws]
        if forest:  # no message returns to its sender, so nothing need be withheld
            sums = edges.settle(leaning)[1][targets, draws]
        else:
            sums = np.empty(len(targets))
            at_once = max(1, MESSAGES_AT_ONCE // len(edges.messages[0]))
            for start in range(0, len(targets), at_once):
                some, columns = targets[start : start + at_once], draws[start : start + at_once]
                withheld = leaning[:, columns]
                withheld[some, np.arange(len(some))] = base  # else the target's own upload would return round a cycle
                sums[start : start + at_once] = edges.settle(withheld, sweeps)[1][some, np.arange(len(some))]
        return np.asarray(2 * (sums.reshape(len(of), num_draws) - silent[of])[:, :, None])

    trials = {coupling: features(coupling, learn, shown, 1) for coupling in LOOPY_COUPLINGS}
    known = labels[shown]
    best = max(
        trials, key=lambda coupling: _scaled(trials[coupling], known, trials[coupling], known, rate).gains.mean()
    )
    return _scaled(trials[best], known, features(best, test, hidden, LOOPY_DRAWS), labels[hidden], rate)


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
    return Attack(log_loss_gain(labels, odds, offset), int((labels[:, 0] * odds[:, 0] > 0).sum()))


@dataclass(frozen=True, eq=False)
class IsingModel:
    """P(x) ∝ exp(Σ_edges J x_u x_v + Σ_v h_v x_v), x = ±1, and belief propagation on its edges.

    couplings  J, one for all edges or as a matrix
    fields     h, one for all clients or one per client
    """

    graph: SocialGraph
    couplings: Any
    fields: Any = 0.0

    @cached_property
    def local(self) -> Array:
        """h of every client."""
        local = read_only(self.fields, "fields", length=self.graph.num_clients)
        if not np.isfinite(local).all():
            raise BadInput("fields must be finite numbers.")
        return local

    @cached_property
    def messages(self) -> tuple[IntArray, IntArray, Array]:
        """Every edge in both directions: whom message k comes from, whom it goes to, and J; k ± E goes back."""
        firsts, seconds, strengths = coupled_edges(self.graph, self.couplings)
        strongest = np.abs(strengths).max(initial=0.0)
        if strongest > 15:
            raise BadInput(f"a coupling of {strongest:g} is a certainty in all but name; use at most 15.")
        return np.append(firsts, seconds), np.append(seconds, firsts), np.tile(strengths, 2)

    def settle(self, leaning: Array, sweeps: int | None = None) -> tuple[Array, Array]:
        """Messages [edges both ways, draws] and their sums at each client, from fields [clients, draws].

        A message is atanh(tanh J · tanh(what the sender knows without the receiver)). Without `sweeps`, they travel
        until they stand still: on a forest after as many sweeps as the longest path has edges.
        """
        source, target, coupling = self.messages
        count, strengths = len(source), np.tanh(coupling)[:, None]
        gather = sp.csr_array((np.ones(count), (target, np.arange(count))), shape=(len(leaning), count))
        messages = np.zeros((count, leaning.shape[1]))
        for _ in range(len(leaning) if sweeps is None else sweeps):
            without = (leaning + gather @ messages)[source] - np.roll(messages, count // 2, axis=0)
            before, messages = messages, np.arctanh(strengths * np.tanh(without))
            if sweeps is None and np.array_equal(before, messages):
                break
        return messages, gather @ messages

    def sample(self, draws: int, rng: np.random.Generator) -> Array:
        """Exact draws of ±1 [draws, clients] on a forest: roots from their marginals, children given their parents."""
        (source, target, coupling), (towards, total) = self.messages, self.settle(self.local[:, None])
        message = {ends: k for k, ends in enumerate(zip(source.tolist(), target.tolist(), strict=True))}
        drawn = np.empty((draws, self.graph.num_clients))
        order, parents = rooted(friendships(self.graph))
        for node, parent in zip(order.tolist(), parents[order].tolist(), strict=True):
            lean = self.local[node] + total[node, 0]
            if parent >= 0:
                k = message[parent, node]
                lean = lean - towards[k, 0] + coupling[k] * drawn[:, parent]
            drawn[:, node] = np.where(rng.random(draws) < expit(2 * lean), 1.0, -1.0)
        return drawn

    def log_odds(self, evidence: Array) -> tuple[Array, Array]:
        """Exact log-odds of X_i = +1 on a forest: before [clients], and given everybody else's evidence, both
        [draws, clients]."""
        before, after = (self.settle(self.local[:, None] + more)[1] for more in (0.0, evidence.T))
        return 2 * (self.local + before[:, 0]), 2 * (self.local + after.T)


def random_ising_tree(
    num_clients: int, rng: np.random.Generator, *, strongest: float = 1.5, strongest_field: float = 1.0
) -> IsingModel:
    """A random recursive tree with couplings and fields uniform in ± their strongest."""
    size = require_count(num_clients, "num_clients", 2)
    children = np.arange(1, size)
    parents = np.array([int(rng.integers(child)) for child in children])
    graph = graph_from_edges(parents, children, num_clients=size, undirected=True)
    strengths = rng.uniform(-strongest, strongest, size - 1)
    matrix = sp.coo_array((strengths, (parents, children)), shape=(size, size)).tocsr()
    return IsingModel(graph, (matrix + matrix.T).tocsr(), rng.uniform(-strongest_field, strongest_field, size))


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
    """How much everybody else's uploads tell about a client whose own upload is withheld.

    attribute  ±1 or 0/1, one per client; None with `couplings`: it is then drawn from the model
    budgets    client-level ρ, one or one per client
    couplings  of a known Ising model on a forest, as in `r_bound`; `fields` are its node fields
    draws      of attribute and noise, with `couplings`

    measured   the stronger attacker's mean log-loss gain over the prior, in nats: a lower bound on the information
    claimed    the mean of the tree bound, or None where no theorem holds
    Fails where a client's leak exceeds its bound by more than `SURE` standard errors (more after Bonferroni), or where
    uploads separate the two values by more than their budget allows. Without a theorem there is no claim to test.
    """
    spent = client_budgets(budgets, graph.num_clients)
    clip = require_number(clip_norm, "clip_norm", 0.0, np.inf)
    if not attackers or set(attackers) - set(ATTACKERS):
        raise BadInput(f"attackers={tuple(attackers)!r} must be some of {', '.join(ATTACKERS)}.")
    if not (spent > 0).any():
        raise BadInput("every budget is 0: nobody uploads anything, so nothing can be inferred.")
    signals, shadow = learn_signals(release, spent, clip, rng)
    loud = shadow["clients_louder_than_budget"]
    failures = [f"{loud} clients' uploads separate the two values by more than their budgets allow"] if loud else []
    claimed, confidence = None, None

    def upload(signs: Array) -> Array:
        return release(signs, spent, clip, rng)

    if couplings is not None:
        model = _forest_model(graph, attribute, couplings, fields)
        signs = model.sample(require_count(draws, "draws", 100), rng)
        details = _audit_forest(model, signs, spent, signals.evidence(upload(signs)), rng)
        louder, size = len(details["violations"]), graph.num_clients
        failures += [f"{louder} of {size} clients leak more than the tree bound"] if louder else []
        claimed = float(details["client_bound"].mean())
        confidence = 1 - size * float(norm.sf(details["standard_errors_for_violation"]))
    else:
        signs = _whole_attribute(graph, attribute)
        public = public_part(signs, require_number(public_share, "public_share", 0.0, 1.0), rng)
        details = _audit_attribute(graph, signs, public, upload, signals, tuple(attackers), rng)
    details |= {"failures": failures, "release": shadow}
    verdict: Verdict = "fail" if failures else "no claim to test" if claimed is None else "pass"
    return AuditResult("neighbour", verdict, claimed, details["leak"], confidence, details)


def _audit_forest(
    model: IsingModel, signs: Array, spent: Array, evidence: Array, rng: np.random.Generator
) -> dict[str, Any]:
    """Exact belief propagation on draws [draws, clients] of the attribute, against the tree bound."""
    draws, size = signs.shape
    prior, posterior = model.log_odds(evidence)
    gains = log_loss_gain(signs, posterior, prior)  # [draws, clients]
    leak, error = gains.mean(axis=0), gains.std(axis=0) / math.sqrt(draws)
    # The bound needs the rate for its entropy alone, the same for both values. The rarer one's chance keeps its digits
    # where the commoner's rounds to 1; where it vanishes too, the least number bounds it from above.
    rarer = np.maximum(expit(-np.abs(prior)), np.finfo(np.float64).tiny)
    bound = r_bound(model.graph, model.couplings, spent, rate=rarer)
    sure = max(SURE, float(norm.isf(1e-4 / size)))
    violated = np.flatnonzero(leak - sure * error > bound.nats + 1e-12)
    picked = rng.integers(size, size=draws)  # one target per draw, so that trials are independent
    rows = np.arange(draws)
    hits = int((signs[rows, picked] * posterior[rows, picked] > 0).sum())
    mean, mean_error = float(gains.mean()), float(gains.mean(axis=1).std() / math.sqrt(draws))
    null, null_error = _tree_null(signs, prior, posterior, rng)
    excess = np.divide(leak - bound.nats, error, out=np.zeros(size), where=error > 0)
    return {
        "setting": "Ising forest with known couplings",
        "strongest": "belief_propagation",
        "note": "belief propagation is exact here, so no other attacker can be stronger",
        "client_leak": leak,
        "client_standard_error": error,
        "client_bound": bound.nats,
        "bound": {"theorem": bound.theorem, "premises": bound.premises},
        "violations": [model.graph.name(int(i)) for i in violated],
        "standard_errors_for_violation": sure,
        "largest_excess_in_standard_errors": float(excess.max()),
        "draws": draws,
        **_summary(mean, mean_error, hits, draws),
        "null_leak": null,
        "null_standard_error": null_error,
        "ranking": _ranking(bound.nats, leak, mean, mean_error),
    }


def _audit_attribute(
    graph: SocialGraph,
    signs: Array,
    public: BoolArray,
    upload: Callable[[Array], Array],
    signals: Signals,
    attackers: tuple[str, ...],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """The attackers on one real attribute, fitted on its public part, and the strongest again on permuted values."""
    walk, targets = walk_of(graph), np.flatnonzero(~public)
    if len(targets) < 2:
        raise BadInput(f"public_share leaves {len(targets)} of {len(signs)} clients to attack. Lower it.")

    def attack(labels: Array, names: tuple[str, ...]) -> tuple[FieldFit, dict[str, Attack]]:
        fit = fit_field(walk, np.where(public, labels, np.nan), rng)
        learn, test = (upload(np.tile(labels, (FIELD_DRAWS, 1))) for _ in range(2))
        ways = {
            "gaussian_field": lambda: attack_by_field(walk, labels, public, fit, signals, learn, test),
            "belief_propagation": lambda: attack_by_messages(graph, labels, public, fit.rate, signals, learn, test),
        }
        return fit, {name: ways[name]() for name in names}

    fit, attacks = attack(signs, attackers)
    levels = {name: _mean_and_error(attacks[name].gains) for name in attacks}
    strongest = max(levels, key=lambda name: levels[name][0])
    null, null_error = _mean_and_error(attack(rng.permutation(signs), (strongest,))[1][strongest].gains)
    mean, error = levels[strongest]
    per_client = attacks[strongest].gains.mean(axis=1)
    predicted = attacks["gaussian_field"].predicted if "gaussian_field" in attacks else None
    return {
        "setting": "one attribute, fitted on a public sample",
        "strongest": strongest,
        "attackers": {name: _summary(*levels[name], way.hits, len(targets)) for name, way in attacks.items()},
        "bound": {"theorem": "none", "premises": "no couplings given: nothing to contradict on this graph"},
        "fit": fit,
        "prior_accuracy": max(fit.rate, 1 - fit.rate),
        "entropy": fit.entropy,
        "targets": targets,
        "client_leak": per_client,
        "predicted_leak": predicted,
        **_summary(mean, error, attacks[strongest].hits, len(targets)),
        "null_leak": null,
        "null_standard_error": null_error,
        "ranking": "not ranked: needs the gaussian_field attacker"
        if predicted is None
        else _ranking(predicted, per_client, mean, error),
    }


def _forest_model(graph: SocialGraph, attribute: Any, couplings: Any, fields: Any) -> IsingModel:
    if attribute is not None:
        raise BadInput("attribute must be None with couplings: it is drawn from their model. Give one of them.")
    if not is_forest(graph):
        raise BadInput("couplings are for forests, where the bound is exact to test; this graph has cycles. Omit them.")
    return IsingModel(graph, couplings, fields)


def _whole_attribute(graph: SocialGraph, attribute: Any) -> Array:
    if attribute is None or np.ndim(attribute) > 1:
        raise BadInput("attribute must be one value per client; only with couplings can it be None.")
    signs = read_attribute(graph, attribute)
    if np.isnan(signs).any():
        raise BadInput(f"attribute is unknown for {int(np.isnan(signs).sum()):,} clients; the audit needs all of them.")
    require_dense(graph.num_clients, "the Gaussian field")
    return signs


def _tree_null(signs: Array, prior: Array, posterior: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Leak about permuted labels, with the scale of the odds fitted on one half of the draws and tried on the other."""
    mixed = signs[rng.permutation(len(signs))]
    shift = posterior - prior

    def gains(scale: float, rows: slice) -> Array:
        return log_loss_gain(mixed[rows], prior + scale * shift[rows], prior)

    first, second = slice(0, len(mixed) // 2), slice(len(mixed) // 2, None)
    best = minimize_scalar(lambda scale: -gains(scale, first).mean(), bounds=(-1.0, 1.0), method="bounded")
    per_draw = gains(float(best.x), second).mean(axis=1)
    return float(per_draw.mean()), float(per_draw.std() / math.sqrt(len(per_draw)))


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
        "accuracy_interval": tuple(binomtest(hits, trials).proportion_ci()),  # exact: Clopper and Pearson's
    }


def _ranking(predicted: Array, leak: Array, mean: float, error: float) -> str:
    """Spearman of predicted and realised leak over the targets with its 95 % interval, or "no ranking"."""
    if mean - 1.96 * error <= 0:
        return "no ranking: the interval of the leak contains 0"
    rank = spearman(predicted, leak)
    if rank.reason:
        return "no ranking: too few clients, or all alike"
    if not rank.ranks:
        return f"no ranking: Spearman {rank.value:.2f}, interval {rank.low:.2f} to {rank.high:.2f} contains 0"
    return f"Spearman {rank.value:.2f} ({rank.low:.2f} to {rank.high:.2f}) of predicted with realised leak"
