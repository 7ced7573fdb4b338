"""The Last.fm experiment as one HTML page that needs nothing but itself, and as one JSON object."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from examples.lastfm import figures
from examples.lastfm.aggregation import protection_of_sum
from examples.lastfm.experiment import TRUST_MODELS, Outcome, Score
from examples.lastfm.page_leaks import leakage_section, said_of_updates, updates_section
from examples.lastfm.profiles import protection_of
from examples.lastfm.updates import UpdateAudit, UpdateLeak
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from mppfl.experiment import Provenance, require_folder
from mppfl.files import write_whole
from mppfl.privacy.ledger import SIMULATION
from mppfl.text import duration, epsilon, number, percent, plainly

SLOTS = {"record": 0, "secure": 2, "client": 1}


def write_page(outcome: Outcome, provenance: Provenance, path: Path) -> Path:
    """Writes the page at `path`: nothing is loaded from elsewhere, and it works without JavaScript."""
    require_folder(path.parent)
    write_whole(path, page_of(outcome, provenance).encode("utf-8"))
    return path


def page_of(outcome: Outcome, provenance: Provenance) -> str:
    """The page as text."""
    found = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return found.get_template("lastfm.html.j2").render(
        css=Markup(resources.files("mppfl.experiment.report").joinpath("templates", "report.css").read_text("utf-8")),
        title="Listening among friends",
        subtitle=(
            f"{outcome.num_users:,} users of Last.fm, {outcome.num_friendships:,} friendships, "
            f"{outcome.num_artists:,} artists; every user is a client with its own list"
        ),
        verdict=verdict(outcome),
        simulation=SIMULATION if outcome.settings.noise == "simulated" else "",
        tiles=_tiles(outcome),
        sections=[
            _quality(outcome),
            _mechanisms(outcome),
            leakage_section(outcome),
            *([updates_section(outcome.updates)] if outcome.updates else []),
        ],
        promises=_promises(),
        provenance=_provenance(outcome, provenance),
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Every figure, as plain values; leaks of single users are left out, for they say something about a person."""
    plain = asdict(outcome)
    leak = plain["leakage"]
    for attack in (*leak["attacks"], *leak["attacks_without_noise"]):
        del attack["gains"], attack["precision_by_popularity"]
    updates = plain["updates"]
    audited = [] if updates is None else [*updates["one_round"], *updates["several_rounds"], *updates["bits"]]
    for side in (leak["side"], *(each["side"] for each in audited)):
        del side["nats"], side["predicted"]
    for plain_leak, found in zip(audited, _audited(outcome.updates), strict=True):
        plain_leak["r_leak"] = float(found.side.predicted.mean())
    return plain


def _audited(updates: UpdateAudit | None) -> list[UpdateLeak]:
    return [] if updates is None else [*updates.one_round, *updates.several_rounds, *updates.bits]


def write_figures(outcome: Outcome, path: Path) -> Path:
    """Writes every figure as one JSON file; infinite and unknown ones become null."""
    require_folder(path.parent)
    write_whole(path, (json.dumps(finite(as_json(outcome)), indent=1, ensure_ascii=False) + "\n").encode("utf-8"))
    return path


def finite(value: Any) -> Any:
    """Plain values with None for what JSON cannot say: infinite or unknown numbers."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read(name: str) -> str:
    return resources.files("examples.lastfm").joinpath("templates", name).read_text("utf-8")


# ---- words --------------------------------------------------------------------------------------------------------


def verdict(outcome: Outcome) -> list[str]:
    """What was found, in sentences that follow the figures whichever way they fall."""
    chosen = outcome.settings
    popular = outcome.popularity.ndcg
    record, secure = (_arm(outcome, trust, "fixed at MPPFL's mean") for trust in ("record", "secure"))
    local = min(outcome.curves["client"], key=lambda each: abs(each.mean_budget - chosen.record_budget))
    first = (
        f"With one noisy profile per user (ρ = {plainly(chosen.record_budget)} per user-artist pair, "
        f"ε = {epsilon(record.dp_epsilon)}) recommendations reach NDCG@10 {number(record.ndcg)}. Popularity without "
        f"any protection has {number(popular)}, a model without noise {number(outcome.noiseless.ndcg)}."
    )
    second = (
        f"Hiding whole users behind secure aggregation at ρ = {plainly(chosen.secure_budget)} "
        f"(ε = {epsilon(secure.dp_epsilon)}) gives {number(secure.ndcg)}; hiding them without trusting anybody at "
        f"ρ = {plainly(local.mean_budget)} gives {number(local.ndcg)}, "
        f"{'more' if local.ndcg > popular else 'less'} than popularity."
    )
    near, side = outcome.leakage.attacks[0], outcome.leakage.side
    says = "do" if near.gain.low > 0 else "do not measurably"
    third = (
        f"Friends' noisy profiles {says} give away a user who released nothing: ten guesses are right "
        f"{percent(near.precision.mean)} of the time against {percent(outcome.leakage.popularity_precision.mean)} by "
        f"popularity; the side of the main axis of taste leaks {number(side.leak.mean)} nats."
    )
    return [first, second, third, *([said_of_updates(outcome.updates)] if outcome.updates else [])]


def _tiles(outcome: Outcome) -> list[dict[str, str]]:
    record, secure = (_arm(outcome, trust, "MPPFL, noise-aware") for trust in ("record", "secure"))
    return [
        {"value": number(record.ndcg), "label": f"NDCG@10, record level, MPPFL's budgets, mean ρ {_rho(record)}"},
        {"value": number(secure.ndcg), "label": f"NDCG@10, secure aggregation, MPPFL's budgets, mean ρ {_rho(secure)}"},
        {"value": number(outcome.popularity.ndcg), "label": "NDCG@10 of popularity, unprotected"},
        {"value": number(outcome.noiseless.ndcg), "label": "NDCG@10 without noise, unprotected"},
        {"value": duration(outcome.seconds), "label": f"for {outcome.settings.num_splits} splits of everything here"},
    ]


def _rho(score: Score) -> str:
    return number(score.mean_budget, 2)


def _arm(outcome: Outcome, trust: str, name: str) -> Score:
    return next(each for each in outcome.arms[trust] if each.name == name)


# ---- sections -----------------------------------------------------------------------------------------------------


def _quality(outcome: Outcome) -> dict[str, Any]:
    places = figures.on_log_axis(outcome.settings.budgets)
    at = [place for place, _ in places]
    curves = [
        figures.over(
            TRUST_MODELS[trust], SLOTS[trust], at, [(s.ndcg, s.ndcg - s.ndcg_sd, s.ndcg + s.ndcg_sd) for s in scores]
        )
        for trust, scores in outcome.curves.items()
    ]
    curves.append(figures.level("no noise, unprotected", 6, places, outcome.noiseless.ndcg))
    curves.append(figures.level("popularity, unprotected", 4, places, outcome.popularity.ndcg))
    said = "; ".join(
        f"{TRUST_MODELS[trust]}: {number(scores[0].ndcg)} to {number(scores[-1].ndcg)}"
        for trust, scores in outcome.curves.items()
    )
    tables = [
        {
            "title": TRUST_MODELS[trust][0].upper() + TRUST_MODELS[trust][1:],
            "head": ["ρ of every user", "ε", "NDCG@10", "± over splits", "HR@10", "Recall@20"],
            "rows": [[plainly(s.mean_budget), epsilon(s.dp_epsilon), *_figures(s)] for s in scores],
            "note": _unit_note(trust),
        }
        for trust, scores in outcome.curves.items()
    ]
    lead = (
        f"The same budget for everybody, {outcome.settings.num_splits} random splits of every list into 80 % known and "
        f"20 % hidden, all {outcome.num_artists:,} artists ranked. Constants were chosen on other users: the "
        f"{outcome.num_users - outcome.scored_users:,} set apart for that are not scored here."
    )
    figure = {
        "title": "NDCG@10 against ρ under three trust models",
        "legend": figures.legend(curves),
        "svg": figures.curve_chart(curves, places, "ρ of every user, logarithmic", "NDCG@10", said),
        "note": "Bands: one standard deviation over splits. The units differ: ρ protects one user-artist pair at "
        "record level, all of a user's list at client level.",
    }
    return {
        "key": "quality",
        "heading": "What recommendations are worth",
        "lead": lead,
        "figures": [figure],
        "tables": tables,
    }


def _unit_note(trust: str) -> str:
    return {
        "record": "ρ and ε hide whether one artist is in a list, not the list.",
        "secure": "ρ and ε hide a whole list, if nobody sees a single contribution. Aggregation is simulated.",
        "client": "ρ and ε hide a whole list from everybody. Shown for honesty: where it recommends better than "
        "popularity, ε is no meaningful promise.",
    }[trust]


def _figures(score: Score) -> list[str]:
    return [number(score.ndcg), number(score.ndcg_sd, 2), number(score.hit_rate), number(score.recall)]


def _mechanisms(outcome: Outcome) -> dict[str, Any]:
    tables = []
    for trust, scores in outcome.arms.items():
        rows = [
            [s.name, number(s.mean_budget), epsilon(s.median_epsilon), epsilon(s.dp_epsilon), *_figures(s)]
            for s in scores
        ]
        tables.append(
            {
                "title": TRUST_MODELS[trust][0].upper() + TRUST_MODELS[trust][1:],
                "head": ["budgets", "mean ρ", "ε of the middle user", "largest ε", "NDCG@10", "± over splits", "HR@10",
                         "Recall@20"],
                "rows": rows,
                "note": _mechanism_note(trust),
            }
        )  # fmt: skip
    return {
        "key": "mechanisms",
        "heading": "Mechanisms side by side",
        "lead": (
            f"Budgets of round 1 of the pricing game on the real friend graph (preset {outcome.settings.preset}), at "
            "MPPFL's reward rate and in one unit. Who spends more is not better for it: compare MPPFL with SA at "
            "MPPFL's mean, and with one fixed budget of the same mean."
        ),
        "figures": [],
        "tables": tables,
    }


def _mechanism_note(trust: str) -> str:
    if trust == "secure":
        return (
            "Noise-aware means contributions scaled by √ρ. With equal weights one common noise must suit the most "
            "careful contributor, so the others spend no more than it does: mean ρ falls with it."
        )
    return (
        "Trimmed: users below a quarter of the mean budget are left out, the others count alike. Noise-aware: profiles "
        "count by how little noise they carry."
    )


def _promises() -> list[tuple[str, str]]:
    record, client, secure = protection_of("record"), protection_of("client"), protection_of_sum("simulated")
    return [
        ("record level", f"{record.guarantee}. Adding or removing one artist moves a profile by exactly 1, so noise "
         "of variance 1/(2ρ) costs ρ; replacing one artist by another would cost 2ρ."),
        ("client level", f"{client.guarantee}. A profile has length 1, so a user who leaves moves it by 1."),
        ("secure aggregation", f"{secure.guarantee}. A user contributes √ρ times a vector of length 1; noise of "
         "variance ½ on the sum costs ρ. Simulated: no cryptography, dropout or collusion is run."),
        ("public by assumption", "who is whose friend, who participates, everybody's budget, and the catalogue of "
         "artists with enough listeners."),
        ("what breaks it", "a list that holds an artist twice, a catalogue or a budget chosen from one user's list; "
         "releasing a profile twice; telling how many artists a list has."),
        ("what is not hidden", "what your friends' lists say about you: the section on leakage measures it."),
    ]  # fmt: skip


def _provenance(outcome: Outcome, here: Provenance) -> list[tuple[str, str]]:
    chosen = outcome.settings
    return [
        ("code", f"mppfl {here.mppfl}, source {here.source}" + (f", commit {here.commit[:12]}" if here.commit else "")),
        ("machine", f"{here.cpu}, {here.cores} cores, {here.memory_gib:g} GiB"),
        ("versions", f"Python {here.python}, NumPy {here.numpy}, SciPy {here.scipy}"),
        ("started", here.started),
        ("took", duration(outcome.seconds)),
        ("data", f"HetRec 2011 Last.fm as given: {outcome.num_records:,} user-artist pairs of "
         f"{outcome.num_artists:,} artists"),
        ("scored", f"{outcome.scored_users:,} users, {chosen.num_splits} splits, seed {chosen.seed}"),
        ("noise", f"{chosen.noise}; δ = {chosen.dp_delta:g}"),
    ]  # fmt: skip
