"""The float audit tells noise whose last bits give the value away from noise on a grid."""

import pytest

from mppfl.errors import BadInput
from mppfl.privacy.audit.float_grid import audit_float


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


def test_unknown_noise_is_refused():
    with pytest.raises(BadInput, match="Known: seeded"):
        audit_float("loud")
