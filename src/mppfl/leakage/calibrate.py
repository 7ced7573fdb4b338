"""Calibration: what a public sample says about how an attribute leaks along a network, and whether it says enough.

Everything is fitted on the public share alone. Whether exposure can be predicted at all is tried out inside it: its
clients upload noisy values, constants are fitted on one half, and the leak about each client of the other half is
compared with what was predicted. If the interval of that rank correlation contains 0, the answer is "no ranking".

Homophily says whether friends resemble each other, and how far that reaches. A pair counts if both ends are public, and
is seen from both of them. Intervals by edge and distance are those of `deviation_of_sum`. Intervals by walk, where
pairs are too many to look at, are 95 % percentiles of a bootstrap over clients: a client drawn twice brings all its
pairs twice. They are wider than need be, by up to √3 where pairs are independent.
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
from scipy.stats import norm, rankdata

from mppfl.arrays import Array, BoolArray, IntArray, require_number
from mppfl.errors import BadFile, BadInput
from mppfl.leakage.field import (
    COLUMNS,
    LARGEST_BETA,
    STANDARD_95,
    FieldFit,
    Interval,
    NormalisedWalk,
    deviation_of_sum,
    field_of,
    fit_field,
    fit_with_intervals,
    friend_moments,
    log_loss_gain,
    walk_of,
)
from mppfl.leakage.levels import read_attribute
from mppfl.network import Normalisation, SocialGraph, SparseMatrix, count_closed_walks, graph_from_matrix

BUDGETS = 1e-12, 1e12  # that can be tried out: beyond, either the noise is all there is or there is none
LEAST_HALF = 20  # public clients in each half, below which nothing is tried out
DRAWS = 8  # of noise
HOP_DECAYS = (0.1, 0.3, 0.5, 0.7, 0.9)
HOPS = (1, 2, 3, 5)
NORMALISATIONS: tuple[Normalisation, ...] = ("row", "none", "symmetric")
WALKS = 4
DISTANCES = 3
REPLICATES = 200
LEAST_PAIRS = 5  # below which there is no interval
SOURCES = 400  # from which distances are counted; on smaller samples, everybody


@dataclass(frozen=True, slots=True)
class Correlation:
    """A correlation with its 95 % interval; NaN where no pair was seen, or too few for an interval."""

    value: float
    low: float
    high: float
    num_pairs: float


@dataclass(frozen=True, slots=True)
class Homophily:
    """How an attribute is correlated along the edges.

    edge         between the two ends of an edge
    by_distance  between clients exactly 1, 2, 3 edges apart
    by_walks     Σ_{i≠j} (N^k)_ij y_i y_j / Σ_{i≠j} (N^k)_ij for k = 1 ... 4: closed walks are left out
    walk_decay   what remains of the walk correlation with each further step, or None where it cannot be told from 0
    """

    edge: Correlation
    by_distance: tuple[Correlation, ...]
    by_walks: tuple[Correlation, ...]
    walk_decay: float | None


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
    graph: SocialGraph, attribute: Any, *, rng: np.random.Generator, public_share: float = 0.3, budget: float = 0.3
) -> Calibration:
    """Calibrates the field on a random `public_share` of the clients whose attribute is known.

    attribute  ±1 or 0/1: a mapping from names, or one per client with NaN where unknown
    budget     client-level ρ of the uploads that are tried out
    """
    known = read_attribute(graph, attribute)
    require_number(budget, "budget", *BUDGETS, open_ends=False)
    shown = np.where(public_part(known, public_share, rng), known, np.nan)
    walk = walk_of(graph)
    fit, beta, eta = fit_with_intervals(walk, shown, rng)
    leak, by_field, by_friends, index = _try_out(graph, walk, shown, budget, rng)
    return Calibration(
        num_clients=graph.num_clients,
        num_edges=walk.connected.nnz // 2,
        num_known=int((~np.isnan(known)).sum()),
        homophily=homophily(walk, shown, rng),
        fit=fit,
        beta=beta,
        eta=eta,
        friend_slope=friend_moments(walk.connected, shown)[2],
        exact=walk.modes is not None,
        budget=budget,
        public_leak=leak,
        by_field=by_field,
        by_friends=by_friends,
        index=index,
        verdict=_verdict(leak, by_field, by_friends),
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


# ---- trying out whether leaks can be predicted ----------------------------------------------------------------------


def _try_out(
    graph: SocialGraph, walk: NormalisedWalk, shown: Array, budget: float, rng: np.random.Generator
) -> tuple[tuple[float, float] | None, RankCorrelation, RankCorrelation, IndexSetting | None]:
    """Public clients upload, the rest are silent; constants from one half, leaks about the other."""
    public = ~np.isnan(shown)
    clients = rng.permutation(np.flatnonzero(public))
    learn, test = np.sort(clients[: len(clients) // 2]), np.sort(clients[len(clients) // 2 :])
    halves = [shown[half] for half in (learn, test)]
    if min(map(len, halves)) < LEAST_HALF or any(abs(half.sum()) == len(half) for half in halves):
        nothing = RankCorrelation(math.nan, math.nan, math.nan, len(test), "too few public clients to try it out")
        return None, nothing, nothing, None
    fit = fit_field(walk, np.where(np.isin(np.arange(len(shown)), learn), shown, np.nan), rng)
    middle, spread = fit.mean_and_spread
    noise = np.where(public, 2 / budget / spread**2, np.inf)
    signs = np.where(public, shown, 0.0)[:, None]
    uploads = (signs - middle + math.sqrt(2 / budget) * rng.standard_normal((len(shown), 2 * DRAWS))) / spread
    heard = field_of(walk, fit, rng).hear(noise, rng, probes=64)
    odds, prior = fit.log_odds(heard.means(uploads), heard.left[:, None]), math.log(fit.rate / (1 - fit.rate))

    def gains(of: IntArray, draws: slice, scale: float) -> Array:
        return log_loss_gain(signs[of], prior + scale * odds[of, draws], prior)

    first, second = slice(0, DRAWS), slice(DRAWS, None)
    # A Gaussian field is too sure, or not sure enough, about a binary value: one scale, from the learning half.
    best = minimize_scalar(lambda scale: -gains(learn, first, scale).mean(), bounds=(0.0, 3.0), method="bounded")
    leaks = gains(np.arange(len(shown)), second, float(best.x)).mean(axis=1)
    budgets, leak = np.where(public, budget, 0.0), leaks[test]
    reach = walk.connected @ (budgets / (2 + budgets))
    twice = 1 - 0.05 / 2  # two predictors are tried, and the better counts
    return (
        (float(leak.mean()), float(leak.std(ddof=1) / math.sqrt(len(leak)))),
        spearman(-0.5 * np.log(heard.left[test]), leak, twice),
        spearman(fit.saturating_level(reach)[test], leak, twice),
        least_wrong_index(graph, budgets, (learn, leaks[learn]), (test, leak)),
    )


def least_wrong_index(
    graph: SocialGraph, budgets: Array, learn: tuple[IntArray, Array], test: tuple[IntArray, Array]
) -> IndexSetting:
    """The setting of R_model that ranks the leaks of `learn` best, with its rank correlation on `test`."""
    best, setting, edges = -math.inf, None, graph.edges()
    for normalisation in NORMALISATIONS:
        influence = graph_from_matrix(edges, normalisation=normalisation, isolated="keep").influence
        moved = budgets
        terms = []  # W^k ρ without closed walks
        for closed in _closed_walks(influence, max(HOPS)):
            moved = influence @ moved
            terms.append(moved - closed * budgets)
        for decay in HOP_DECAYS:
            total = np.zeros(len(budgets))
            for k, term in enumerate(terms, start=1):
                total = total + decay ** (k - 1) * term
                if k not in HOPS or (k == 1 and decay != HOP_DECAYS[0]):
                    continue  # one hop is the same whatever the decay
                score = spearman(total[learn[0]], learn[1]).value
                if score > best:
                    best = score
                    setting = IndexSetting(decay, k, normalisation, spearman(total[test[0]], test[1]))
    if setting is None:
        raise BadInput("no setting of the index can be compared with fewer than 10 public clients. Give more.")
    return setting


def _closed_walks(influence: SparseMatrix, longest: int) -> Array:
    """Diagonals of W, W², ... up to the `longest` power, [k, clients]."""
    at_most = [count_closed_walks(influence, hops, 1.0).values for hops in range(1, longest + 1)]
    return np.diff([np.zeros(influence.shape[0]), *at_most], axis=0)


def _verdict(leak: tuple[float, float] | None, by_field: RankCorrelation, by_friends: RankCorrelation) -> str:
    if leak is None:
        return f"no ranking: {by_field.reason}"
    mean, error = leak
    if mean - 1.96 * error <= 0:
        return f"no ranking: the leak tried out, {mean:.2g} nats, cannot be told from 0"
    names = {"the Gaussian field (R_gp)": by_field, "friends alone (R_sat)": by_friends}
    best = max(names, key=lambda name: names[name].value)
    rank = names[best]
    shown = f"Spearman {rank.value:.2f} ({rank.low:.2f} to {rank.high:.2f})"
    if not rank.ranks:
        return f"no ranking: {shown} of {best} with the leak tried out contains 0"
    return f"ranked by {best}: {shown} with the leak tried out"


# ---- homophily ------------------------------------------------------------------------------------------------------


def homophily(
    walk: NormalisedWalk, known: Array, rng: np.random.Generator, *, replicates: int = REPLICATES
) -> Homophily:
    """Correlations of the known values (±1, NaN where unknown) by edge, distance and walk."""
    public = ~np.isnan(known)
    rate = float((known[public] > 0).mean())
    values = np.where(public, (known - (2 * rate - 1)) / (2 * np.sqrt(rate * (1 - rate))), 0.0)
    counts = np.zeros((len(known), replicates + 1), dtype=np.float32)
    counts[public, 0] = 1.0  # the sample itself, then its replicates
    size = int(public.sum())
    counts[public, 1:] = rng.multinomial(size, np.full(size, 1 / size), replicates).T
    walks = _by_walks(walk, values, counts)
    both, powers = np.array([values, public]), np.array([values**2, values, public])
    edge = _of_pairs(2 * both * (both @ walk.connected), 2 * np.sum(powers * (powers @ walk.connected), axis=1))
    return Homophily(edge, _by_distance(walk.connected, both, powers, rng), walks, _decay(walks))


def _by_distance(
    connected: SparseMatrix, both: Array, powers: Array, rng: np.random.Generator
) -> tuple[Correlation, ...]:
    """By distance; `both` has values and who is public, `powers` values squared, values and who is public."""
    everybody = np.flatnonzero(both[1])
    sources = everybody if len(everybody) <= SOURCES else np.sort(rng.choice(everybody, SOURCES, replace=False))
    times = both[1].copy()  # how often a pair is seen: twice if both of its ends are sources
    times[sources] += 1
    sums = np.zeros((DISTANCES, *both.shape))
    squares = np.zeros((DISTANCES, len(powers)))
    edges = connected.astype(np.float32)
    for start in range(0, len(sources), COLUMNS):
        some = sources[start : start + COLUMNS]
        seen = np.zeros((len(times), len(some)), dtype=np.bool_)
        seen[some, np.arange(len(some))] = True
        frontier = seen
        for distance in range(DISTANCES):
            frontier = (edges @ frontier.astype(np.float32) > 0) & ~seen
            seen |= frontier
            sums[distance][:, some] += both[:, some] * (both @ frontier)
            sums[distance] += both * (both[:, some] @ frontier.T)
            # A pair that is seen twice comes here twice: times² once is times twice.
            squares[distance] += np.sum(times * powers @ frontier * powers[:, some], axis=1)
    return tuple(map(_of_pairs, sums, squares))


def _of_pairs(sums: Array, squares: Array) -> Correlation:
    """The mean of r = y_i y_j over pairs.

    sums     of each client over its pairs, as often as they are seen: Σ r, and how many there are
    squares  Σ r², Σ r and how many, over pairs, each times² it is seen
    """
    products, pairs = sums
    times_seen = float(pairs.sum()) / 2  # each pair stands at both of its ends
    if not times_seen:
        return Correlation(np.nan, np.nan, np.nan, 0.0)
    value = float(products.sum()) / 2 / times_seen
    of_pairs = max(float(squares @ [1.0, -2 * value, value**2]), 0.0)
    deviation = deviation_of_sum(products - value * pairs, np.array([math.sqrt(of_pairs)]))
    width = STANDARD_95 * deviation / times_seen if times_seen >= 2 * LEAST_PAIRS else np.nan
    return Correlation(value, value - width, value + width, times_seen)


def _by_walks(walk: NormalisedWalk, values: Array, counts: Any) -> tuple[Correlation, ...]:
    """For k = 1 ... 4: Σ w_i w_j N^k_ij y_i y_j / Σ w_i w_j N^k_ij over i ≠ j, with w the bootstrap's counts."""
    closed_walks = _closed_walks(sp.csr_array(walk.edges, dtype=np.float64), WALKS)

    def over_pairs(columns: Any) -> list[Array]:
        moved, sums = columns, []
        for closed in closed_walks:
            moved = walk.edges @ moved
            among_all = np.einsum("ij,ij->j", columns, moved, dtype=np.float64)
            sums.append(among_all - closed @ columns.astype(np.float64) ** 2)
        return sums

    weighed = counts * values[:, None].astype(np.float32)
    return tuple(map(_with_percentiles, over_pairs(weighed), over_pairs(counts)))


def _with_percentiles(products: Array, pairs: Array) -> Correlation:
    """The first entry is the sample's own, the rest are replicates."""
    seen = pairs > 1e-9 * max(float(pairs.max()), 1e-300)
    if not seen[0]:
        return Correlation(np.nan, np.nan, np.nan, float(pairs[0]))
    ratios = products[seen] / pairs[seen]
    # Where pairs are too few, many replicates see none of them.
    low, high = np.percentile(ratios[1:], [2.5, 97.5]) if seen.mean() >= 0.9 else (np.nan, np.nan)
    return Correlation(float(ratios[0]), float(low), float(high), float(pairs[0]))


def _decay(walks: tuple[Correlation, ...]) -> float | None:
    """Slope of ln(correlation) over the first steps whose interval lies above 0; two are needed."""
    telling: list[float] = []
    for walk in walks:
        if not walk.low > 0:
            break
        telling.append(np.log(walk.value))
    if len(telling) < 2:
        return None
    return float(np.exp(np.polyfit(np.arange(len(telling)), telling, 1)[0]))


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
        name = row[0].strip()
        try:
            value = float(row[1])
        except (ValueError, IndexError):
            if line == 1:
                continue
            value = math.nan
        if not math.isfinite(value):  # to Python the text "nan" is a number, to readers it is unknown
            raise BadFile(
                f"{path}, line {line}: {','.join(row)!r:.60} must be name,value with a number as value. Leave out the "
                "line of a client whose value is not known."
            )
        if name in values:
            raise BadFile(f"{path}, line {line}: {name!r} stands twice. Keep one line for each client.")
        values[name] = value
    return values
