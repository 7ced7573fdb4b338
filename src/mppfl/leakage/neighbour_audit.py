"""The neighbour audit: withhold one client's upload, infer its attribute from everybody else's, compare with the bound.

Two settings. With `couplings` the attribute is drawn from a known Ising model on a forest, where ρ/4 per path is a
theorem (`r_bound`): exact belief propagation attacks, and a leak above the bound is a failure. With one real attribute
there is no theorem to contradict: a Gaussian field and loopy belief propagation attack, and the stronger counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize_scalar
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.special import expit, log_expit
from scipy.stats import beta as beta_distribution
from scipy.stats import norm

from mppfl.arrays import Array, IntArray, read_only, require_count, require_number
from mppfl.errors import BadInput
from mppfl.leakage.calibrate import spearman
from mppfl.leakage.field import (
    FieldFit,
    coupled_edges,
    field_kernel,
    fit_field,
    friendships,
    graph_modes,
    is_forest,
    leave_one_out,
)
from mppfl.leakage.levels import as_signs, client_budgets, r_bound, read_attribute, require_dense
from mppfl.network import SocialGraph, SparseMatrix, graph_from_edges
from mppfl.privacy import LocalWork, privacy_mechanism
from mppfl.privacy.audit import AuditResult

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


class _AuditedRelease(NamedTuple):
    """How clients upload, and what the attacker learnt about it from shadow releases."""

    release: Release
    spent: Array
    clip: float
    signals: Signals
    shadow: dict[str, Any]

    def of(self, signs: Array, rng: np.random.Generator) -> Array:
        """Uploads of these attributes [draws, clients]."""
        return self.release(signs, self.spent, self.clip, rng)

    @property
    def failures(self) -> list[str]:
        loud = self.shadow["clients_louder_than_budget"]
        return [f"{loud} clients' uploads separate the two values by more than their budgets allow"] if loud else []


def client_release(
    attribute: Array, budgets: Array, clip_norm: float, rng: np.random.Generator
) -> Array:  # [draws, clients]
    """x·clip_norm plus the noise of the `client` mechanism; clients with budget 0 upload 0."""
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
    heard = spent > 0
    std = np.sqrt((plus.var(axis=0, ddof=1) + minus.var(axis=0, ddof=1)) / 2)
    gap = (plus.mean(axis=0) - minus.mean(axis=0)) / 2
    center = (plus.mean(axis=0) + minus.mean(axis=0)) / 2
    means_error = declared.std / math.sqrt(2 * SHADOWS)
    differs = np.abs(std / declared.std - 1) > SHADOW_SURE / math.sqrt(4 * SHADOWS)
    differs |= np.abs(gap - declared.half_gap) > SHADOW_SURE * means_error
    differs |= np.abs(center - declared.middle) > SHADOW_SURE * means_error
    differs &= heard | (std > 0) | (gap != 0)
    floor = np.maximum(std, 1e-6 * np.maximum(np.abs(gap), 1e-300))
    ratio = np.abs(gap) / floor  # of half the gap to the noise; √(ρ/2) is what the budget pays for
    allowed = np.sqrt(spent / 2)
    loud = ratio - allowed > SHADOW_SURE * np.sqrt((1 + ratio**2 / 2) / (2 * SHADOWS))
    seen = Signals(
        np.where(differs, center, declared.middle),
        np.where(differs, gap, declared.half_gap),
        np.where(differs, floor, declared.std),
    )
    shadow = {
        "clients_unlike_declared": int(differs.sum()),
        "clients_louder_than_budget": int(loud.sum()),
        "shadow_releases": 2 * SHADOWS,
    }
    return seen, shadow


def declared_signals(spent: Array, clip: float) -> Signals:
    """What uploads of the `client` mechanism look like for these budgets."""
    heard = spent > 0
    return Signals(np.zeros(len(spent)), np.where(heard, clip, 0.0), _noise_std(spent, clip))


def _noise_std(spent: Array, clip: float) -> Array:
    client, work = privacy_mechanism("client"), LocalWork(num_examples=1)
    return np.array([client.noise_std(rho, clip, work) if rho > 0 else 1.0 for rho in spent])


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
    connected = friendships(graph)
    degrees = np.maximum(connected.sum(axis=1), 1.0)

    def features(uploads: Array, of: IntArray) -> Array:  # [targets, draws, features]
        values, _ = signals.values(uploads)
        centred = np.where(np.isfinite(noise), (values - middle) / spread, 0.0)
        means = weights[of] @ centred.T
        left_of = left[of][:, None]
        odds = (upper - lower) * means / left_of - 0.5 * (upper**2 - lower**2) * (1 / left_of - 1)
        lean = np.where(np.isfinite(noise), centred / (1 + noise), 0.0)
        friends = (connected[of] @ lean.T) / np.sqrt(degrees[of])[:, None]
        return np.stack([odds, means, friends], axis=2)

    shown, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    attack = _scaled(features(learn, shown), labels[shown], features(test, hidden), labels[hidden], p)
    return Attack(attack.gains, attack.hits, np.maximum(0.0, -0.5 * np.log(left[hidden])))


def attack_by_messages(
    graph: SocialGraph, labels: Array, public: Any, rate: float, signals: Signals, learn: Array, test: Array
) -> Attack:
    """Belief propagation with one coupling for all edges, the one that serves the public clients best."""
    base = 0.5 * math.log(rate / (1 - rate))
    shown, hidden = np.flatnonzero(public), np.flatnonzero(~public)
    forest = is_forest(graph)

    def features(coupling: float, uploads: Array, of: IntArray, num_draws: int) -> Array:
        edges = Messages.of(graph, coupling)
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
            at_once = max(1, MESSAGES_AT_ONCE // len(edges.source))
            for start in range(0, len(targets), at_once):
                some, columns = targets[start : start + at_once], draws[start : start + at_once]
                withheld = leaning[:, columns]
                withheld[some, np.arange(len(some))] = base  # else the target's own upload would return round a cycle
                sums[start : start + at_once] = edges.settle(withheld, sweeps)[1][some, np.arange(len(some))]
        return np.asarray(2 * (sums.reshape(len(of), num_draws) - silent[of])[:, :, None])

    best, coupling = -math.inf, LOOPY_COUPLINGS[0]
    for trial in LOOPY_COUPLINGS:
        seen = features(trial, learn, shown, 1)
        score = float(_scaled(seen, labels[shown], seen, labels[shown], rate).gains.mean())
        if score > best:
            best, coupling = score, trial
    seen, met = features(coupling, learn, shown, 1), features(coupling, test, hidden, LOOPY_DRAWS)
    return _scaled(seen, labels[shown], met, labels[hidden], rate)


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


@dataclass(frozen=True, slots=True)
class Messages:
    """Every edge in both directions: message k travels source[k] -> target[k]."""

    source: IntArray
    target: IntArray
    back: IntArray  # the same edge the other way
    coupling: Array
    gather: SparseMatrix  # [clients, messages], sums what arrives

    @classmethod
    def of(cls, graph: SocialGraph, couplings: Any) -> Messages:
        """Those of a network whose edges have these couplings."""
        firsts, seconds, strengths = coupled_edges(graph, couplings)
        if len(strengths) and np.abs(strengths).max() > 15:
            raise BadInput(f"a coupling of {np.abs(strengths).max():g} is a certainty in all but name; use at most 15.")
        count = len(firsts)
        target = np.concatenate([seconds, firsts])
        ends = (target, np.arange(2 * count))
        gather = sp.csr_array((np.ones(2 * count), ends), shape=(graph.num_clients, 2 * count))
        back = np.concatenate([np.arange(count, 2 * count), np.arange(count)])
        return cls(np.concatenate([firsts, seconds]), target, back, np.concatenate([strengths, strengths]), gather)

    def sweep(self, leaning: Array, messages: Array) -> Array:
        """One round of messages atanh(tanh J · tanh(what the sender knows without the receiver))."""
        beliefs = leaning + self.gather @ messages
        without = beliefs[self.source] - messages[self.back]
        return np.asarray(np.arctanh(np.tanh(self.coupling)[:, None] * np.tanh(without)))

    def settle(self, leaning: Array, sweeps: int | None = None) -> tuple[Array, Array]:
        """Messages [edges both ways, draws] and their sums at each client, from fields [clients, draws].

        Without `sweeps`, until they stand still: on a forest after as many sweeps as the longest path has edges.
        """
        messages = np.zeros((len(self.source), leaning.shape[1]))
        for _ in range(sweeps if sweeps is not None else leaning.shape[0]):
            moved = self.sweep(leaning, messages)
            still = sweeps is None and np.array_equal(moved, messages)
            messages = moved
            if still:
                break
        return messages, self.gather @ messages


@dataclass(frozen=True, slots=True)
class IsingTree:
    """P(x) ∝ exp(Σ_edges J x_u x_v + Σ_v h_v x_v), x = ±1, on a tree: `couplings` J as a matrix, `fields` h."""

    graph: SocialGraph
    couplings: SparseMatrix
    fields: Array


def random_ising_tree(
    num_clients: int, rng: np.random.Generator, *, strongest: float = 1.5, strongest_field: float = 1.0
) -> IsingTree:
    """A random recursive tree with couplings and fields uniform in ± their strongest."""
    size = require_count(num_clients, "num_clients", 2)
    children = np.arange(1, size)
    parents = np.array([int(rng.integers(child)) for child in children])
    graph = graph_from_edges(parents, children, num_clients=size, undirected=True)
    strengths = rng.uniform(-strongest, strongest, size - 1)
    matrix = sp.coo_array((strengths, (parents, children)), shape=(size, size)).tocsr()
    return IsingTree(graph, (matrix + matrix.T).tocsr(), rng.uniform(-strongest_field, strongest_field, size))


def sample_ising_tree(
    graph: SocialGraph, couplings: Any, fields: Any, draws: int, rng: np.random.Generator
) -> Array:  # [draws, clients]
    """Exact draws of ±1 from an Ising model on a forest: roots from their marginals, children given their parents."""
    edges = Messages.of(graph, couplings)
    local = _fields(fields, graph)
    towards, total = edges.settle(local[:, None])
    message = {(int(a), int(b)): float(m) for a, b, m in zip(edges.source, edges.target, towards[:, 0], strict=True)}
    strength = {(int(a), int(b)): float(j) for a, b, j in zip(edges.source, edges.target, edges.coupling, strict=True)}
    drawn = np.empty((draws, graph.num_clients))
    connected = friendships(graph)
    _, part = connected_components(connected, directed=False)
    for root in np.unique(part, return_index=True)[1]:
        lean = local[root] + total[root, 0]
        drawn[:, root] = np.where(rng.random(draws) < expit(2 * lean), 1.0, -1.0)
        order, parent = breadth_first_order(connected, root, directed=False)
        for node in order[1:]:
            above = int(parent[node])
            below = local[node] + total[node, 0] - message[(above, int(node))]
            lean = below + strength[(above, int(node))] * drawn[:, above]
            drawn[:, node] = np.where(rng.random(draws) < expit(2 * lean), 1.0, -1.0)
    return drawn


def tree_logits(
    graph: SocialGraph, couplings: Any, fields: Any, evidence: Array
) -> tuple[Array, Array]:  # [clients], [draws, clients]
    """Exact log-odds of X_i = +1 on a forest: before, and given the evidence [draws, clients] of everyone but i."""
    edges = Messages.of(graph, couplings)
    local = _fields(fields, graph)
    _, before = edges.settle(local[:, None])
    _, after = edges.settle(local[:, None] + evidence.T)
    return 2 * (local + before[:, 0]), 2 * (local + after.T)


def _fields(fields: Any, graph: SocialGraph) -> Array:
    local = read_only(fields, "fields", length=graph.num_clients)
    if not np.isfinite(local).all():
        raise BadInput("fields must be finite numbers.")
    return local


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
    uploads = _AuditedRelease(release, spent, clip, *learn_signals(release, spent, clip, rng))
    if couplings is not None:
        signs = _ising_draws(graph, attribute, couplings, fields, require_count(draws, "draws", 100), rng)
        return _audit_tree(graph, signs, couplings, fields, uploads, rng)
    if attribute is None or np.ndim(attribute) > 1:
        raise BadInput(
            "attribute must be one value per client; only with couplings can it be None or one row per draw."
        )
    signs = read_attribute(graph, attribute)
    if np.isnan(signs).any():
        raise BadInput(f"attribute is unknown for {int(np.isnan(signs).sum()):,} clients; the audit needs all of them.")
    share = require_number(public_share, "public_share", 0.0, 1.0)
    return _audit_attribute(graph, signs, uploads, tuple(attackers), share, rng)


def _audit_tree(
    graph: SocialGraph, signs: Array, couplings: Any, fields: Any, uploads: _AuditedRelease, rng: np.random.Generator
) -> AuditResult:
    draws, size = signs.shape
    evidence = uploads.signals.evidence(uploads.of(signs, rng))
    prior, posterior = tree_logits(graph, couplings, fields, evidence)
    gains = log_expit(signs * posterior) - log_expit(signs * prior)  # [draws, clients]
    leak, error = gains.mean(axis=0), gains.std(axis=0) / math.sqrt(draws)
    # The bound needs the rate for its entropy alone, the same for both values. The rarer one's chance keeps its digits
    # where the commoner's rounds to 1; where it vanishes too, the least number bounds it from above.
    rarer = np.maximum(expit(-np.abs(prior)), np.finfo(np.float64).tiny)
    bound = r_bound(graph, couplings, uploads.spent, rate=rarer)
    sure = max(SURE, float(norm.isf(1e-4 / size)))
    violated = np.flatnonzero(leak - sure * error > bound.nats + 1e-12)
    failures = uploads.failures
    if len(violated):
        failures.append(f"{len(violated)} of {size} clients leak more than the tree bound")
    picked = rng.integers(size, size=draws)  # one target per draw, so that trials are independent
    rows = np.arange(draws)
    hits = int((signs[rows, picked] * posterior[rows, picked] > 0).sum())
    mean, mean_error = float(gains.mean()), float(gains.mean(axis=1).std() / math.sqrt(draws))
    null, null_error = _tree_null(signs, prior, posterior, rng)
    excess = np.divide(leak - bound.nats, error, out=np.zeros(size), where=error > 0)
    details = {
        "setting": "Ising forest with known couplings",
        "strongest": "belief_propagation",
        "note": "belief propagation is exact here, so no other attacker can be stronger",
        "failures": failures,
        "release": uploads.shadow,
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
    confidence, claimed = 1 - size * float(norm.sf(sure)), float(bound.nats.mean())
    return AuditResult("neighbour", "fail" if failures else "pass", claimed, mean, confidence, details)


def _audit_attribute(
    graph: SocialGraph,
    signs: Array,
    uploads: _AuditedRelease,
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
        learn, test = (uploads.of(np.tile(labels, (FIELD_DRAWS, 1)), rng) for _ in range(2))
        signals = uploads.signals
        ways = {
            "gaussian_field": lambda: attack_by_field(graph, labels, public, modes, fit, signals, learn, test),
            "belief_propagation": lambda: attack_by_messages(graph, labels, public, fit.rate, signals, learn, test),
        }
        return fit, {name: ways[name]() for name in names}

    fit, attacks = attack(signs, attackers)
    levels = {name: _mean_and_error(attacks[name].gains) for name in attacks}
    strongest = max(levels, key=lambda name: levels[name][0])
    _, permuted = attack(rng.permutation(signs), (strongest,))
    null, null_error = _mean_and_error(permuted[strongest].gains)
    mean, error = levels[strongest]
    per_client = attacks[strongest].gains.mean(axis=1)
    predicted = next((way.predicted for way in attacks.values() if way.predicted is not None), None)
    rate = fit.rate
    failures = uploads.failures
    details = {
        "setting": "one attribute, fitted on a public sample",
        "strongest": strongest,
        "attackers": {name: _summary(*levels[name], way.hits, len(targets)) for name, way in attacks.items()},
        "failures": failures,
        "release": uploads.shadow,
        "bound": {"theorem": "none", "premises": "no couplings given: nothing to contradict on this graph"},
        "fit": fit,
        "prior_accuracy": max(rate, 1 - rate),
        "entropy": -rate * math.log(rate) - (1 - rate) * math.log1p(-rate),
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
    return AuditResult("neighbour", "fail" if failures else "no claim to test", None, mean, None, details)


def _tree_null(signs: Array, prior: Array, posterior: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Leak about permuted labels, with the scale of the odds fitted on one half of the draws and tried on the other."""
    mixed = signs[rng.permutation(len(signs))]
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
    rank = spearman(predicted, leak)
    if rank.reason:
        return "no ranking: too few clients, or all alike"
    if not rank.ranks:
        return f"no ranking: Spearman {rank.value:.2f}, interval {rank.low:.2f} to {rank.high:.2f} contains 0"
    return f"Spearman {rank.value:.2f} ({rank.low:.2f} to {rank.high:.2f}) of predicted with realised leak"


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval for a chance of success."""
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta_distribution.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta_distribution.isf(tail, hits + 1, trials - hits))
    return low, high
