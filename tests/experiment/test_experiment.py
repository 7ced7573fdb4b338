"""Experiment and its tables: streams of random numbers, names that agree with what they name, differences."""

from __future__ import annotations

from typing import get_args

import pytest

from mppfl.data import FEATURES
from mppfl.errors import BadInput
from mppfl.experiment import (
    FAMILY_OPTIONS,
    PURPOSES,
    Experiment,
    GameTerms,
    LedgerChoice,
    Training,
    differences,
    experiment_from,
)
from mppfl.network import random_graph
from mppfl.training import MODEL_NAMES, NORMS, TrainingConfig
from tests.homes import home

generate = home(random_graph)
tables = home(GameTerms)


def test_models_and_families_are_those_there_are():
    assert get_args(tables.ModelName) == MODEL_NAMES
    assert get_args(tables.Norm) == NORMS
    assert get_args(tables.Features) == FEATURES
    assert tuple(FAMILY_OPTIONS) == tuple(generate._FAMILIES)


def test_every_option_of_a_random_family_can_be_written_down():
    import inspect

    for name, family in generate._FAMILIES.items():
        assert set(FAMILY_OPTIONS[name]) == set(inspect.signature(family).parameters) - {"num_clients", "rng", "weigh"}


def test_seeds_of_different_purposes_come_from_separate_streams():
    chosen = experiment_from({"seed": 3, "data": {"seed": 11}})
    seeds = {purpose: chosen.seed_of(purpose, 3) for purpose in PURPOSES}
    assert seeds["split"] == 11  # the table's own
    assert len(set(seeds.values())) == len(PURPOSES)
    assert seeds["graph"] != experiment_from({"seed": 4}).seed_of("graph", 4)
    assert chosen.stream("graph", 3).random() == chosen.stream("graph", 3).random()


def test_where_two_experiments_differ_is_told_by_place():
    one = experiment_from({"training": {"clip_norm": 1.0}, "output": {"folder": "/a"}})
    other = experiment_from({"training": {"clip_norm": 2.0}, "output": {"checkpoint_every": 9}})
    assert differences(one, other) == ["training.clip_norm: 1.0, was 2.0"]
    assert differences(one, one) == []
    capped = experiment_from({"training": {"clip_norm": 1.0}, "ledger": {"cap": 3}})
    assert differences(capped, one) == ['ledger.cap: 3.0, was "not given"']


@pytest.mark.parametrize(("ledger", "option"), [({"cap": 1.0}, "cap"), ({"caps": {"4": 1.0}}, "caps")])
def test_a_cap_that_poisson_sampling_cannot_keep_is_refused(ledger, option):
    sampled = Training(config=TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0))
    with pytest.raises(BadInput, match=f"ledger.{option} is ρ .* privacy='dpsgd_poisson' has none.*Remove it"):
        Experiment(training=sampled, ledger=LedgerChoice(**ledger))
    assert Experiment(training=sampled).ledger.cap is None


def test_epsilon_chooses_the_unit_of_budgets_where_there_is_one_to_choose():
    assert Training(dp_epsilon=3.0).config.budget_unit == 1.0
    with pytest.raises(BadInput, match=r"dp_epsilon=3 chooses the unit of budgets, and budget_unit=0.1 gives it"):
        Training(dp_epsilon=3.0, config=TrainingConfig(budget_unit=0.1))
    sampled = TrainingConfig(privacy="dpsgd_poisson", clip_norm=1.0)
    with pytest.raises(BadInput, match=r"zCDP budgets, and privacy='dpsgd_poisson' has none"):
        Training(dp_epsilon=3.0, config=sampled)
