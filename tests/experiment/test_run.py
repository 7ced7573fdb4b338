"""Run: what it holds, what it refuses to hold, and how it is shown, alone and side by side."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from mppfl.errors import BadInput, MppflError
from mppfl.experiment import comparison_rows, comparison_table
from tests.experiment.runs import CONFIG, make_run


def test_final_figures_skip_rounds_without_evaluation():
    run = make_run(num_rounds=10, evaluate_every=4)
    accuracy = run.history.rounds["accuracy"]
    assert np.isnan(accuracy).sum() == 7
    assert run.final_accuracy == accuracy[-1]
    assert run.best_accuracy == np.nanmax(accuracy)
    never = replace(run, history=replace(run.history, rounds=run.history.rounds | {"accuracy": accuracy * np.nan}))
    assert np.isnan(never.final_accuracy)
    assert np.isnan(never.best_accuracy)


def test_a_setting_is_found_in_whichever_table_it_stands():
    run = make_run()
    assert run.setting("aggregation") == "noise_aware"
    assert run.setting("seeds") == [0]
    assert run.setting("nonsense", 7) == 7
    assert run.config is not CONFIG


def test_values_that_cannot_be_are_refused():
    run = make_run(num_clients=3)
    with pytest.raises(BadInput, match="3 names for a network of 3 clients, 2 numbers"):
        replace(run, num_examples=run.num_examples[:2])
    with pytest.raises(BadInput, match=r"exposure has shape \(2,\)"):
        replace(run, exposure=run.exposure[:2])
    with pytest.raises(BadInput, match=r"server_cost has shape"):
        replace(run, server_cost=np.zeros(99))
    with pytest.raises(BadInput, match="no plain value"):
        replace(run, config={"a": {"b": object()}})
    with pytest.raises(BadInput, match="'zoe' refused in a round is not one"):
        replace(run, history=replace(run.history, refused=(("zoe",),) * 12))
    for array in (run.weights, run.exposure, run.accounts.spent, run.num_examples):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("options", [{}, {"noiseless": True}, {"num_clients": 600, "num_rounds": 3}])
def test_a_run_is_shown_in_a_few_lines(options):
    shown = repr(make_run("[red]x<y", **options)).splitlines()
    assert shown[0].startswith("Run '[red]x<y': ")
    assert len(shown) <= 12
    assert max(map(len, shown)) <= 120
    page = make_run("[red]x<y", **options)._repr_html_()
    assert "x&lt;y" in page
    assert "largest ε" in page


def test_a_run_becomes_a_table_with_one_row_per_round(monkeypatch):
    run = make_run(num_rounds=3)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MppflError, match="pip install pandas"):
        run.to_pandas()

    class DataFrame(dict):
        def set_index(self, name):
            self.index = self.pop(name)
            return self

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))
    table = run.to_pandas()
    assert table.index == [1, 2, 3]
    assert table["accuracy"] == run.history.rounds["accuracy"].tolist()
    assert table["server_cost"] == run.server_cost.tolist()
    assert {len(column) for column in table.values()} == {3}


def test_rows_sum_over_rounds_and_take_the_worst_client():
    run = make_run(num_clients=5)
    (row,) = comparison_rows([run])
    assert row.payments == pytest.approx(run.history.clients["payments"].sum())
    assert row.server_cost == pytest.approx(run.server_cost.sum())
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
