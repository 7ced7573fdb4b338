"""Trainings in a real browser: finished ones over each other, and one that is under way."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from mppfl.explorer import RUN_CHARTS, ledger_rows, read_run

pytestmark = pytest.mark.xdist_group("browser")


def test_finished_runs_lie_over_each_other(page, runs_folder):
    page.link("?tab=run&run=done/mppfl&run=done/fixed")
    page.page.wait_for_selector("#run-status li >> nth=1")
    assert page.page.locator("#run-status li").all_inner_texts() == [
        "done/mppfl: mppfl, finished, 4 rounds",
        "done/fixed: fixed, finished, 4 rounds",
    ]
    figures = {key: page.figure(key) for key in RUN_CHARTS}
    assert all("(" in each["x"] and "(" in each["y"] for each in figures.values())
    assert [trace["name"] for trace in figures["accuracy"]["traces"]] == ["done/mppfl", "done/fixed"]
    state = read_run(runs_folder, "done/mppfl")
    assert figures["accuracy"]["traces"][0]["y"] == pytest.approx(state.accuracy[~np.isnan(state.accuracy)].tolist())
    shown = page.rows("#ledger table >> nth=0")
    assert [line[:3] for line in shown] == [[row.client, row.spent, row.dp_epsilon] for row in ledger_rows(state)]
    assert "Simulation" in page.text("#run-status")
    page.tick("runs", "done/fixed")
    page.until("() => document.querySelectorAll('#run-status li').length === 1")
    assert page.choices.runs == ("done/mppfl",)


def test_the_tab_shows_its_runs_whenever_and_wherever_it_is_opened(page, new_page):
    page.link("?tab=run&run=done/mppfl")
    page.page.wait_for_selector("#run-status li")
    other = new_page()
    other.open("?clients=20&run=done/mppfl")
    other.tick("tab", "run")
    other.page.wait_for_selector("#run-status li")
    assert other.page.locator("#ledger table").count() == 1


def test_a_training_is_followed_while_it_runs(page, runs_folder, command):
    page.link("?tab=run&run=done/mppfl")
    settings = ("game.num_rounds=400", 'mechanisms=["mppfl"]', "output.checkpoint_every=1", "training.local_epochs=1")
    options = [part for each in settings for part in ("--set", each)]
    log = (runs_folder.parent / "train.txt").open("wb")
    training = subprocess.Popen(
        [command, "train", "examples/demo.toml", *options, "--output", runs_folder / "live"], stdout=log, stderr=log
    )
    try:
        page.page.wait_for_selector('#lever-runs input[value="live/mppfl"]')
        page.tick("runs", "live/mppfl")
        page.page.wait_for_selector("#run-status li:has-text('live/mppfl')")
        seen = []
        for _ in range(2):  # the curve, the account and what is said of them go on, without a click
            seen.append(_standing(page, more_than=seen[-1] if seen else (0, 0, 0.0)))
        assert seen[1] > seen[0]
    finally:
        training.kill()
        training.wait(120)
        log.close()


def _standing(page, more_than):
    """Rounds done, points of the curve and ρ spent by the first client of the ledger, once all are `more_than` that."""
    found = page.until(
        f"""() => {{
          const live = (selector) => [...document.querySelectorAll(selector)].find(
            (each) => (each.caption || each).innerText.includes("live/mppfl"));
          const said = live("#run-status li"), account = live("#ledger table");
          const curve = document.querySelector("#chart-accuracy.js-plotly-plot");
          const line = curve && curve.data && curve.data.find(({{name}}) => name === "live/mppfl");
          const round = said && /round (\\d+) of 400/.exec(said.innerText);
          if (!round || !line || !account) return null;
          const now = [Number(round[1]), line.y.length, Number(account.tBodies[0].rows[0].cells[1].innerText)];
          return now.every((each, at) => each > {list(more_than)}[at]) ? now : null;
        }}"""
    )
    assert re.fullmatch(r"[\d.]+", str(found[2]))
    return tuple(found)
