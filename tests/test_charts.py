"""Charts: every axis has a name and a unit; one description for the page, for a file and for a screen reader."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from mppfl.charts import (
    MECHANISM_SLOTS,
    MOST_POINTS,
    ROUNDS,
    Axis,
    Bars,
    Chart,
    Line,
    for_page,
    in_words,
    slots_of,
    thinned,
    write_figure,
)
from mppfl.errors import BadInput
from mppfl.game import MECHANISMS

MONEY = Axis("cost", "money")
X = np.arange(1.0, 6.0)
OURS, THEIRS = Line("ours", 0, X, X**2, X, X**3), Line("theirs", 1, X, np.array([1, np.nan, np.inf, 2, 3.0]))
LINES = Chart("costs", "Costs by round", ROUNDS, MONEY, (OURS, THEIRS), marked=2.0, note="only five rounds")
COMMON, OWN = Bars("common reward", 0, np.array([1.0, -2.0])), Bars("own reward", 1, np.array([np.nan, 3.0]))
NAMES = ("mppfl", "dp_fedavg")
BARS = Chart("compared", "Mechanisms", MONEY, Axis("mechanism", "name"), bars=(COMMON, OWN), labels=NAMES)
CLIENTS = Line("clients", 0, X, -X, labels=("a", "b", "<b>c</b>", "%{x}", "e"))
CHOSEN = Line("chosen", 1, X[:1], -X[:1], labels=("a",))
POINTS = Chart("clients", "Clients", Axis("risk", "ρ"), MONEY, (CLIENTS, CHOSEN))
POWERS = (Bars("mppfl", 0, np.array([0.5, 1.0])), Bars("random", 1, np.array([300.0, 0.0])))
EPSILON = Axis("ε", "at δ = 1e-5", log=True)
LOG = Chart("powers", "Powers of ten", EPSILON, Axis("client", "name"), bars=POWERS, labels=("a", "b"))
EMPTY = Chart("empty", "Nothing", ROUNDS, MONEY)
ALL = [LINES, BARS, POINTS, LOG, EMPTY]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((partial(Axis, *words), "give both") for words in (("", "money"), ("cost", ""), ("cost", "  "))),
        (partial(Line, "half", 0, X, X, low=X), "one end of a band"),
        (partial(Line, "short", 0, X, X[:4]), r"shape \(4,\), not \(5,\)"),
        (partial(replace, BARS, labels=("one",)), "2 values for 1 labels"),
        (partial(replace, LINES, bars=(COMMON,)), "mixes lines and bars"),
    ],
)
def test_a_chart_cannot_exist_in_a_wrong_state(make, words):
    with pytest.raises(BadInput, match=words):
        make()
    assert not OURS.y.flags.writeable


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.key)
def test_a_page_is_given_plain_json_in_which_gaps_are_null_and_words_are_said(chart):
    said = for_page(chart)
    assert json.loads(json.dumps(said, allow_nan=False))["key"] == chart.key
    assert said["words"] == in_words(chart)
    assert [line["y"] for line in for_page(LINES)["lines"]][1] == [1.0, None, None, 2.0, 3.0]


def test_long_lines_are_thinned_without_losing_ends_or_extremes():
    rng = np.random.default_rng(0)
    y = rng.normal(size=123_457)
    y[71_003], y[3_333], y[50_000:50_500] = 40.0, -40.0, np.nan
    kept = thinned(y)
    assert len(kept) <= MOST_POINTS
    assert (np.diff(kept) > 0).all()
    assert {0, len(y) - 1, 71_003, 3_333} <= set(kept.tolist())
    assert np.isnan(y[kept]).any()  # the gap is still one
    assert thinned(y[:MOST_POINTS]).tolist() == list(range(MOST_POINTS))
    (line,) = for_page(Chart("long", "Long", ROUNDS, MONEY, (Line("l", 0, np.arange(len(y)), y),)))["lines"]
    assert len(line["x"]) == len(kept)


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF-")])
def test_bars_become_a_file_of_the_kind_its_name_says(tmp_path, suffix, magic):
    spread = Bars("sums", 0, X[:2], X[:2] / 10)
    dollar = Chart("odd", "Odd", MONEY, Axis("client", "name"), bars=(spread,), labels=("$\\frac{$", "x_1"))
    write_figure([BARS, dollar, EMPTY], tmp_path / f"figure{suffix}")
    content = (tmp_path / f"figure{suffix}").read_bytes()
    assert content.startswith(magic)


def test_a_figure_can_be_heard():
    assert in_words(LINES) == (
        "Costs by round. cost (money) against round (number): ours from 1.00 to 25.0; theirs from 1.00 to 3.00."
    )
    assert "common reward between −2.00 and 1.00 over 2 bars" in in_words(BARS)
    assert "5 points clients; 1 points chosen" in in_words(POINTS)
    assert in_words(EMPTY) == "Nothing: nothing to show yet."


def test_every_mechanism_has_a_slot_and_colour_of_its_own_and_a_second_run_of_it_a_free_one():
    assert set(MECHANISM_SLOTS) == set(MECHANISMS)
    assert len(set(MECHANISM_SLOTS.values())) == len(MECHANISMS)
    assert slots_of(["dp_fedavg", "mppfl"]) == [MECHANISM_SLOTS["dp_fedavg"], MECHANISM_SLOTS["mppfl"]]
    assert slots_of(["mppfl", "mppfl", "my own", "social_agnostic"]) == [0, 2, 3, 1]
