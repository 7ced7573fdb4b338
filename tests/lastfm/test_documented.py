"""The tables on updates in docs/lastfm.md say what the record says."""

import json
from pathlib import Path

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
