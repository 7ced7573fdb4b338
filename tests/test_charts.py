"""Charts: every axis has a name and a unit; one description for the page, for a file and for a screen reader."""

import json
import re
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
    in_words,
    slots_of,
    thinned,
    to_plotly,
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


# ---- for the page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.key)
@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_every_figure_whose_text_can_be_read_from_afar_and_axes_say_what_they_are(chart, dark):
    from plotly.graph_objects import Figure

    made = to_plotly(chart, dark)
    figure = Figure(**made)  # checks every key and value
    assert figure.layout.uirevision == chart.key
    assert figure.layout.transition.duration is None  # drawn at once, not moved there
    assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert min(map(int, re.findall(r'"size": (\d+)', json.dumps(made["layout"])))) >= 13
    assert figure.layout.xaxis.title.text == chart.x.label
    assert figure.layout.yaxis.title.text == chart.y.label


def contrast(one, other):
    """Ratio of relative luminances by WCAG 2."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("dark", "page"), [(False, "#ffffff"), (True, "#12161b")])
def test_lines_differ_in_colour_dash_and_marker_bars_in_pattern_and_the_first_stand_out_from_the_page(dark, page):
    many = Chart("many", "Many", ROUNDS, MONEY, tuple(Line(str(k), k, X, X + k) for k in range(6)))
    made = to_plotly(many, dark)
    drawn = made["data"]
    for part, feature in (("line", "color"), ("line", "dash"), ("marker", "symbol")):
        assert len({trace[part][feature] for trace in drawn}) == 6
    first, second = (trace["marker"]["pattern"]["shape"] for trace in to_plotly(BARS, dark)["data"])
    assert first != second
    assert contrast(made["layout"]["font"]["color"], page) > 7
    assert min(contrast(trace["line"]["color"], page) for trace in drawn[:4]) > 3


def test_gaps_are_gaps_and_a_band_goes_round_its_line():
    band, ours, theirs = to_plotly(LINES, False)["data"]
    assert theirs["y"] == [1.0, None, None, 2.0, 3.0]
    assert band["x"] == [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    assert band["y"][:5] == [x**3 for x in range(1, 6)]
    assert band["y"][:4:-1] == [1, 2, 3, 4, 5]
    assert band["legendgroup"] == ours["legendgroup"] != theirs["legendgroup"]
    assert "money" in ours["hovertemplate"]


def test_names_are_words_and_never_markup_and_a_long_axis_has_its_unit_on_a_line_of_its_own():
    made = to_plotly(POINTS, False)
    assert made["data"][0]["customdata"][2] == "&lt;b&gt;c&lt;/b&gt;"
    assert "%{x}" not in made["data"][0]["hovertemplate"].replace("%{x:.4~g}", "")
    strange = Chart("strange", "<i>T</i>", ROUNDS, MONEY, (Line("<a href='x'>l</a>", 0, X, X),))
    assert "<a" not in json.dumps(to_plotly(strange, False))
    long = to_plotly(Chart("long", "Long", Axis("external risk", "ρ of zCDP, per round"), MONEY), False)
    assert long["layout"]["xaxis"]["title"]["text"] == "external risk<br>(ρ of zCDP, per round)"


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
    trace = to_plotly(Chart("long", "Long", ROUNDS, MONEY, (Line("l", 0, np.arange(len(y)), y),)), False)["data"][0]
    assert len(trace["x"]) == len(kept)


# ---- for everybody ------------------------------------------------------------------------------------------------


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
    drawn = to_plotly(replace(BARS, label_slots=(0, 2)), False)["data"]
    assert drawn[0]["marker"]["color"] == drawn[1]["marker"]["color"] == ["#0072b2", "#009e73"]
