"""Run: what it holds, and what it refuses to hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mppfl.errors import BadInput
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
