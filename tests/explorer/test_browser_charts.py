"""Charts as the page draws them: figures that Plotly accepts, in the colours of its style sheet."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib import resources

import pytest

from mppfl.charts import ON_LIGHT, ROUNDS, Axis, Chart, Line, for_page
from mppfl.experiment.report import read_template
from tests.test_charts import ALL, BARS, LINES, MONEY, POINTS, X

ASSETS = resources.files("mppfl.explorer") / "assets"
CALL = """([chart, theme]) => {
  document.documentElement.dataset.theme = theme;
  return window.mppflCharts.figure(chart);
}"""


@pytest.fixture(scope="module")
def figure(browser):
    """The figure that charts.js makes of a chart, on a light or a dark page."""
    page = browser.new_page()
    page.add_style_tag(content=(ASSETS / "explorer.css").read_text("utf-8"))
    page.add_script_tag(content=(ASSETS / "charts.js").read_text("utf-8"))
    yield lambda chart, dark=False: page.evaluate(CALL, [for_page(chart), "dark" if dark else "light"])
    page.close()


@pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.key)
@pytest.mark.parametrize("dark", [False, True])
def test_plotly_accepts_every_figure_whose_text_can_be_read_from_afar_and_axes_say_what_they_are(chart, dark, figure):
    from plotly.graph_objects import Figure

    made = figure(chart, dark)
    drawn = Figure(**made)  # checks every key and value
    assert drawn.layout.uirevision == chart.key
    assert drawn.layout.transition.duration is None  # drawn at once, not moved there
    assert drawn.layout.paper_bgcolor == drawn.layout.plot_bgcolor == "rgba(0,0,0,0)"
    assert min(map(int, re.findall(r'"size": (\d+)', json.dumps(made["layout"])))) >= 13
    assert drawn.layout.xaxis.title.text == chart.x.label
    assert drawn.layout.yaxis.title.text == chart.y.label


def contrast(one, other):
    """Ratio of relative luminances by WCAG 2."""

    def luminance(colour):
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("dark", "page"), [(False, "#ffffff"), (True, "#12161b")])
def test_lines_differ_in_colour_dash_and_marker_bars_in_pattern_and_the_first_stand_out(dark, page, figure):
    many = Chart("many", "Many", ROUNDS, MONEY, tuple(Line(str(k), k, X, X + k) for k in range(6)))
    made = figure(many, dark)
    drawn = made["data"]
    for part, feature in (("line", "color"), ("line", "dash"), ("marker", "symbol")):
        assert len({trace[part][feature] for trace in drawn}) == 6
    first, second = (trace["marker"]["pattern"]["shape"] for trace in figure(BARS, dark)["data"])
    assert first != second
    assert contrast(made["layout"]["font"]["color"], page) > 7
    assert min(contrast(trace["line"]["color"], page) for trace in drawn[:4]) > 3


def test_gaps_are_gaps_and_a_band_goes_round_its_line(figure):
    band, ours, theirs = figure(LINES)["data"]
    assert theirs["y"] == [1.0, None, None, 2.0, 3.0]
    assert band["x"] == [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]
    assert band["y"][:5] == [x**3 for x in range(1, 6)]
    assert band["y"][:4:-1] == [1, 2, 3, 4, 5]
    assert band["legendgroup"] == ours["legendgroup"] != theirs["legendgroup"]
    assert "money" in ours["hovertemplate"]


def test_names_are_words_and_never_markup_and_a_long_axis_has_its_unit_on_a_line_of_its_own(figure):
    made = figure(POINTS)
    assert made["data"][0]["customdata"][2] == "&#60;b&#62;c&#60;/b&#62;"
    assert "%{x}" not in made["data"][0]["hovertemplate"].replace("%{x:.4~g}", "")
    strange = Chart("strange", "<i>T</i>", ROUNDS, MONEY, (Line("<a href='x'>l</a>", 0, X, X),))
    assert "<a" not in json.dumps(figure(strange))
    long = figure(Chart("long", "Long", Axis("external risk", "ρ of zCDP, per round"), MONEY))
    assert long["layout"]["xaxis"]["title"]["text"] == "external risk<br>(ρ of zCDP, per round)"


def test_a_mechanism_has_one_colour_on_every_page(figure):
    sheets = (read_template("report.css"), (ASSETS / "explorer.css").read_text("utf-8"))
    report, explorer = (re.findall(r"--c\d: (#\w{6})", sheet) for sheet in sheets)
    assert report == explorer
    assert tuple(report[: len(ON_LIGHT)]) == ON_LIGHT
    drawn = figure(replace(BARS, label_slots=(0, 2)))["data"]
    assert drawn[0]["marker"]["color"] == drawn[1]["marker"]["color"] == ["#0072b2", "#009e73"]
