"""Numbers, units and names as people read them."""

import math

import pytest

from mppfl.text import between, delta, duration, epsilon, nearest, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234.5, "1,234"), (386_525, "386,500"), (0.04999, "0.0500"), (12.345, "12.3"), (-280.4, "−280"),
     (999.96, "1,000"), (1.23e-7, "1.23·10⁻⁷"), (-4.5e12, "−4.50·10¹²"),
     (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–")],
)  # fmt: skip
def test_numbers_are_rounded_to_what_is_known(value, text):
    assert number(value) == text


def test_an_epsilon_is_never_rounded_to_a_stronger_promise():
    values = {4.531: "4.54", 4.53: "4.53", 0.12301: "0.124", math.inf: "∞", 0: "0"}
    assert {value: epsilon(value) for value in values} == values


def test_small_words_about_numbers_and_names_that_are_nearly_known():
    assert [percent(value) for value in (0.8731, math.nan)] == ["87.3 %", "–"]
    assert delta(1e-5) == "1e-5"
    assert [between(1, high) for high in (1.0001, 2)] == ["1.00", "1.00 to 2.00"]
    assert [duration(s) for s in (0.5, 600, 7300, math.nan)] == ["0.50 s", "10 min", "2.0 h", "–"]
    assert nearest("clip_nrom", ["clip_norm", "noise"]) == "clip_norm"
    assert nearest("xyz", ["clip_norm"]) is None
