"""Tables: runs side by side, and how numbers are written."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from mppfl.experiment import comparison_rows, comparison_table
from mppfl.text import between, delta, duration, epsilon, number, percent
from tests.experiment.runs import make_run

approx = pytest.approx


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


def test_rows_sum_over_rounds_and_take_the_worst_client():
    run = make_run(num_clients=5)
    (row,) = comparison_rows([run])
    assert row.payments == approx(run.history.clients["payments"].sum())
    assert row.server_cost == approx(run.server_cost.sum())
    assert row.dp_epsilon == run.accounts.dp_epsilon.max()
    assert row.aggregation == "noise_aware"
    assert (row.least_exposed, row.most_exposed) == (run.exposure.min(), run.exposure.max())


def test_the_terminal_gets_one_line_per_run_and_no_markup():
    runs = [
        make_run("[red]x", mechanism="mppfl"),
        make_run("noiseless", noiseless=True),
        make_run("one", num_clients=1),
    ]
    console = Console(width=220, record=True, file=io.StringIO())
    console.print(comparison_table(runs))
    text = console.export_text()
    assert "[red]x" in text
    assert "∞" in text
    assert "final" in text
    assert comparison_table([]).row_count == 0
