"""Calibration: what a public sample says about how an attribute leaks along a network, and whether it says enough.

Everything is fitted on the public share alone. Whether exposure can be predicted at all is tried out inside it: its
clients upload noisy values, constants are fitted on one half, and the leak about each client of the other half is
compared with what was predicted. If the interval of that rank correlation contains 0, the answer is "no ranking".
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize_scalar
from scipy.special import log_expit
from scipy.stats import norm, rankdata

from mppfl.arrays import Array, BoolArray, IntArray, require_number
from mppfl.errors import BadFile, BadInput
from mppfl.leakage.field import (
    FieldFit,
    field_kernel,
    fit_field,
    friendships,
    graph_modes,
    leave_one_out,
    saturating_level,
    standardised,
)
from mppfl.leakage.field_at_scale import (
    LARGEST_BETA,
    LikelihoodSurface,
    exact_surface,
    field_at_scale,
    fit_at_scale,
    leave_one_out_at_scale,
    leave_one_out_means,
    walk_of,
)
from mppfl.leakage.homophily import STANDARD_95, Homophily, deviation_of_sum, homophily
from mppfl.leakage.levels import DENSE_LIMIT, read_attribute
from mppfl.network import Normalisation, SocialGraph, SparseMatrix

BUDGETS = 1e-12, 1e12  # that can be tried out: beyond, either the noise is all there is or there is none
LEAST_HALF = 20  # public clients in each half, below which nothing is tried out
DRAWS = 8  # of noise
HOP_DECAYS = (0.1, 0.3, 0.5, 0.7, 0.9)
HOPS = (1, 2, 3, 5)
HOPS_AT_SCALE = (1, 2, 3)  # closed walks of four edges and more cost too much on a large network
NORMALISATIONS: tuple[Normalisation, ...] = ("row", "none", "symmetric")
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RankCorrelation:
    """Spearman with an interval, 95 % unless said; `reason` says why there is none."""

    value: float
    low: float
    high: float
    num_clients: int
    reason: str = ""

    @property
    def ranks(self) -> bool:
        """Whether the interval lies above 0."""
        return self.low > 0


@dataclass(frozen=True, slots=True)
class IndexSetting:
    """The setting of the paper's index whose ranks agree best with the leak of one half; `agreement` is the other's."""

    hop_decay: float
    max_hops: int
    normalisation: Normalisation
    agreement: RankCorrelation


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the public share says.

    fit                  constants of the Gaussian field and of the one-hop model
    beta, eta            their 95 % intervals by profile likelihood
    exact                whether the field was computed with matrices, or estimated (then the surface has errors)
    public_leak          mean leak about the tried half in nats, with its standard error; None where nothing was tried
    by_field, by_friends rank correlation of R_gp and R_sat with the leak about the tried half
    index                the least wrong setting of R_model, or None where nothing was tried
    verdict              one line: whether clients can be ranked here, and by what
    """

    num_clients: int
    num_edges: int
    num_known: int
    homophily: Homophily
    fit: FieldFit
    beta: Interval
    eta: Interval
    friend_slope: Interval
    exact: bool
    budget: float
    public_leak: tuple[float, float] | None
    by_field: RankCorrelation
    by_friends: RankCorrelation
    index: IndexSetting | None
    verdict: str

    @property
    def beta_at_limit(self) -> bool:
        """Whether β is as large as was tried: the end of its interval is then no end."""
        return self.beta[1] >= LARGEST_BETA * (1 - 1e-9)


def calibrate(
    graph: SocialGraph,
    attribute: Any,
    *,
    rng: np.random.Generator,
    public_share: float = 0.3,
    budget: float = 0.3,
    exact: bool | None = None,
) -> Calibration:
    """Calibrates the field on a random `public_share` of the clients whose attribute is known.

    attribute  ±1 or 0/1: a mapping from names, or one per client with NaN where unknown
    budget     client-level ρ of the uploads that are tried out
    exact      with matrices (up to `DENSE_LIMIT` clients) or by probes; by default whatever the size allows
    """
    known = read_attribute(graph, attribute)
    require_number(budget, "budget", *BUDGETS, open_ends=False)
    public = public_part(known, public_share, rng)
    shown = np.where(public, known, np.nan)
    dense = graph.num_clients <= DENSE_LIMIT if exact is None else exact
    if dense and graph.num_clients > DENSE_LIMIT:
        raise BadInput(f"exact calibration is for at most {DENSE_LIMIT:,} clients, not {graph.num_clients:,}. Drop it.")
    tools = _Exact(graph) if dense else _ByProbes(graph, rng)
    fit, surface = tools.fit(shown)
    beta, eta = surface.intervals()
    tried = _try_out(graph, tools, shown, budget, rng)
    return Calibration(
        num_clients=graph.num_clients,
        num_edges=friendships(graph).nnz // 2,
        num_known=int((~np.isnan(known)).sum()),
        homophily=homophily(graph, shown, rng),
        fit=fit,
        beta=(min(beta[0], fit.beta), max(beta[1], fit.beta)),
        eta=(min(eta[0], fit.eta), max(eta[1], fit.eta)),
        friend_slope=friend_slope_interval(graph, shown),
        exact=dense,
        budget=budget,
        public_leak=tried.leak,
        by_field=tried.by_field,
        by_friends=tried.by_friends,
        index=tried.index,
        verdict=_verdict(tried),
    )


def public_part(known: Array, share: float, rng: np.random.Generator) -> BoolArray:
    """A random share of the clients whose value is known."""
    require_number(share, "public_share", 0.0, 1.0 + 1e-12)
    clients = np.flatnonzero(~np.isnan(known))
    public = np.zeros(len(known), dtype=np.bool_)
    public[rng.permutation(clients)[: round(share * len(clients))]] = True
    return public


def spearman(predicted: Array, leak: Array, confidence: float = 0.95) -> RankCorrelation:
    """Spearman with Fisher's interval, wider by 1.06 for ranks."""
    if len(leak) < 10:
        return RankCorrelation(math.nan, math.nan, math.nan, len(leak), "too few clients")
    if np.ptp(predicted) <= 1e-12 * np.abs(predicted).max(initial=0.0) or np.ptp(leak) == 0:
        return RankCorrelation(0.0, 0.0, 0.0, len(leak), "the same for everybody")
    value = float(np.corrcoef(rankdata(predicted), rankdata(leak))[0, 1])
    width = float(norm.isf((1 - confidence) / 2)) * 1.06 / math.sqrt(len(leak) - 3)
    middle = math.atanh(max(-0.999999, min(value, 0.999999)))
    return RankCorrelation(value, math.tanh(middle - width), math.tanh(middle + width), len(leak))


def friend_slope_interval(graph: SocialGraph, shown: Array) -> Interval:
    """95 % of b = (E[mean of friends | +] - E[mean of friends | -])/2, over public clients and their public friends.

    Every friendship enters from both of its ends; its variance is that of homophily.py.
    """
    public = ~np.isnan(shown)
    among, signs = friendships(graph)[public][:, public].tocoo(), shown[public]
    degrees = np.bincount(among.row, minlength=len(signs))
    connected_to = degrees > 0
    sides = [connected_to & (signs == side) for side in (1.0, -1.0)]
    if min(side.sum() for side in sides) < 2:
        return math.nan, math.nan
    means = np.bincount(among.row, signs[among.col], minlength=len(signs)) / np.maximum(degrees, 1)
    expected, weights = np.zeros(len(signs)), np.zeros(len(signs))
    for side, sign in zip(sides, (1.0, -1.0), strict=True):
        expected[side], weights[side] = means[side].mean(), sign / (2 * side.sum())
    # What one end adds to b by the other, less what its side expects.
    adds = (weights / np.maximum(degrees, 1))[among.row] * (signs[among.col] - expected[among.row])
    one_way = sp.coo_array((adds, (among.row, among.col)), shape=among.shape).tocsr()
    both_ways = (one_way + one_way.T).tocsr()
    of_clients = np.asarray(both_ways.sum(axis=1)).ravel()
    width = STANDARD_95 * deviation_of_sum(of_clients, both_ways.data / math.sqrt(2))  # data hold every pair twice
    slope = float(weights @ means)
    return slope - width, slope + width


class _Exact:
    """The field with matrices."""

    def __init__(self, graph: SocialGraph) -> None:
        self.graph, self.modes = graph, graph_modes(graph)

    def fit(self, shown: Array) -> tuple[FieldFit, LikelihoodSurface]:
        fit = fit_field(self.graph, shown, self.modes)
        return fit, exact_surface(self.modes, ~np.isnan(shown), standardised(shown)[0], fit.beta)

    def constants(self, shown: Array) -> FieldFit:
        return fit_field(self.graph, shown, self.modes)

    def without_own(self, fit: FieldFit, noise: Array, values: Array) -> tuple[Array, Array]:
        """Variance and mean of each client given the others' `values` [clients, draws]."""
        left, weights = leave_one_out(field_kernel(self.modes, fit.beta, fit.eta), noise)
        return left, weights @ np.where(np.isfinite(noise)[:, None], values, 0.0)


class _ByProbes:
    """The field by random probes, on networks of any size."""

    def __init__(self, graph: SocialGraph, rng: np.random.Generator) -> None:
        self.graph, self.walk, self.rng = graph, walk_of(graph), rng

    def fit(self, shown: Array) -> tuple[FieldFit, LikelihoodSurface]:
        return fit_at_scale(self.graph, self.walk, shown, self.rng)

    def constants(self, shown: Array) -> FieldFit:
        return self.fit(shown)[0]

    def without_own(self, fit: FieldFit, noise: Array, values: Array) -> tuple[Array, Array]:
        field = field_at_scale(self.walk, fit.beta, fit.eta, self.rng)
        left = leave_one_out_at_scale(field, noise, self.rng, probes=64)
        return left.left, leave_one_out_means(field, noise, values, left)


@dataclass(frozen=True, slots=True)
class _Tried:
    leak: tuple[float, float] | None
    by_field: RankCorrelation
    by_friends: RankCorrelation
    index: IndexSetting | None


def _try_out(
    graph: SocialGraph, tools: _Exact | _ByProbes, shown: Array, budget: float, rng: np.random.Generator
) -> _Tried:
    """Public clients upload, the rest are silent; constants from one half, leaks about the other."""
    clients = rng.permutation(np.flatnonzero(~np.isnan(shown)))
    learn, test = np.sort(clients[: len(clients) // 2]), np.sort(clients[len(clients) // 2 :])
    halves = [shown[half] for half in (learn, test)]
    if min(map(len, halves)) < LEAST_HALF or any(abs(half.sum()) == len(half) for half in halves):
        nothing = RankCorrelation(math.nan, math.nan, math.nan, len(test), "too few public clients to try it out")
        return _Tried(None, nothing, nothing, None)
    of_half = np.full(len(shown), np.nan)
    of_half[learn] = shown[learn]
    fit = tools.constants(of_half)
    budgets = np.where(np.isnan(shown), 0.0, budget)
    left, gains = _leaks(tools, fit, shown, budget, learn, test, rng)
    leak = gains[len(learn) :]
    reach = friendships(graph) @ (budgets / (2 + budgets))
    twice = 1 - 0.05 / 2  # two predictors are tried, and the better counts
    by_field = spearman(-0.5 * np.log(left[test]), leak, twice)
    by_friends = spearman(saturating_level(fit, reach)[test], leak, twice)
    hops = HOPS if isinstance(tools, _Exact) else HOPS_AT_SCALE
    index = least_wrong_index(graph, budgets, (learn, gains[: len(learn)]), (test, leak), hops)
    return _Tried((float(leak.mean()), float(leak.std(ddof=1) / math.sqrt(len(leak)))), by_field, by_friends, index)


def _leaks(
    tools: _Exact | _ByProbes,
    fit: FieldFit,
    shown: Array,
    budget: float,
    learn: IntArray,
    test: IntArray,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """What is left of every client's variance, and the log-loss gain about each of `learn` and then `test`, in nats."""
    p = fit.rate
    middle, spread = 2 * p - 1, 2 * math.sqrt(p * (1 - p))
    noise = np.where(np.isnan(shown), np.inf, 2 / budget / spread**2)
    signs = np.where(np.isnan(shown), 0.0, shown)[:, None]
    uploads = (signs - middle + math.sqrt(2 / budget) * rng.standard_normal((len(shown), 2 * DRAWS))) / spread
    left, means = tools.without_own(fit, noise, uploads)
    upper, lower = (1 - middle) / spread, (-1 - middle) / spread
    variances = left[:, None]
    odds = (upper - lower) * means / variances - 0.5 * (upper**2 - lower**2) * (1 / variances - 1)
    offset = math.log(p / (1 - p))

    def gains(of: IntArray, draws: slice, scale: float) -> Array:
        side = shown[of][:, None]
        return np.asarray(log_expit(side * (offset + scale * odds[of, draws])) - log_expit(side * offset))

    first, second = slice(0, DRAWS), slice(DRAWS, None)
    # A Gaussian field is too sure, or not sure enough, about a binary value: one scale, from the learning half.
    best = minimize_scalar(lambda scale: -gains(learn, first, scale).mean(), bounds=(0.0, 3.0), method="bounded")
    return left, gains(np.concatenate([learn, test]), second, float(best.x)).mean(axis=1)


def least_wrong_index(
    graph: SocialGraph,
    budgets: Array,
    learn: tuple[IntArray, Array],
    test: tuple[IntArray, Array],
    hops: tuple[int, ...] = HOPS,
) -> IndexSetting:
    """The setting of R_model that ranks the leaks of `learn` best, with its rank correlation on `test`."""
    best, setting = -math.inf, None
    for normalisation in NORMALISATIONS:
        walks = _walk_terms(normalised(graph, normalisation), budgets, max(hops))
        for decay in HOP_DECAYS:
            total = np.zeros(len(budgets))
            for k, term in enumerate(walks, start=1):
                total = total + decay ** (k - 1) * term
                if k not in hops or (k == 1 and decay != HOP_DECAYS[0]):
                    continue  # one hop is the same whatever the decay
                score = spearman(total[learn[0]], learn[1]).value
                if score > best:
                    best = score
                    setting = IndexSetting(decay, k, normalisation, spearman(total[test[0]], test[1]))
    if setting is None:
        raise BadInput("no setting of the index can be compared with fewer than 10 public clients. Give more.")
    return setting


def normalised(graph: SocialGraph, normalisation: Normalisation) -> SparseMatrix:
    """The edges as given, normalised in the way named."""
    given = sp.csr_array(graph.edges())
    sums = np.asarray(given.sum(axis=1)).ravel()
    inverse = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums > 0)
    if normalisation == "row":
        return sp.csr_array(sp.diags_array(inverse) @ given)
    if normalisation == "symmetric":
        roots = sp.diags_array(np.sqrt(inverse))
        return sp.csr_array(roots @ given @ roots)
    return given


def _walk_terms(influence: SparseMatrix, budgets: Array, longest: int) -> list[Array]:
    """W^k ρ without closed walks, for k = 1 ... longest."""
    if influence.shape[0] <= DENSE_LIMIT:
        dense = influence.toarray()
        power, terms = np.eye(len(budgets)), []
        for _ in range(longest):
            power = power @ dense
            terms.append(power @ budgets - np.diagonal(power) * budgets)
        return terms
    turned = influence.T.tocsr()
    moved, terms = budgets, []
    for k in range(1, longest + 1):
        moved = influence @ moved
        home = np.zeros(len(budgets))
        if k == 2:
            home = np.asarray(influence.multiply(turned).sum(axis=1)).ravel()
        elif k == 3:
            home = np.asarray((influence @ influence).multiply(turned).sum(axis=1)).ravel()
        terms.append(moved - home * budgets)
    return terms


def _verdict(tried: _Tried) -> str:
    if tried.leak is None:
        return f"no ranking: {tried.by_field.reason}"
    mean, error = tried.leak
    if mean - 1.96 * error <= 0:
        return f"no ranking: the leak tried out, {mean:.2g} nats, cannot be told from 0"
    names = {"the Gaussian field (R_gp)": tried.by_field, "friends alone (R_sat)": tried.by_friends}
    best = max(names, key=lambda name: names[name].value)
    rank = names[best]
    shown = f"Spearman {rank.value:.2f} ({rank.low:.2f} to {rank.high:.2f})"
    if not rank.ranks:
        return f"no ranking: {shown} of {best} with the leak tried out contains 0"
    return f"ranked by {best}: {shown} with the leak tried out"


def read_values(path: Path) -> dict[str, float]:
    """One number per client, `name,value`, from a CSV file: an attribute, or numbers of examples.

    A first line without a number is a heading; an unknown client's line is left out. Raises BadFile with the line that
    cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise BadFile(f"{path} is not UTF-8 text. Save it as CSV in UTF-8.") from cause
    values: dict[str, float] = {}
    for line, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row:
            continue
        name, value = row[0].strip(), _number(row[1:])
        if value is None and line == 1:
            continue
        if value is None or not math.isfinite(value):  # to Python the text "nan" is a number, to readers it is unknown
            raise BadFile(
                f"{path}, line {line}: {','.join(row)!r:.60} must be name,value with a number as value. Leave out the "
                "line of a client whose value is not known."
            )
        if name in values:
            raise BadFile(f"{path}, line {line}: {name!r} stands twice. Keep one line for each client.")
        values[name] = value
    return values


def _number(cells: list[str]) -> float | None:
    try:
        return float(cells[0])
    except (ValueError, IndexError):
        return None
