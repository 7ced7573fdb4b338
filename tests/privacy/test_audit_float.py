"""The float audit tells noise whose last bits give the value away from noise on a grid."""

import numpy as np
import pytest

from mppfl.errors import BadInput
from mppfl.privacy import add_noise
from mppfl.privacy.audit import audit_float
from tests.homes import home

noise_module = home(add_noise)


@pytest.mark.parametrize("noise", ["plain-float32", "plain-float64", "seeded"])
def test_noise_added_in_floating_point_gives_the_value_away(noise):
    found = audit_float(noise, trials=50_000)
    assert found.verdict == "fail"
    assert found.measured > 0.2  # δ of 0.26 at any ε, as measured in the literature and here
    assert (
        found.details["events"][noise.removeprefix("plain-") if "plain" in noise else "float64"]["off_grid_at_1"] == 0
    )


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_noise_on_a_grid_does_not(noise):
    found = audit_float(noise, trials=50_000)
    assert found.verdict == "pass"
    assert found.measured == 0
    assert found.confidence == 0.999


@pytest.mark.parametrize("noise", ["gaussian", "discrete"])
def test_noise_that_tells_the_sign_of_zero_is_found_out(noise, monkeypatch):
    monkeypatch.setattr(noise_module, "whole_numbers", lambda values, grid: np.rint(values.astype(float) / grid))
    found = audit_float(noise, trials=50_000)
    assert found.verdict == "fail"
    assert found.measured > 0.02  # half of the tenth of all noise that is 0, less what 50,000 trials leave open
    assert found.details["events"]["float64"]["minus_zero_at_0"] == 0


def test_unknown_noise_is_refused():
    with pytest.raises(BadInput, match="Known: seeded"):
        audit_float("loud")
