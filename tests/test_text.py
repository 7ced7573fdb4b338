"""Numbers, units and names as people read them."""

from __future__ import annotations

import math

import pytest

from mppfl.text import between, delta, duration, epsilon, nearest, number, percent


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, "0"), (1234.5, "1,234"), (386_525, "386,500"), (0.04999, "0.0500"), (12.345, "12.3"), (-280.4, "−280"),
     (999.96, "1,000"), (1.23e-7, "1.23·10⁻⁷"), (-4.5e12, "−4.50·10¹²"),
     (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–")],
)  # fmt: skip
def test_numbers_are_rounded_to_what_is_known(value, wanted):
    assert number(value) == wanted


def test_an_epsilon_is_never_rounded_to_a_stronger_promise():
    assert epsilon(4.531) == "4.54"
    assert epsilon(4.53) == "4.53"
    assert epsilon(0.12301) == "0.124"
    assert epsilon(math.inf) == "∞"
    assert epsilon(0) == "0"


def test_small_words_about_numbers():
    assert percent(0.8731) == "87.3 %"
    assert percent(math.nan) == "–"
    assert delta(1e-5) == "1e-5"
    assert between(1, 1.0001) == "1.00"
    assert between(1, 2) == "1.00 to 2.00"
    assert [duration(s) for s in (0.5, 600, 7300, math.nan)] == ["0.50 s", "10 min", "2.0 h", "–"]


def test_a_name_that_is_nearly_known_is_found():
    assert nearest("clip_nrom", ["clip_norm", "noise"]) == "clip_norm"
    assert nearest("xyz", ["clip_norm"]) is None
