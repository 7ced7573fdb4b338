"""The unit is fixed once, on SA and IID, by trials that approach the paper's accuracy."""

import math

import pytest
from reproduction.cells import NOISELESS, ArmName
from reproduction.units import FALLBACK, GRID, MOST_TRIALS, next_trials, reusable, units_of

from tests.reproduction.test_store import measured

NAME = "cifar-100"  # one aggregation
SA = ArmName("social_agnostic", "noise_aware")
TARGET = 48.83


def trials(accuracies, ceiling=60.0):
    noiseless = [] if ceiling is None else [measured(NOISELESS, ceiling, unit=None)]
    return [*noiseless, *(measured(SA, accuracy, unit=unit) for unit, accuracy in accuracies.items())]


def searched(accuracy_of, name=NAME, ceiling=60.0):
    """Trials until the protocol is content, with accuracies from a curve."""
    tried = []
    while jobs := next_trials(name, tried):
        assert len(set(jobs)) == len(jobs)
        tried += [measured(arm, ceiling if unit is None else accuracy_of(arm, unit), unit=unit) for arm, unit in jobs]
        assert len(tried) < 40
    return tried


@pytest.mark.parametrize("right", [3e-5, 7e-4, 1.4e-3, 9e-3])
def test_the_search_ends_within_tolerance_wherever_the_right_unit_lies(right):
    tried = searched(lambda arm, unit: TARGET + 4 * math.tanh(math.log(unit / right)))
    unit = units_of(NAME, tried)["noise_aware"]
    assert abs(unit.accuracy - TARGET) <= 0.3
    assert unit.unit == pytest.approx(right, rel=0.1)
    assert len(tried) <= 1 + MOST_TRIALS


def test_each_aggregation_gets_its_own_unit():
    right = {"noise_aware": 6e-4, "size": 3e-3}
    curve = lambda arm, unit: 66.49 + 5 * math.tanh(math.log(unit / right[arm.aggregation]))  # noqa: E731
    units = units_of("cifar-10", searched(curve, "cifar-10", ceiling=80.0))
    assert {weights: units[weights].unit for weights in right} == pytest.approx(right, rel=0.1)


def test_a_unit_that_no_trial_can_reach_is_the_protocols_or_the_nearest_trials_and_that_is_said():
    unit = units_of(NAME, trials({}, ceiling=38.3))["noise_aware"]  # noiseless training stays below the paper
    assert (unit.unit, unit.accuracy) == (FALLBACK, None)
    assert "below the paper's SA" in unit.why
    assert next_trials(NAME, trials({}, ceiling=38.3)) == []
    tried = searched(lambda arm, unit: 40.0 if unit < 1.37e-3 else 52.0)  # a jump over the target
    unit = units_of(NAME, tried)["noise_aware"]
    assert len(tried) == 1 + MOST_TRIALS
    assert unit.accuracy == pytest.approx(52.0)
    assert "not within 0.3" in unit.why


def test_what_a_trial_rules_out_is_not_tried():
    assert next_trials(NAME, trials({2e-3: TARGET - 10})) != []
    assert all(unit > 2e-3 for _, unit in next_trials(NAME, trials({2e-3: TARGET - 10})))
    assert next_trials(NAME, trials({1e-3: TARGET - 1})) == [(SA, 2e-3)]
    assert next_trials(NAME, trials({1e-3: TARGET + 1})) == [(SA, 5e-4)]
    assert next_trials(NAME, trials({1e-3: TARGET + 1, 5e-4: TARGET - 1}))[0][1] == pytest.approx(7e-4, rel=0.1)
    tried = trials({2e-3: TARGET + 4, 1e-3: TARGET + 0.1, 5e-4: TARGET - 3})  # these fix the unit, and serve again
    assert [(trial.arm, trial.unit) for trial in reusable(NAME, tried)] == [(NOISELESS, None), (SA, 1e-3)]


def test_beyond_what_was_tried_noise_costs_a_power_of_the_unit():
    def accuracy(unit):  # noise costs 20 points at .002 and falls with the root of the unit
        return 60.0 - 20 * (unit / 2e-3) ** -0.5

    right = 2e-3 * (20 / (60.0 - TARGET)) ** 2
    below = trials({unit: accuracy(unit) for unit in (1e-3, 2e-3)})
    assert next_trials(NAME, below) == [(SA, pytest.approx(right, rel=1e-2))]
    units = dict(zip(GRID, (8 * right, 4 * right, 2 * right), strict=True))
    above = trials({unit: accuracy(as_if) for unit, as_if in units.items()})
    assert next_trials(NAME, above) == [(SA, pytest.approx(min(GRID) / 2, rel=1e-2))]
