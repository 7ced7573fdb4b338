"""What the page of the Last.fm experiment says about leaks: of profiles by hop and degree, and of a model's updates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from examples.lastfm import figures
from examples.lastfm.experiment import Leakage, Outcome
from examples.lastfm.leakage import DegreeGroup, Measured
from examples.lastfm.updates import UpdateAudit, UpdateLeak

from mppfl.text import between, epsilon, number, percent, plainly


def leakage_section(outcome: Outcome) -> dict[str, Any]:
    leak = outcome.leakage
    hops = [(float(attack.hop), str(attack.hop)) for attack in leak.attacks]
    at = [place for place, _ in hops]
    alike = [
        figures.over("friends as they are", 0, at, _ends(leak.similarity)),
        figures.over("same people in random order", 6, at, _ends(leak.similarity_null)),
    ]
    attacks = [
        figures.over("without noise", 1, at, _ends([a.gain for a in leak.attacks_without_noise])),
        figures.over(f"released, mean ρ {number(leak.mean_budget, 2)} per record", 0, at,
                     _ends([a.gain for a in leak.attacks])),
        figures.over("released, same people in random order", 6, at, _ends([a.null for a in leak.attacks])),
    ]  # fmt: skip
    degree, places = _degree_series(leak)
    drawn = [
        {
            "title": "Likeness of lists by distance",
            "legend": figures.legend(alike),
            "svg": figures.curve_chart(alike, hops, "edges apart", "cosine above that of people further apart",
                                       f"likeness by hop: {_said(leak.similarity)}"),
            "note": "95 % intervals over users.",
        },
        {
            "title": "Ten guesses at a user's artists from profiles at one distance",
            "legend": figures.legend(attacks),
            "svg": figures.curve_chart(attacks, hops, "edges apart", "precision above popularity",
                                       f"gain by hop: {_said([a.gain for a in leak.attacks])}"),
            "note": f"The user's own profile is withheld; popularity alone is right "
            f"{percent(leak.popularity_precision.mean)} of the time. 95 % intervals over users.",
        },
        {
            "title": "Who leaks: the paper's index, the calibrated level and the measurement, by number of friends",
            "legend": figures.legend(degree),
            "svg": figures.curve_chart(degree, places, "friends", "over the mean of all groups",
                                       "leak by degree, relative to its mean"),
            "note": "Each curve over its own mean, for R_model is an index without unit, R_leak and the leak are nats, "
            "and the gain is a share. Bands: 95 % over users.",
        },
    ]  # fmt: skip
    side = leak.side
    rows = [[name, *_interval(found)] for name, found in leak.rankings.items()]
    facts = [
        ["leak about the side of the main axis of taste, nats", *_interval(side.leak)],
        ["the same, people in random order", *_interval(side.null)],
        ["R_leak, mean of the same users, nats", number(float(side.predicted.mean())), ""],
        ["sides guessed rightly", percent(side.accuracy), f"commoner side {percent(side.prior)}"],
    ]
    hop_rows = [
        [str(a.hop), percent(a.precision.mean), *_interval(a.gain), *_interval(a.null), *_interval(b.gain)]
        for a, b in zip(leak.attacks, leak.attacks_without_noise, strict=True)
    ]
    tables = [
        {
            "title": "Attack precision by hop",
            "head": ["edges apart", "precision", "gain", "95 %", "null", "95 %", "gain without noise", "95 %"],
            "rows": hop_rows,
            "note": "The null is the gain when the same people stand on the graph in random order.",
        },
        {"title": "What leaks in nats", "head": ["quantity", "value", "95 %"], "rows": facts, "note": ""},
        {
            "title": "Does an index rank people by what leaks?",
            "head": ["Spearman of", "correlation", "95 %"],
            "rows": rows,
            "note": "An interval that holds 0 means: no ranking.",
        },
    ]
    return {
        "key": "leakage",
        "heading": "What friends' profiles say about you",
        "lead": (
            "Measured on the profiles that the recommender itself is built from, released at record level under "
            "MPPFL's budgets. One user's profile is withheld, everybody else's is read."
        ),
        "figures": drawn,
        "tables": tables,
    }


def said_of_updates(audit: UpdateAudit) -> str:
    """The smallest budget and the largest, against what is known without any upload."""
    first, last = audit.several_rounds[0], audit.several_rounds[-1]
    adds = [f"{number(each.added.mean)} nats" if each.added.low > 0 else "nothing measurable" for each in (first, last)]
    noise = "without noise" if math.isinf(last.mean_budget) else f"at mean ρ {_budget(last)}"
    return (
        f"Updates of a trained model leak {number(first.side.leak.mean)} nats about that side at mean ρ "
        f"{_budget(first)} and {number(last.side.leak.mean)} {noise}. The graph and the public users alone tell "
        f"{number(audit.without_uploads.mean)}; to that updates add {adds[0]} at the first budget, {adds[1]} {noise}."
    )


def updates_section(audit: UpdateAudit) -> dict[str, Any]:
    several = audit.several_rounds[0].num_rounds
    kinds = (
        ("the update of one round", "", audit.one_round),
        (f"the updates of {several} rounds", "Rounds share the budget.", audit.several_rounds),
        ("one noisy bit", "The side itself, with the noise that the same budget buys; it trains nothing.", audit.bits),
    )
    head = ["mean ρ", "largest ε", "NDCG@10 of the model", "leak, nats", "95 %", "people in random order", "95 %",
            "sides guessed rightly", "added to public knowledge, nats", "95 %", "R_leak, nats"]  # fmt: skip
    tables = [
        {
            "title": f"What is uploaded: {name}",
            "head": head,
            "rows": [_update_row(each) for each in found],
            "note": note,
        }
        for name, note, found in kinds
    ]
    rows = [
        [name, _budget(each), *(text for found in each.rankings.values() for text in _interval(found))]
        for name, _, leaks in kinds
        for each in leaks
    ]
    ranked = [text for name in audit.one_round[0].rankings for text in (name, "95 %")]
    tables.append(
        {
            "title": "Does an index rank people by what updates leak?",
            "head": ["uploaded", "mean ρ", *ranked],
            "rows": rows,
            "note": "Spearman's correlation with the leak in nats, per user.",
        }
    )
    alone = audit.without_uploads
    return {
        "key": "updates",
        "heading": "What a trained model's updates tell",
        "lead": (
            f"A federated model of {audit.num_parameters:,} shared numbers, trained on users' own lists; every client "
            "uploads how far its copy moved, clipped and with noise that hides its whole list. One user's update is "
            "withheld, everybody else's is read along the direction that parts the two sides of the main axis of taste "
            "best on public users. The leak is against the prior. Without any upload the graph and the public users' "
            f"sides alone tell {number(alone.mean)} nats ({between(alone.low, alone.high)}), "
            f'{percent(audit.accuracy_without)} guessed rightly; the column "added" says what uploads add to that. '
            "Intervals cover users and draws of the noise, which is simulated here whatever the rest of the page uses."
        ),
        "figures": [],
        "tables": tables,
    }


def _budget(leak: UpdateLeak) -> str:
    return "no noise" if math.isinf(leak.mean_budget) else plainly(leak.mean_budget)


def _update_row(leak: UpdateLeak) -> list[str]:
    return [
        _budget(leak),
        "∞" if math.isinf(leak.dp_epsilon) else epsilon(leak.dp_epsilon),
        "–" if math.isnan(leak.ndcg) else number(leak.ndcg),
        *_interval(leak.side.leak),
        *_interval(leak.side.null),
        percent(leak.side.accuracy),
        *_interval(leak.added),
        number(float(leak.side.predicted.mean())),
    ]


def _degree_series(leak: Leakage) -> tuple[list[Any], list[tuple[float, str]]]:
    """Curves over groups of users by degree, and the groups' places: a curve skips the groups that it has not."""
    curves = (
        ("leak measured, nats", 0, leak.degree_of_leak),
        ("gain of ten guesses, measured", 2, leak.degree_of_gain),
        ("R_leak, predicted nats", 4, leak.degree_of_r_leak),
        ("R_model, the paper's index", 1, leak.degree_of_r_model),
    )
    # Groups begin at the same degrees in all curves; where the last one ends depends on whom the curve is about.
    widest: dict[int, DegreeGroup] = {}
    for group in sorted((group for _, _, found in curves for group in found), key=lambda group: group.most):
        widest[group.least] = group
    place = {least: float(at) for at, least in enumerate(sorted(widest))}
    series = [
        figures.over(name, slot, [place[group.least] for group in found], _over_mean(found))
        for name, slot, found in curves
        if found
    ]
    return series, [(at, _named(widest[least])) for least, at in place.items()]


def _over_mean(groups: Sequence[DegreeGroup]) -> list[tuple[float, float, float]]:
    mean = float(np.mean([group.value.mean for group in groups]))
    if mean == 0:
        return [(math.nan, math.nan, math.nan)] * len(groups)
    return [(g.value.mean / mean, g.value.low / mean, g.value.high / mean) for g in groups]


def _named(group: DegreeGroup) -> str:
    return str(group.least) if group.least == group.most else f"{group.least}–{group.most}"


def _ends(found: Sequence[Measured]) -> list[tuple[float, float, float]]:
    return [(each.mean, each.low, each.high) for each in found]


def _interval(found: Measured) -> list[str]:
    return [number(found.mean), between(found.low, found.high)]


def _said(found: Sequence[Measured]) -> str:
    return ", ".join(number(each.mean) for each in found)
