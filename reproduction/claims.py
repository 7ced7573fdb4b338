"""What the paper says about its figures of the game, each claim with a verdict computed from our figure's file.

A comparison holds against a mechanism if MPPFL is ahead of it at every place of the axis in at least 90 % of the seeds.
A trend holds if the median moves that way at every step, and the ends differ that way in at least 90 % of the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from mppfl.arrays import Array
from reproduction.figure_files import Figure
from reproduction.settings import SETTINGS, printed_accuracy

Verdict = Literal["reproduced", "under a stated condition", "not reproduced"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "under a stated condition", "not reproduced")
HOLDS = 0.9  # share of seeds
SWEEPS_CLAIMED = 15

TITLES = {  # of mechanisms, as charts and documents name them
    "mppfl": "MPPFL",
    "mppfl_exact": "MPPFL, exact leader",
    "social_agnostic": "SA",
    "random": "Random",
    "fixed_min": "DP-FedAvg (min)",
    "fixed_mean": "DP-FedAvg (mean)",
    "sarda_like": "SARDA-like auction",
    "sarda_r": "SARDA-r",
}
CONVENTIONS = {"common": "common reward", "own": "own reward"}
BASELINES = ("social_agnostic", "random", "fixed_min", "fixed_mean", "sarda_like", "sarda_r")
# SARDA's text is not public, and what stands in for it is ours: a claim about all baselines counts as kept under a
# condition when it holds against the three whose rules are known, DP-FedAvg by either rule for its budget.
KNOWN = (("social_agnostic",), ("random",), ("fixed_min", "fixed_mean"))
AGNOSTIC = (("social_agnostic",),)
SARDA = (("sarda_like", "sarda_r"),)

Count = Mapping[tuple[str, str], int]  # (convention, mechanism) -> seeds in which something holds


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a claim: the verdict, the condition where there is one, and the numbers behind it."""

    verdict: Verdict
    condition: str
    reason: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence of the paper about a figure, in our words.

    where   the place in the paper; figures are counted in the order of its source
    figure  our figure that it is judged by
    """

    where: str
    figure: str
    text: str
    judge: Callable[[Figure], Finding]


def judged(reason: str, holds: bool, condition: str = "") -> Finding:
    """Reproduced where it holds; under the condition where there is one; else not reproduced."""
    if holds:
        return Finding("reproduced", "", reason)
    return Finding("under a stated condition" if condition else "not reproduced", condition, reason)


# ---- MPPFL against the others -------------------------------------------------------------------------------------


def gaps(figure: Figure, quantity: str, setting: str = "") -> dict[tuple[str, str], Array]:
    """(convention, mechanism) -> [places, seeds]: by how much MPPFL's cost is lower, or its welfare higher."""
    sign = -1.0 if quantity == "server_cost" else 1.0
    return {
        (convention, name): sign
        * (
            figure.values("mppfl", quantity, convention=convention, setting=setting)
            - figure.values(name, quantity, convention=convention, setting=setting)
        )
        for convention in CONVENTIONS
        for name in BASELINES
    }


def _best(figure: Figure, quantity: str, needed: Sequence[Sequence[str]], setting: str = "") -> Finding:
    """Is MPPFL ahead at every place?"""
    counts = {key: int((gap > 0).all(axis=0).sum()) for key, gap in gaps(figure, quantity, setting).items()}
    return _by_counts(counts, figure.seeds, needed)


def _gap_widens(figure: Figure, setting: str) -> Finding:
    """Does MPPFL's lead in welfare grow from place to place?"""
    found = gaps(figure, "welfare", setting)
    counts = {key: int(((gap[0] > 0) & (np.diff(gap, axis=0) > 0).all(axis=0)).sum()) for key, gap in found.items()}
    middle = np.median(found["common", "social_agnostic"], axis=1)
    finding = _by_counts(counts, figure.seeds, KNOWN)
    return replace(finding, reason=f"{finding.reason}. Lead over SA, common reward, median: {_row(middle)}")


def _by_counts(counts: Count, seeds: int, needed: Sequence[Sequence[str]]) -> Finding:
    """The verdict on a comparison with the mechanisms named in `needed`, of each group at least one."""
    named = [name for name in BASELINES if any(name in group for group in needed)]
    if needed == KNOWN:
        named = list(BASELINES)
    held = {c: [name for name in named if counts[c, name] >= HOLDS * seeds] for c in CONVENTIONS}
    reason = "; ".join(
        f"{title}: " + ", ".join(f"{TITLES[name]} {counts[c, name]}" for name in named)
        for c, title in CONVENTIONS.items()
    )
    reason = f"seeds out of {seeds}, {reason}"
    kept = [c for c in CONVENTIONS if all(any(name in held[c] for name in group) for group in needed)]
    parts = []
    for c in kept:
        lost = [name for name in named if name not in held[c]]
        parts.append(CONVENTIONS[c] + (f", against {_names(held[c])}, not {_names(lost)}" if lost else ""))
    return judged(reason, all(held[c] == named for c in CONVENTIONS), "; ".join(parts))


# ---- trends -------------------------------------------------------------------------------------------------------


def moves(values: Array, sign: int) -> tuple[bool, int, int]:
    """Does the trend hold; in how many seeds do the ends differ that way; in how many does every step."""
    middle = np.median(values, axis=1)
    ends = int((sign * (values[-1] - values[0]) > 0).sum())
    steps = int((sign * np.diff(values, axis=0) > 0).all(axis=0).sum())
    holds = bool((sign * np.diff(middle) > 0).all()) and ends >= HOLDS * values.shape[1]
    return holds, ends, steps


def _trend(figure: Figure, quantity: str, sign: int) -> Finding:
    """Does a quantity of MPPFL rise (+1) or fall (−1) along the axis, with rates set anew at each place, or held?"""
    said, holds = {}, {}
    (setting,) = figure.settings
    for convention, title in (("own", "rates set anew"), ("held", "rates held")):
        values = figure.values("mppfl", quantity, convention=convention, setting=setting)
        holds[convention], ends, steps = moves(values, sign)
        middle = np.median(values, axis=1)
        said[convention] = (
            f"{title}: median {_number(middle[0])} → {_number(middle[-1])}, {'up' if sign > 0 else 'down'} from end to "
            f"end in {ends}/{figure.seeds}, at every step in {steps}/{figure.seeds}"
        )
    reason = "; ".join(said.values())
    return judged(reason, holds["own"], "the server keeps its rates" if holds["held"] else "")


def _all_grow(figure: Figure, quantity: str, setting: str) -> Finding:
    """Does a quantity rise along the axis under every mechanism?"""
    counts, every = {}, []
    for convention in CONVENTIONS:
        for name in figure.mechanisms(convention):
            values = figure.values(name, quantity, convention=convention, setting=setting)
            holds, _, counts[convention, name] = moves(values, +1)
            every.append(holds)
    least = min(counts.values())
    reason = f"at every step in at least {least}/{figure.seeds} seeds under each of {len(counts)} pairs of mechanism "
    reason += "and convention"
    if not all(every):
        reason += f"; the trend holds under {sum(every)}"
    return judged(reason, all(every))


# ---- claims of their own kind -------------------------------------------------------------------------------------


def _settles(figure: Figure) -> Finding:
    """Does φ₁ settle within 15 sweeps in all rounds shown?"""
    (setting,) = figure.settings
    said, counts = [], {}
    for version, title in (("solved", "rate solved in every sweep"), ("literal", "Algorithm 1 to the letter")):
        rounds = figure.mechanisms(version)
        settled = np.array([figure.values(t, "settled", convention=version, setting=setting) for t in rounds])
        far = np.array([figure.values(t, "distance", convention=version, setting=setting) for t in rounds])
        counts[version] = int((settled[:, SWEEPS_CLAIMED - 1] > 0).all(axis=0).sum())
        text = f"{title}: within {SWEEPS_CLAIMED} sweeps in all rounds shown {counts[version]}/{figure.seeds}"
        if counts[version] == figure.seeds:
            text += f", at most {int((settled == 0).sum(axis=1).max()) + 1} sweeps"
        else:
            text += f", φ₁ then off by {_number(100 * float(np.median(far[:, SWEEPS_CLAIMED - 1])))} % in the median"
        said.append(text)
    reason = "; ".join(said)
    solved, literal = (counts[version] >= HOLDS * figure.seeds for version in ("solved", "literal"))
    condition = "the rate is solved in every sweep, not substituted once" if solved else ""
    return judged(reason, solved and literal, condition)


def _is_linear(figure: Figure) -> Finding:
    """Does the work of a sweep, K products over all edges, grow in proportion to N?"""
    edges = {int(size): count for size, count in figure.configuration["mean_edges"].items()}
    small, large = min(edges), max(edges)
    power = float(np.log(edges[large] / edges[small]) / np.log(large / small))
    reason = (
        f"a sweep multiplies once per hop with every edge: {edges[small]:,.0f} edges at N = {small}, "
        f"{edges[large]:,.0f} at N = {large}, which grows like N to the power {power:.2f}"
    )
    return judged(reason, power <= 1.1)


def _gap_with_complexity(figure: Figure) -> Finding:
    """Is MPPFL's lead in welfare larger on harder data sets? Harder: lower accuracy of SA in the paper, IID, N = 20."""
    lead = gaps(figure, "welfare")["common", "social_agnostic"]
    names = list(figure.places)
    accuracy = {name: printed_accuracy(1, name, "iid", 20)["SA"] for name in names}
    orders = {
        "falling accuracy": sorted(names, key=lambda name: -accuracy[name]),
        "rising ε": sorted(names, key=lambda name: figure.configuration["noise_harm"][name]),
        "number of rounds": sorted(names, key=lambda name: figure.configuration["num_rounds"][name]),
    }
    counts = {}
    for order, ranked in orders.items():
        sorted_lead = lead[[names.index(name) for name in ranked]]
        counts[order] = int((np.diff(sorted_lead, axis=0) > 0).all(axis=0).sum())
    rounds = np.array([figure.configuration["num_rounds"][name] for name in names])
    each = np.median(lead, axis=1) / rounds
    reason = (
        "lead over SA, common reward, median: "
        + ", ".join(f"{SETTINGS[n].title} {_number(v)}" for n, v in zip(names, np.median(lead, axis=1), strict=True))
        + "; grows with "
        + ", ".join(f"{order} in {count}/{figure.seeds}" for order, count in counts.items())
        + f"; in a single round it is {_number(each.min())} to {_number(each.max())} on all five"
    )
    kept = [order for order, count in counts.items() if count >= HOLDS * figure.seeds]
    condition = f"data sets are ordered by {' or '.join(kept)}" if kept else ""
    return judged(reason, "falling accuracy" in kept, condition)


# ---- all of them --------------------------------------------------------------------------------------------------

_LOWEST_COST = partial(_best, quantity="server_cost", needed=KNOWN)
_HIGHEST_WELFARE = partial(_best, quantity="welfare", needed=KNOWN)
_SAID: dict[tuple[str, str], dict[str, Callable[[Figure], Finding]]] = {  # by place in the paper and our figure
    ("Section 5.2, Figure 2", "fig-phi"): {
        "Algorithm 1's estimate φ₁ settles within 15 sweeps, in early and late rounds": _settles,
        "Algorithm 1's work is linear in N": _is_linear,
    },
    ("Section 5.2, Figure 3", "fig-cost"): {
        "MPPFL has the lowest server cost on all data sets": _LOWEST_COST,
    },
    ("Section 5.2, on accuracy", "fig-cost"): {
        "SA costs the server more than MPPFL": partial(_best, quantity="server_cost", needed=AGNOSTIC),
        "MPPFL costs the server less than SARDA": partial(_best, quantity="server_cost", needed=SARDA),
    },
    ("Section 5.2, Figure 4", "fig-welfare"): {
        "MPPFL has the highest welfare on all data sets": _HIGHEST_WELFARE,
        "its lead is larger on more complex data sets": _gap_with_complexity,
    },
    ("Section 5.2, on accuracy", "fig-welfare"): {
        "SA brings clients less welfare than MPPFL": partial(_best, quantity="welfare", needed=AGNOSTIC),
    },
    ("Section 5.2, Figure 5", "fig-alpha"): {
        "MPPFL's welfare falls as α grows": partial(_trend, quantity="welfare", sign=-1),
        "it falls because clients choose smaller budgets": partial(_trend, quantity="mean_budget", sign=-1),
    },
    ("Appendix E, Figure 9", "fig-alpha"): {
        "MPPFL's server cost rises with α": partial(_trend, quantity="server_cost", sign=+1),
        "it rises because the server must pay more": partial(_trend, quantity="payments", sign=+1),
    },
    ("Section 5.2, Figure 6", "fig-k"): {
        "MPPFL's welfare falls as K grows": partial(_trend, quantity="welfare", sign=-1),
    },
    ("Appendix E, Figure 10", "fig-k"): {
        "MPPFL's server cost rises with K": partial(_trend, quantity="server_cost", sign=+1),
    },
}
for _setting, _cost, _welfare in (
    ("cinic-10", "Section 5.2, Figure 7", "Section 5.2, Figure 8"),
    ("cifar-10", "Appendix E, Figure 11", "Appendix E, Figure 12"),
):
    _title = SETTINGS[_setting].title
    _SAID[_cost, "fig-n"] = {
        f"{_title}: server cost grows with N under every strategy": partial(
            _all_grow, quantity="server_cost", setting=_setting
        ),
        f"{_title}: MPPFL has the lowest server cost at every N": partial(_LOWEST_COST, setting=_setting),
    }
    _SAID[_welfare, "fig-n"] = {
        f"{_title}: MPPFL has the highest welfare at every N": partial(_HIGHEST_WELFARE, setting=_setting),
        f"{_title}: MPPFL's lead in welfare widens with N": partial(_gap_widens, setting=_setting),
    }
CLAIMS = tuple(Claim(*place, text, judge) for place, judges in _SAID.items() for text, judge in judges.items())


def _names(mechanisms: Sequence[str]) -> str:
    *first, last = [TITLES[name] for name in mechanisms]
    return f"{', '.join(first)} and {last}" if first else last


def _row(values: Array) -> str:
    return ", ".join(_number(value) for value in values.tolist())


def _number(value: float) -> str:
    """Three digits, thousands set apart."""
    figure = float(f"{value:.3g}")
    return f"{figure:,.0f}".replace("-", "−") if abs(figure) >= 100 else f"{figure:.3g}".replace("-", "−")
