"""The whole experiment on drawn data: what it measures and says, page and command; and what real data promise."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples.lastfm import experiment
from examples.lastfm.__main__ import main
from examples.lastfm.budgets import TrainingJob, arms_of, game_of_friends
from examples.lastfm.choose import choose
from examples.lastfm.data import hold_out, read_lastfm
from examples.lastfm.page import as_json, page_of, verdict, write_figures
from examples.lastfm.server import Constants, SumConstants, noiseless_scores, popularity_scores
from pytest import approx

from mppfl.experiment import provenance_here
from mppfl.privacy import epsilon
from tests.cli.conftest import calling  # noqa: F401  (a fixture)

QUICK = experiment.Settings(
    num_splits=2, budgets=(0.1, 100.0), hops=2, leak_draws=2, degree_groups=(1, 6), record_budget=4.0
)


def one_split(listening, seed=0):
    settings = experiment.Settings(num_splits=1, seed=seed)
    splits = [hold_out(listening, 0.2, settings.stream(experiment.SPLIT_STREAM, 0))]
    return experiment.World(listening, splits, ~experiment.validation_users(listening, settings), settings)


@pytest.fixture(scope="module")
def outcome(listening):
    return experiment.run_experiment(listening, QUICK)


def test_more_budget_recommends_better_and_every_score_states_the_epsilon_of_its_largest_budget(listening, outcome):
    for scores in outcome.curves.values():
        assert scores[-1].ndcg > scores[0].ndcg
        for score, rho in zip(scores, QUICK.budgets, strict=True):
            assert score.mean_budget == approx(rho)
            assert score.dp_epsilon == approx(epsilon(rho, QUICK.dp_delta))
    assert outcome.noiseless.ndcg > 1.3 * outcome.popularity.ndcg
    assert math.isinf(outcome.popularity.dp_epsilon)
    assert experiment.validation_users(listening, QUICK).sum() == 24  # they are not scored
    assert outcome.scored_users == 96


def test_arms_differ_in_budgets_and_weights_as_their_names_say(listening):
    game = game_of_friends(listening.graph, "paper-like", np.random.default_rng(0))
    arms = {arm.name: arm.budgets for arm in arms_of(game, 0.53)}
    ours, alone = arms["MPPFL, noise-aware"], arms["SA, noise-aware"]
    assert alone.mean() > ours.mean() == approx(0.53)  # who ignores what others lose shares more
    assert (arms["MPPFL, equal weights"] == ours).all()
    assert arms["SA at MPPFL's mean, noise-aware"].mean() == approx(0.53)
    assert arms["fixed at MPPFL's smallest"] == approx(np.full(120, ours.min()))
    assert arms["fixed at SA's mean"] == approx(np.full(120, alone.mean()))
    # In a secure sum equal weights cost what the most careful gives.
    budgets = [0.1, 1.0, 2.0, 0.0]
    for weights, given in (("noise_aware", budgets), ("equal", [0.1, 0.1, 0.1, 0]), ("trimmed", [0, 1.0, 1.0, 0])):
        assert experiment.contributed(np.array(budgets), weights) == approx(given)


def test_the_better_constant_is_chosen_and_every_trial_told(listening):
    lines = []
    nobody, everybody = 0.0, 1e6  # popularity drowned in friends' taste, or all there is
    first, second = choose(listening, QUICK, lines.append, {"popularity": (nobody, everybody)}, {"growth": (0.1,)})
    assert first.popularity in (Constants().popularity, nobody)
    assert second.growth in (SumConstants().growth, 0.1)
    assert len(lines) == 3
    assert all(re.fullmatch(r"\w+ = \S+: 0\.\d+ against 0\.\d+", line) for line in lines)


def test_leakage_is_measured_with_a_null_and_by_degree_and_updates_are_audited(outcome):
    leak = outcome.leakage
    assert [attack.hop for attack in leak.attacks] == [1, 2]
    assert leak.attacks[0].gain.low > leak.attacks[0].null.mean
    assert leak.attacks_without_noise[0].gain.mean >= leak.attacks[0].gain.mean - 0.02
    assert [group.least for group in leak.degree_of_leak] == [1, 6]
    assert all(-1 <= ranking.mean <= 1 for ranking in leak.rankings.values())
    assert [leak.mean_budget for leak in outcome.updates.one_round] == list(QUICK.update_budgets)
    assert outcome.updates.one_round[-1].dp_epsilon == math.inf


# ---- page and command ---------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself_and_says_what_the_figures_say(outcome):
    page = page_of(outcome, provenance_here())
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", page)
    assert page.count("<svg viewBox") == 4
    assert "seeded noise protects no one" in page
    for words in (*verdict(outcome), *experiment.TRUST_MODELS.values()):
        assert words.replace("'", "&#39;") in page


def test_without_an_audit_of_updates_page_verdict_and_figures_leave_it_out(listening, outcome):
    without = replace(outcome, updates=None)
    assert "What a trained model" in page_of(outcome, provenance_here())
    assert "What a trained model" not in page_of(without, provenance_here())
    assert len(verdict(without)) == len(verdict(outcome)) - 1
    assert as_json(without)["updates"] is None
    quick = replace(QUICK, num_splits=1, budgets=(1.0,), update_budgets=())
    assert experiment.run_experiment(listening, quick).updates is None


def test_the_figures_hold_no_single_users_leak(outcome, tmp_path):
    figures = json.loads(write_figures(outcome, tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["popularity"]["dp_epsilon"] is None
    assert figures["arms"].keys() == {"record", "secure"}
    assert not {"gains", "nats", "predicted"} & set(re.findall(r'"(\w+)":', json.dumps(as_json(outcome))))


@pytest.fixture
def lastfm(calling):  # noqa: F811
    """Runs `python -m examples.lastfm ...` in this process."""
    return calling(main)


def test_the_command_writes_a_page_and_its_figures(lastfm, outcome, lastfm_folder, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(experiment, "run_experiment", lambda *given, tell: asked.append(given) or outcome)
    done = lastfm("--data", lastfm_folder, "--output", tmp_path / "out", "--least-listeners", 5, "--quiet")
    assert done.code == 0, done.stderr
    ((listening, settings),) = asked
    assert (listening.num_users, settings.num_splits) == (120, 5)
    assert "client level, secure aggregation" in done.stdout
    assert done.stdout.rstrip().endswith("report.html")
    assert (tmp_path / "out" / "report.html").stat().st_size > 20_000
    assert json.loads((tmp_path / "out" / "results.json").read_text())["num_users"] == 120


def test_the_command_refuses_what_cannot_be_in_one_line(lastfm, lastfm_folder, tmp_path):
    (tmp_path / "taken").write_text("")
    for folder, more, message in (
        (tmp_path / "nowhere", (), "no such folder"),
        (lastfm_folder, ("--splits", 0), "--splits 0"),
        (lastfm_folder, ("--least-listeners", 500), "nothing to rank"),
        (lastfm_folder, ("--output", tmp_path / "taken"), "is no folder"),
    ):
        assert message in lastfm("--data", folder, *more).error


ROOT = Path(__file__).parents[2]
NAMES = {"one_round": "one round", "several_rounds": "five rounds", "bits": "a bit"}


def interval(measured, digits):
    mean, low, high = (f"{measured[part]:.{digits}f}" for part in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def budget(leak):
    return "no noise" if leak["mean_budget"] is None else f"{leak['mean_budget']:g}"


def update_rows(updates):
    """Lines of the table of leaks."""
    return [
        f"| {name} | {budget(leak)} | {'∞' if leak['dp_epsilon'] is None else format(leak['dp_epsilon'], '.1f')} "
        f"| {'–' if leak['ndcg'] is None else format(leak['ndcg'], '.3f')} | {interval(leak['side']['leak'], 3)} "
        f"| {interval(leak['side']['null'], 4)} | {leak['side']['accuracy']:.1%} | {leak['r_leak']:.3f} "
        f"| {interval(leak['added'], 4)} |".replace("%", " %")
        for key, name in NAMES.items()
        for leak in updates[key]
    ]


def ranking_rows(updates):
    """Lines of the table of rankings."""
    return [
        f"| {name} | {budget(leak)} | "
        + " | ".join(interval(leak["rankings"][index], 2) for index in ("R_leak", "R_model", "degree"))
        + " |"
        for key, name in NAMES.items()
        for leak in updates[key]
    ]


def test_tables_on_updates_are_those_of_the_record_and_no_null_is_told_from_zero():
    newest = sorted((ROOT / "benchmarks" / "records").glob("*-lastfm.json"))[-1]
    updates = json.loads(newest.read_text(encoding="utf-8"))["outcome"]["updates"]
    lines = (ROOT / "docs" / "lastfm.md").read_text(encoding="utf-8").splitlines()
    assert [row for row in (*update_rows(updates), *ranking_rows(updates)) if row not in lines] == []
    for leak in (*updates["one_round"], *updates["several_rounds"], *updates["bits"]):
        assert leak["side"]["null"]["low"] <= 0 <= leak["side"]["null"]["high"]


@pytest.fixture(scope="module")
def real():
    """The real files; needs MPPFL_DATA."""
    root = os.environ.get("MPPFL_DATA")
    folder = Path(root or "") / "graphs" / "hetrec2011-lastfm-2k"
    if not root or not folder.is_dir():
        pytest.skip("set MPPFL_DATA to the folder that holds graphs/ (docs/data-sets.md)")
    return read_lastfm(folder)


@pytest.mark.data
def test_the_real_files_are_read_whole_and_references_are_where_earlier_work_found_them(real):
    assert (real.num_users, real.num_artists) == (1_892, 1_530)
    assert real.degrees.sum() == 2 * 12_717
    assert real.listens.sum() == 63_009
    assert 0.08 < one_split(real).reference("popularity", popularity_scores).ndcg < 0.10
    assert 0.27 < one_split(real).reference("no noise", noiseless_scores).ndcg < 0.31


@pytest.mark.data
def test_recommendations_reach_what_the_example_promises(real):
    def ndcg(trust, rho):
        job = TrainingJob("everybody", np.full(real.num_users, rho), "noise_aware")
        return one_split(real).score(trust, job).ndcg

    assert ndcg("record", 1.0) >= 0.16
    assert ndcg("secure", 0.53) >= 0.19
    # Hiding whole users without trust does not reach popularity.
    assert ndcg("client", 1.0) < one_split(real).reference("popularity", popularity_scores).ndcg
